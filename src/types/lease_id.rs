//! The secret that stands for one lease.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use crate::Error;

/// The random secret that stands for one lease: who knows it may refresh and release the lease.
///
/// 122 random bits from the operating system (a version 4 UUID). It is the identity of a request
/// too: an acquire sent twice with the same id is one acquire.
///
/// `Debug` and `Display` show the first eight digits, enough to find a lease in a log and too few
/// to release it. [`expose`](Self::expose) gives the whole text, to be kept where only the holder
/// reads it; parse it again to take one's own lease up after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// A new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The whole secret as text.
    #[must_use]
    pub fn expose(&self) -> String {
        self.0.to_string()
    }

    /// The sixteen bytes a store keeps.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// The id a store kept as these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for LeaseId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The source would quote parts of a secret, so it stays behind.
        Uuid::from_str(text)
            .map(Self)
            .map_err(|_| Error::invalid("this is not a lease id: pass the text that `LeaseId::expose` gave"))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, ..) = self.0.as_fields();
        write!(f, "{head:08x}…")
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_in_part_and_exposed_on_demand() {
        let id = LeaseId::random();
        assert_eq!(id.expose().parse::<LeaseId>().unwrap(), id);
        assert_eq!(LeaseId::from_bytes(id.to_bytes()), id);
        for shown in [format!("{id}"), format!("{id:?}")] {
            assert!(!shown.contains(&id.expose()[8..]), "{shown}");
        }
        assert_ne!(id, LeaseId::random());
    }

    #[test]
    fn a_bad_id_is_refused_and_not_repeated() {
        let error = "secret-secret".parse::<LeaseId>().unwrap_err();
        assert!(!format!("{error:?}").contains("secret-secret"));
    }
}
