//! The ttl of a lease.

use std::time::Duration;

use crate::types::{duration::format_duration, error::Error};

/// How long a lease lasts without a refresh, in whole milliseconds: from 10 milliseconds to 365 days.
///
/// A lease needs a ttl of at least two and a half times the round trip of a confirmed write. The lower bound is for the
/// memory store: on MongoDB a lease with a ttl below a second is lost in any pause of the process or of the server. A
/// fraction of a millisecond is dropped, because a store counts milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

impl Ttl {
    /// The shortest ttl. It is useful with the memory store only.
    pub const MIN: Self = Self(10);
    /// The longest ttl.
    pub const MAX: Self = Self(365 * 24 * 3600 * 1000);
    /// The default ttl. With MongoDB's default election settings an ungraceful failover took up to 19 seconds, and a
    /// lease should outlast it.
    pub const DEFAULT: Self = Self(30_000);

    /// The ttl of a lease without expiry: seven thousand years. A store treats it like any other.
    pub(crate) const FOREVER: Self = Self(7_000 * 365 * 24 * 3600 * 1000);

    /// The ttl as a duration.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// A third of the ttl. At this interval leases are refreshed and waiters keep their places, so two attempts may
    /// fail.
    pub(crate) fn third(self) -> Duration {
        Duration::from_millis(self.0 / 3)
    }

    /// The ttl in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;

    fn try_from(duration: Duration) -> Result<Self, Error> {
        let millis = millis(duration);
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) {
            Ok(Self(millis))
        } else {
            Err(Error::invalid(format!(
                "a ttl must be from 10 ms to 365 d and {} is not: choose seconds to minutes",
                format_duration(duration)
            )))
        }
    }
}

/// A duration in whole milliseconds, as records have it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_from_10_milliseconds_to_365_days() {
        for bad in [
            Duration::ZERO,
            Duration::from_micros(999),
            Duration::from_micros(9_999),
            Duration::from_secs(365 * 24 * 3600 + 1),
            Duration::MAX,
        ] {
            assert!(matches!(Ttl::try_from(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
        assert_eq!(Ttl::try_from(Duration::from_millis(10)).unwrap(), Ttl::MIN);
        assert_eq!(Ttl::try_from(Ttl::MAX.duration()).unwrap(), Ttl::MAX);
        assert_eq!(Ttl::MAX.millis(), 31_536_000_000);
    }

    #[test]
    fn no_expiry_is_seven_thousand_years_and_no_valid_ttl() {
        assert_eq!(Ttl::FOREVER.millis(), 220_752_000_000_000);
        assert!(Ttl::try_from(Ttl::FOREVER.duration()).is_err());
    }

    #[test]
    fn a_third_of_a_ttl_is_a_third_of_it() {
        assert_eq!(Ttl::DEFAULT.third(), Duration::from_secs(10));
    }
}
