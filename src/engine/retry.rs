//! Retries a request until its outcome is known.
//!
//! Mechanism: an attempt that ends with [`Error::Unavailable`] is repeated after a growing random delay, until a
//! deadline. Any other result is definite.

use std::time::Duration;

pub(crate) use crate::types::backoff::{Backoff, delay_after};
use crate::types::{
    deadline::Deadline,
    error::{Error, Result},
};

/// How long each attempt may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    next: Duration,
    longest: Duration,
}

impl Limit {
    /// The limit of the first attempt. A primary that died is replaced within seconds, and an attempt that waits for
    /// the old one does not reach the new one.
    pub(crate) const FIRST_LIMIT: Duration = Duration::from_secs(1);

    /// A short limit at first, because a request takes milliseconds if all is well, and twice the limit each time. An
    /// attempt gets the whole limit as soon as one such attempt would not fit after it, so that a slow store can
    /// answer. Not for an acquire: an abandoned one that is executed later leaves a key held without a holder.
    pub(crate) fn growing(longest: Duration) -> Self {
        Self { next: longest.min(Self::FIRST_LIMIT), longest }
    }

    /// The limit of the next attempt, if this time is left.
    pub(crate) fn next(&mut self, left: Duration) -> Duration {
        if left.saturating_sub(self.next) < self.longest {
            self.next = self.longest;
        }
        let next = self.next;
        self.next = next.saturating_mul(2).min(self.longest);
        next
    }
}

/// The same limit for each attempt.
impl From<Duration> for Limit {
    fn from(longest: Duration) -> Self {
        Self { next: longest, longest }
    }
}

/// Calls `attempt` with a deadline for each attempt, until it returns anything but [`Error::Unavailable`] or `until`
/// has passed. Then it returns the last error; if the last attempt had less time than the others, it returns the error
/// before.
///
/// # Cancel safety
///
/// The same as that of `attempt`.
pub(crate) async fn until_definite<T, F>(
    until: Deadline,
    limit: impl Into<Limit>,
    mut attempt: impl FnMut(Deadline) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (mut limit, mut backoff) = (limit.into(), Backoff::new());
    let mut last = None;
    loop {
        let left = until.remaining();
        let longest = limit.next(left);
        let error = match attempt(until.or_after(longest)).await {
            Err(error @ Error::Unavailable { .. }) => error,
            definite => return definite,
        };
        let error = last.take().filter(|_| left < longest).unwrap_or(error);
        let next = Deadline::after(until.clock(), backoff.next());
        if next.instant() >= until.instant() {
            return Err(error);
        }
        last = Some(error);
        next.passed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::types::{clock::Clock, instant::Instant};

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_request_is_repeated_until_the_deadline_and_not_after() {
        let clock = Clock::tokio();
        let until = Duration::from_secs(5);
        let sent = Cell::new(0);
        let result: Result<()> = until_definite(Deadline::at(clock, Instant::at(until)), until, |deadline| {
            sent.set(sent.get() + 1);
            assert!(deadline.instant() <= Instant::at(until) && !deadline.has_passed());
            async { Err(Error::unavailable("away")) }
        })
        .await;
        assert!(matches!(result, Err(Error::Unavailable { .. })));
        assert!(clock.now() <= Instant::at(until));
        assert!((8..40).contains(&sent.get()), "{}", sent.get());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_gets_a_second_first_and_once_the_whole_limit() {
        let clock = Clock::tokio();
        let given = async |all: u64, longest: u64| {
            let sent = RefCell::new(Vec::new());
            let until = Deadline::after(clock, Duration::from_secs(all));
            let hung: Result<()> = until_definite(until, Limit::growing(Duration::from_secs(longest)), |deadline| {
                sent.borrow_mut().push(deadline.remaining().as_secs());
                async move {
                    deadline.passed().await;
                    Err(Error::unavailable("away"))
                }
            })
            .await;
            assert!(matches!(hung, Err(Error::Unavailable { .. })));
            sent.into_inner()
        };
        assert_eq!(given(30, 5).await[..5], [1, 2, 4, 5, 5]);
        assert_eq!(given(10, 5).await, [1, 2, 5, 1]);
        assert_eq!(given(5, 5).await, [5]);
        assert_eq!(given(1, 5).await, [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_definite_error_is_not_retried() {
        let sent = Cell::new(0);
        let result: Result<()> = until_definite(Deadline::at(Clock::tokio(), Instant::MAX), Duration::MAX, |_| {
            sent.set(sent.get() + 1);
            async { Err(Error::invalid("wrong")) }
        })
        .await;
        assert!(matches!(result, Err(Error::Invalid { .. })));
        assert_eq!(sent.get(), 1);
    }
}
