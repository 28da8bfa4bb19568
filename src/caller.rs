//! Whom a store tells that it was handed a key.

use std::{fmt, str::FromStr};

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

/// A text is not a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a caller is written as sixteen hexadecimal digits, a slash and a number")]
pub struct NotACaller;

impl FromStr for Caller {
    type Err = NotACaller;

    fn from_str(text: &str) -> Result<Self, NotACaller> {
        let (handle, number) = text.split_once('/').ok_or(NotACaller)?;
        if handle.len() != 16 {
            return Err(NotACaller);
        }
        let handle = u64::from_str_radix(handle, 16).map(HandleId).map_err(|_| NotACaller)?;
        Ok(Self { handle, number: number.parse().map_err(|_| NotACaller)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_written_and_read() {
        let caller = Caller { handle: HandleId::random(), number: 17 };
        assert_eq!(caller.to_string().parse(), Ok(caller));
        for text in
            ["", "/", "1/2", "0123456789abcdef", "0123456789abcdef/", "0123456789abcdeg/1", "0123456789abcdef/-1"]
        {
            assert_eq!(text.parse::<Caller>(), Err(NotACaller), "{text}");
        }
    }
}
