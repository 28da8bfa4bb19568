//! The deadline of a request.

use std::time::Duration;

use super::{clock::Clock, instant::Instant};

/// A time on a [`Clock`] at which a request is given up.
///
/// It does not change while the request is passed on, so no layer has to subtract the time that another layer took.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    clock: Clock,
    at: Instant,
    work_limit: Duration,
    whole: Duration,
}

impl Deadline {
    /// The deadline at this instant of the clock.
    #[must_use]
    pub fn at(clock: Clock, instant: Instant) -> Self {
        Self { clock, at: instant, work_limit: Duration::MAX, whole: instant.since(clock.now()) }
    }

    /// The deadline this long from now.
    #[must_use]
    pub fn after(clock: Clock, time: Duration) -> Self {
        Self::at(clock, clock.now().after(time))
    }

    /// The same deadline, for a request that the store gives up after this time. So a request that waits at the store
    /// frees its connection, and the answer of one that was delayed on its way still counts until the deadline.
    #[must_use]
    pub fn with_work_limit(self, time: Duration) -> Self {
        Self { work_limit: time, ..self }
    }

    /// How long the store may work on the request, if its server can give up a request. Default: until the deadline.
    #[must_use]
    pub fn work_limit(self) -> Duration {
        self.work_limit.min(self.remaining())
    }

    /// How long the caller waits at most, for messages: the time from the first deadline of the request, of which this may
    /// be that of one attempt.
    #[must_use]
    pub fn whole(self) -> Duration {
        self.whole
    }

    /// The clock of the deadline.
    #[must_use]
    pub fn clock(self) -> Clock {
        self.clock
    }

    /// The instant of the deadline on its clock.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.at
    }

    /// The time until the deadline. Zero if it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.at.since(self.clock.now())
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// The earlier of this deadline and that at this instant of the clock.
    #[must_use]
    pub fn or_at(self, instant: Instant) -> Self {
        Self { at: self.at.min(instant), ..self }
    }

    /// The earlier of this deadline and that this long from now.
    #[must_use]
    pub fn or_after(self, time: Duration) -> Self {
        self.or_at(self.clock.now().after(time))
    }

    /// The deadline this much later.
    #[must_use]
    pub fn later_by(self, time: Duration) -> Self {
        Self { at: self.at.after(time), ..self }
    }

    /// The deadline this much sooner.
    #[must_use]
    pub fn sooner_by(self, time: Duration) -> Self {
        Self { at: self.at.before(time), ..self }
    }

    /// Waits until the deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn passed(self) {
        self.clock.sleep_until(self.at).await;
    }

    /// Waits for `done` until the deadline. `None`: the deadline has passed.
    pub(crate) async fn wait_for<T>(self, done: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = done => Some(done),
            () = self.passed() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_stays_and_the_earlier_of_two_counts() {
        let (clock, second) = (Clock::tokio(), Duration::from_secs(1));
        let deadline = Deadline::after(clock, second * 3);
        tokio::time::advance(second).await;
        assert_eq!((deadline.remaining(), deadline.instant()), (second * 2, Instant::at(second * 3)));
        assert_eq!(
            (deadline.or_after(second).remaining(), deadline.or_after(second * 5).remaining()),
            (second, second * 2)
        );
        assert_eq!(deadline.or_at(Instant::at(second)).remaining(), Duration::ZERO);
        assert_eq!(deadline.later_by(second).remaining(), second * 3);
        assert_eq!(deadline.sooner_by(second).remaining(), second);
        let limited = deadline.with_work_limit(second).later_by(second);
        assert_eq!(
            (limited.work_limit(), limited.remaining(), deadline.work_limit()),
            (second, second * 3, second * 2)
        );
        assert_eq!((deadline.or_after(second).whole(), limited.whole()), (second * 3, second * 3));
        assert!(!deadline.has_passed());
        deadline.passed().await;
        assert!(deadline.has_passed());
        assert_eq!(clock.now(), Instant::at(second * 3));
    }
}
