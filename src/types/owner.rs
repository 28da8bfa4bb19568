//! The owner of a lease, a name for people.

use std::{str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::types::{error::Error, string_newtype::string_newtype};

/// The owner of a lease or of an acquire, a name for people. It decides nothing.
///
/// Two processes with the same owner still exclude each other: the [`LeaseId`](crate::LeaseId) identifies a lease.
/// Default: `host/pid/random`.
///
/// Another process may have chosen it, with any characters. `Display` writes it as it is. `Debug` quotes and escapes
/// it: use `{:?}` for logs and terminals, as [`Error`](crate::Error) does.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(Arc<str>);

impl Owner {
    /// The longest owner, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Names this process: host, process id and a random part.
    #[must_use]
    pub fn of_this_process() -> Self {
        let host = gethostname::gethostname();
        // A host name has at most 255 bytes on each system, so the whole stays far below the limit.
        let text =
            format!("{}/{}/{:08x}", host.to_string_lossy().replace('\0', ""), std::process::id(), fastrand::u32(..));
        Self(text.into())
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::invalid("an owner must not be empty: name the holder, or use the default"));
        }
        if text.len() > Self::MAX_BYTES || text.contains('\0') {
            return Err(Error::invalid(format!(
                "an owner may have at most {} bytes and no NUL character, and this one has {} bytes: shorten it, or remove the NUL",
                Self::MAX_BYTES,
                text.len()
            )));
        }
        Ok(Self(text.into()))
    }
}

string_newtype!(Owner);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_owner_names_host_and_process_and_differs_each_time() {
        let owner = Owner::of_this_process();
        let parts: Vec<_> = owner.as_str().split('/').collect();
        assert_eq!(parts.len(), 3, "{owner}");
        assert_eq!(parts[1], std::process::id().to_string());
        assert_ne!(owner, Owner::of_this_process());
        assert_eq!(owner.as_str().parse::<Owner>().unwrap(), owner);
    }

    #[test]
    fn a_bad_owner_is_refused() {
        for text in ["", "a\0b", "o".repeat(1025).as_str()] {
            assert!(matches!(text.parse::<Owner>(), Err(Error::Invalid { .. })));
        }
    }
}
