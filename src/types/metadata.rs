//! The metadata of a lease.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::types::error::Error;

/// Names and texts that an owner attaches to its lease, for people: at most 4 KiB together. They decide nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// The most bytes of all names and texts together.
    pub const MAX_BYTES: usize = 4096;

    /// Adds an entry, or replaces the entry with this name.
    ///
    /// A name is not empty, does not begin with `$`, and contains neither `.` nor NUL, so that it can be queried as a
    /// field.
    pub fn insert(&mut self, name: impl Into<String>, text: impl Into<String>) -> Result<(), Error> {
        let (name, text) = (name.into(), text.into());
        if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) {
            return Err(Error::invalid(format!(
                "{name:?} cannot name a metadata entry: use letters, digits, `-` and `_`"
            )));
        }
        self.0.insert(name, text);
        let bytes: usize = self.0.iter().map(|(name, text)| name.len().saturating_add(text.len())).sum();
        if bytes > Self::MAX_BYTES {
            return Err(Error::invalid(format!(
                "metadata may take at most {} bytes and this takes {bytes}: store it elsewhere and refer to it",
                Self::MAX_BYTES
            )));
        }
        Ok(())
    }

    /// The text of the entry with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = Error;

    fn try_from(entries: BTreeMap<String, String>) -> Result<Self, Error> {
        let mut metadata = Self::default();
        for (name, text) in entries {
            metadata.insert(name, text)?;
        }
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_small_and_its_names_can_be_fields() {
        let mut metadata = Metadata::default();
        metadata.insert("version", "$where.42").unwrap();
        assert_eq!(metadata.get("version"), Some("$where.42"));
        for name in ["", "$set", "a.b", "a\0"] {
            assert!(matches!(metadata.clone().insert(name, ""), Err(Error::Invalid { .. })));
        }
        assert!(metadata.clone().insert("big", "x".repeat(4096)).is_err());
        assert!(metadata.insert("fits", "x".repeat(4096 - 4 - 16)).is_ok());
    }
}
