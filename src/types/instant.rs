//! A point in time on a clock.

use std::{ops::Add, time::Duration};

/// A point in time, as a [`Clock`](super::clock::Clock) shows it: the time since the origin of that clock. Only instants of one
/// clock can be compared.
///
/// A sum is at most [`MAX`](Self::MAX).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The origin of a clock.
    pub const ORIGIN: Self = Self(Duration::ZERO);
    /// Later than any clock shows.
    pub const MAX: Self = Self(Duration::MAX);

    /// The instant this long after the origin.
    #[must_use]
    pub const fn at(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time since the origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from another instant to this one. Zero if the other one is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The instant this much later.
    #[must_use]
    pub const fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// The instant this much earlier, and no earlier than the origin.
    #[must_use]
    pub const fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        self.after(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_durations_do_not_overflow() {
        let (second, instant) = (Duration::from_secs(1), Instant::at(Duration::from_secs(3)));
        assert_eq!(
            (instant.after(second).since(instant), instant.since(instant.after(second))),
            (second, Duration::ZERO)
        );
        assert_eq!((Instant::MAX + second, instant.before(4 * second)), (Instant::MAX, Instant::ORIGIN));
        assert_eq!(instant.before(second).since_origin(), 2 * second);
    }
}
