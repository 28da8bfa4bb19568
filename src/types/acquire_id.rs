//! The ids of handles and of their acquires, to which stores send notifications.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::types::{parse_error::ParseError, string_newtype::decimal};

/// The id of a handle among all handles of a store. Not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(u64);

impl HandleId {
    /// Creates a random id.
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

/// The id of one acquire of one handle. A store sends its notifications. Not a secret. Its text is `handle/number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcquireId {
    /// The handle.
    pub handle: HandleId,
    /// The number of the acquire.
    pub number: u64,
}

impl fmt::Display for AcquireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.handle, self.number)
    }
}

impl FromStr for AcquireId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let read = || {
            let (handle, number) = text.split_once('/')?;
            let is_hexadecimal = handle.len() == 16 && handle.bytes().all(|digit| digit.is_ascii_hexdigit());
            let handle = is_hexadecimal.then_some(handle)?;
            let handle = HandleId(u64::from_str_radix(handle, 16).ok()?);
            Some(Self { handle, number: decimal(number)? })
        };
        read().ok_or_else(|| {
            ParseError("an acquire id is sixteen hexadecimal digits, a slash and a number: correct it".into())
        })
    }
}

impl Serialize for AcquireId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AcquireId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_id_is_shown_and_parsed() {
        let acquire_id = AcquireId { handle: HandleId::random(), number: 17 };
        assert_eq!(acquire_id.to_string().parse::<AcquireId>().unwrap(), acquire_id);
        for text in [
            "",
            "/",
            "1/2",
            "0123456789abcdef",
            "0123456789abcdef/",
            "0123456789abcdeg/1",
            "+123456789abcdef/1",
            "0123456789abcdef/-1",
            "0123456789abcdef/+1",
        ] {
            assert!(matches!(text.parse::<AcquireId>(), Err(ParseError(_))), "{text}");
        }
    }
}
