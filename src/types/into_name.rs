//! What can be passed as a key, an owner or a group.
//!
//! Purpose: the compiler refuses a wrong argument in words of this crate.
//!
//! Mechanism: a trait with its own message. Each type that `TryInto` converts has it, and the compiler does not explain
//! that implementation in its place.

use crate::types::error::{Error, Result};

/// A value that can be passed as a [`Key`](crate::Key), an [`Owner`](crate::Owner) or a [`Group`](crate::Group).
///
/// `&str`, `String`, `&String`, the name itself and a reference to it are such values. So is a value of a type of yours, if
/// [`TryFrom`] converts it to the name:
///
/// ```
/// use mongoseal::{Key, Mongoseal, ParseError};
///
/// struct OrderId(u32);
///
/// impl TryFrom<OrderId> for Key {
///     type Error = ParseError;
///
///     fn try_from(id: OrderId) -> Result<Self, ParseError> {
///         format!("orders/{}", id.0).parse()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire(OrderId(4711)).await?;
/// assert_eq!(lease.key().as_str(), "orders/4711");
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// A number is no name, because the caller decides how it is written:
///
/// ```compile_fail,E0277
/// # async fn number(seal: mongoseal::Mongoseal) -> mongoseal::Result<()> {
/// seal.acquire(5).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed as `{Name}`",
    label = "this is no text, and no `TryFrom` converts it to `{Name}`",
    note = "pass a `&str`, a `String` or the `{Name}` itself; write other values as text, for example with `id.to_string()`"
)]
pub trait IntoName<Name> {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the text is not allowed as this name.
    fn into_name(self) -> Result<Name>;
}

#[diagnostic::do_not_recommend]
impl<T, Name> IntoName<Name> for T
where
    T: TryInto<Name>,
    T::Error: Into<Error>,
{
    fn into_name(self) -> Result<Name> {
        self.try_into().map_err(Into::into)
    }
}
