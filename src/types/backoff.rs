//! The delays between the attempts of a request.

use std::time::Duration;

/// The delay before the second attempt; later delays double.
const FIRST_DELAY: Duration = Duration::from_millis(20);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_millis(640);

/// The delays between attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::between(FIRST_DELAY, MAX_DELAY)
    }

    /// The delays between the polls of a waiter in this place: those that are first in line poll first.
    pub(crate) fn of_place(position: usize) -> Self {
        let waiters = u32::try_from(position).unwrap_or(u32::MAX).saturating_add(1);
        Self::between(FIRST_DELAY.saturating_mul(waiters).min(MAX_DELAY), MAX_DELAY)
    }

    pub(crate) fn between(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// The next delay: twice the last up to a bound, shortened at random by up to half, so that requests that failed
    /// together are not repeated together.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.longest);
        jittered(delay)
    }
}

/// The delay of a [`Backoff`] after so many failures.
pub(crate) fn delay_after(failures: u32) -> Duration {
    delay_between(FIRST_DELAY, MAX_DELAY, failures)
}

/// The delay of a [`Backoff::between`] after so many failures.
pub(crate) fn delay_between(first: Duration, longest: Duration, failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    jittered(first.saturating_mul(doubled).min(longest))
}

fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
}
