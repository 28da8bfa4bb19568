//! Whom a store tells that it was handed a key.

use std::{fmt, str::FromStr};

use crate::Error;

/// A handle, among all that use a store. Not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(u64);

impl HandleId {
    /// A new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u64_pair().0)
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One acquire of one handle: whom a store tells that it was handed a key. Not a secret, and written
/// as text, `handle/number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The handle.
    pub handle: HandleId,
    /// Which of its acquires.
    pub number: u64,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.handle, self.number)
    }
}

impl FromStr for Caller {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (handle, number) = text.split_once('/').filter(|(handle, _)| handle.len() == 16)?;
            let handle = HandleId(u64::from_str_radix(handle, 16).ok()?);
            Some(Self { handle, number: number.parse().ok()? })
        };
        read().ok_or_else(|| {
            Error::invalid("a caller is written as sixteen hexadecimal digits, a slash and a number: correct it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_written_and_read() {
        let caller = Caller { handle: HandleId::random(), number: 17 };
        assert_eq!(caller.to_string().parse::<Caller>().unwrap(), caller);
        for text in
            ["", "/", "1/2", "0123456789abcdef", "0123456789abcdef/", "0123456789abcdeg/1", "0123456789abcdef/-1"]
        {
            assert!(matches!(text.parse::<Caller>(), Err(Error::Invalid { .. })), "{text}");
        }
    }
}
