//! The group of a lease.

use std::{str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::types::{error::Error, string_newtype::string_newtype};

/// The name that several leases share, so that a caller that knows it can release or refresh them together: a text of 1
/// to 256 bytes without NUL.
///
/// It is not a secret: each listing of a lease shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Group(Arc<str>);

impl Group {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 256;
}

impl FromStr for Group {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() || text.len() > Self::MAX_BYTES || text.contains('\0') {
            return Err(Error::invalid(format!(
                "a group name has 1 to {} bytes and no NUL character, and this one has {} bytes: choose another",
                Self::MAX_BYTES,
                text.len()
            )));
        }
        Ok(Self(text.into()))
    }
}

string_newtype!(Group);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_group_is_refused() {
        assert!("g".repeat(256).parse::<Group>().is_ok());
        for text in ["", "a\0b", "g".repeat(257).as_str()] {
            assert!(matches!(text.parse::<Group>(), Err(Error::Invalid { .. })));
        }
    }
}
