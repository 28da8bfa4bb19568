//! The error of a text or a number that is not a value.
//!
//! Invariant: this file knows no value. So the values that the [`Error`](crate::Error) of a call has can return it.

/// A text that is no key, owner, group or id, or a number that is no fencing token. It says what to do.
///
/// As an [`Error`](crate::Error), by `?` or [`From`], it is [`Invalid`](crate::Error::Invalid).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);
