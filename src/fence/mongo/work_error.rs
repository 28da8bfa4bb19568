//! The errors that the work of a transaction can return.
//!
//! Purpose: an error of the driver is found in whatever error the work returns, so that the transaction can be run again.
//!
//! Mechanism: a trait that shows an error as one of the standard library. Its parameter keeps apart the two kinds of types that
//! have it, because a pointer to an error is not an error itself.

use std::{error::Error as StdError, fmt, marker::PhantomData, ops::Deref};

/// An error that the work of a [transaction](crate::Lease::transaction) can return.
///
/// | types | kind |
/// |---|---|
/// | all that implement [`Error`](StdError) | [`ByItself`] |
/// | `Box<dyn Error + Send + Sync>`, `anyhow::Error`, `eyre::Report` and others that dereference to `dyn Error + Send + Sync` | [`ByDeref<dyn Error + Send + Sync>`](ByDeref) |
/// | `Box<dyn Error>` and others that dereference to `dyn Error` | [`ByDeref<dyn Error>`](ByDeref) |
///
/// The compiler finds the kind. Code that passes work on, generic over its error, takes the kind as a parameter of its own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a transaction's work",
    label = "neither an error nor a pointer to one",
    note = "return a `mongoseal::Error`, an error type with `From<mongoseal::Error>`, a `Box<dyn Error + Send + Sync>` or an `anyhow::Error`"
)]
pub trait WorkError<Kind> {
    /// The error, to look for its causes.
    fn as_error(&self) -> &(dyn StdError + 'static);
}

/// The kind of a [`WorkError`] that is an error itself.
#[derive(Debug)]
pub enum ByItself {}

/// The kind of a [`WorkError`] that is a pointer to one.
pub struct ByDeref<Target: ?Sized>(PhantomData<Target>);

impl<Target: ?Sized> fmt::Debug for ByDeref<Target> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByDeref")
    }
}

#[diagnostic::do_not_recommend]
impl<E: StdError + 'static> WorkError<ByItself> for E {
    fn as_error(&self) -> &(dyn StdError + 'static) {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<E> WorkError<ByDeref<dyn StdError + Send + Sync>> for E
where
    E: Deref<Target = dyn StdError + Send + Sync>,
{
    fn as_error(&self) -> &(dyn StdError + 'static) {
        &**self
    }
}

#[diagnostic::do_not_recommend]
impl<E> WorkError<ByDeref<dyn StdError>> for E
where
    E: Deref<Target = dyn StdError>,
{
    fn as_error(&self) -> &(dyn StdError + 'static) {
        &**self
    }
}

#[cfg(test)]
mod tests {
    use mongodb::error::Error as DriverError;

    use super::*;
    use crate::types::error::Error;

    /// An error of a program, around another.
    #[derive(Debug, thiserror::Error)]
    #[error("the order was not taken")]
    struct Order(#[source] Source);

    type Source = Box<dyn StdError + Send + Sync>;

    fn driver<'a, Kind>(error: &'a impl WorkError<Kind>) -> bool {
        let causes = |error: &&'a (dyn StdError + 'static)| (*error).source();
        std::iter::successors(Some(error.as_error()), causes).any(<dyn StdError>::is::<DriverError>)
    }

    #[test]
    fn an_error_of_the_driver_is_found_in_each_kind_of_error() {
        let of_driver = || DriverError::custom("broken");
        let ours = || Error::unavailable("not confirmed").caused_by(of_driver());
        assert!(driver(&of_driver()) && driver(&ours()));
        assert!(driver(&Order(ours().into())) && driver(&Order(of_driver().into())));
        assert!(driver(&Source::from(ours())) && driver(&Source::from(Order(of_driver().into()))));
        assert!(driver(&Box::<dyn StdError>::from(of_driver())));
        assert!(!driver(&Error::invalid("wrong")) && !driver(&Source::from("sold out")));
    }
}
