//! How many holders may share a key.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many holders may have the key at the same time, as one of them or a waiter wants it. The smallest limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One.
    #[default]
    Exclusive,
    /// Up to this many, at least 2.
    UpTo(u32),
    /// Any number.
    Shared,
}

impl Sharing {
    /// The stored limit of [`Shared`](Self::Shared): the largest `int` of a server.
    const UNLIMITED: u32 = i32::MAX.unsigned_abs();

    /// Reads a stored limit. 0 and 1 are exclusive.
    #[must_use]
    pub fn from_limit(limit: u32) -> Self {
        match limit {
            0 | 1 => Self::Exclusive,
            Self::UNLIMITED.. => Self::Shared,
            limit => Self::UpTo(limit),
        }
    }

    /// The stored limit: 0 if exclusive.
    #[must_use]
    pub fn limit(self) -> u32 {
        match self {
            Self::Exclusive | Self::UpTo(0 | 1) => 0,
            Self::UpTo(limit) => limit.min(Self::UNLIMITED),
            Self::Shared => Self::UNLIMITED,
        }
    }

    /// How many holders there may be.
    pub(crate) fn holders(self) -> u32 {
        self.limit().max(1)
    }

    /// Whether the key may have no other holder.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.holders() == 1
    }
}

/// As the stored limit.
impl Serialize for Sharing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.limit().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sharing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self::from_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_limit_of_0_or_1_is_exclusive_and_the_largest_int_is_any_number() {
        let int = i32::MAX.unsigned_abs();
        let read = [0, 1, 2, int - 1, int, u32::MAX].map(Sharing::from_limit);
        let (two, many) = (Sharing::UpTo(2), Sharing::UpTo(int - 1));
        assert_eq!(read, [Sharing::Exclusive, Sharing::Exclusive, two, many, Sharing::Shared, Sharing::Shared]);
        assert_eq!(read.map(Sharing::limit), [0, 0, 2, int - 1, int, int]);
        assert_eq!([0, 1].map(|limit| Sharing::UpTo(limit).limit()), [0, 0], "one form is stored");
        assert_eq!(read.map(Sharing::is_exclusive), [true, true, false, false, false, false]);
        assert_eq!(serde_json::to_string(&two).unwrap(), "2");
        assert_eq!(serde_json::from_str::<Sharing>("1").unwrap(), Sharing::Exclusive);
    }
}
