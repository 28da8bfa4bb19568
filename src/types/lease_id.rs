//! The lease id, a secret.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use crate::types::{error::Error, parse_error::ParseError};

/// The random secret of a lease. A process that knows it may refresh and release the lease.
///
/// It has 122 random bits from the operating system (a version 4 UUID). The library makes a new one for each acquire.
///
/// `Debug` and `Display` show the first eight digits: enough to find a lease in a log, and too few to release it.
/// [`expose`](Self::expose) returns the whole text. Keep it where only the holder can read it. To take the lease up
/// after a restart, parse it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// The id of an entry that keeps a key unavailable after the release of its lease. No lease has it.
    pub const NONE: Self = Self(Uuid::nil());

    /// Refuses the id that names no lease.
    pub(crate) fn ensure_some(self) -> Result<(), Error> {
        if self == Self::NONE {
            return Err(Error::invalid("this lease id names no lease: pass the id of a lease, or `LeaseId::random`"));
        }
        Ok(())
    }

    /// Creates a random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The whole secret as text.
    #[must_use]
    pub fn expose(&self) -> String {
        self.0.to_string()
    }

    /// The sixteen bytes that a store keeps.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// The id with these bytes, from a store.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for LeaseId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        // Without the source, which would quote parts of a secret.
        Uuid::from_str(text)
            .map(Self)
            .map_err(|_| ParseError("this is not a lease id: pass the text of `LeaseId::expose`".into()))
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

/// How a record has a lease id: as its whole text. `LeaseId` itself is not serializable, so that no value with a secret
/// in it is serialized by accident.
pub(crate) mod exposed {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    use super::LeaseId;

    pub(crate) fn serialize<S: Serializer>(id: &LeaseId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&id.expose())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LeaseId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
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
