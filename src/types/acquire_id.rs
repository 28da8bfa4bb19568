//! The ids of handles and of their acquires, to which stores send notifications.

#[cfg(feature = "mongodb")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::types::{error::Error, string_newtype::decimal};

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

/// Creates the ids of a store's handles, which all begin with the same random digits.
#[cfg(feature = "mongodb")]
pub(crate) struct HandleIds {
    first: u64,
    count: AtomicU64,
}

#[cfg(feature = "mongodb")]
impl HandleIds {
    /// The bits of an id that differ between handles of a store: six digits.
    const OWN_BITS: u64 = 0xff_ffff;

    pub(crate) fn random() -> Self {
        Self { first: HandleId::random().0, count: AtomicU64::new(0) }
    }

    /// Returns the next id. Ids repeat after sixteen million.
    pub(crate) fn next(&self) -> HandleId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        HandleId(self.first & !Self::OWN_BITS | self.first.wrapping_add(count) & Self::OWN_BITS)
    }

    /// The digits that this id has in common with all ids of the store. For the id of another store, all digits.
    pub(crate) fn common_digits(&self, id: HandleId) -> String {
        let mut digits = id.to_string();
        if (id.0 ^ self.first) & !Self::OWN_BITS == 0 {
            digits.truncate(10);
        }
        digits
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
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (handle, number) = text.split_once('/')?;
            let is_hexadecimal = handle.len() == 16 && handle.bytes().all(|digit| digit.is_ascii_hexdigit());
            let handle = is_hexadecimal.then_some(handle)?;
            let handle = HandleId(u64::from_str_radix(handle, 16).ok()?);
            Some(Self { handle, number: decimal(number)? })
        };
        read().ok_or_else(|| {
            Error::invalid("an acquire id is sixteen hexadecimal digits, a slash and a number: correct it")
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

    #[cfg(feature = "mongodb")]
    #[test]
    fn ids_of_a_store_differ_and_begin_with_the_same_ten_digits() {
        let mut ids = HandleIds::random();
        // The next id begins the last digits again.
        ids.first |= HandleIds::OWN_BITS;
        let (one, other, strange) = (ids.next(), ids.next(), HandleId::random());
        assert_ne!(one, other);
        assert!(one.to_string().ends_with("ffffff") && other.to_string().ends_with("000000"));
        assert_eq!(ids.common_digits(one), ids.common_digits(other));
        assert_eq!(ids.common_digits(one), one.to_string()[..10]);
        assert_eq!(ids.common_digits(strange), strange.to_string());
    }

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
            assert!(matches!(text.parse::<AcquireId>(), Err(Error::Invalid { .. })), "{text}");
        }
    }
}
