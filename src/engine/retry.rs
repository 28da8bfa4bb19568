//! Asking again until somebody knows.

use std::time::Duration;

use crate::{Deadline, Error, Result};

/// How long to wait before asking a second time; it doubles from there.
const FIRST: Duration = Duration::from_millis(20);
/// How long to wait at most.
const LONGEST: Duration = Duration::from_millis(640);

/// How long to wait before the next attempt.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::between(FIRST, LONGEST)
    }

    pub(crate) fn between(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// The next delay: twice the last up to a bound, less up to half of it by chance, so that
    /// those who failed together do not come back together.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.longest);
        delay.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
    }
}

/// How long each of several attempts may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    next: Duration,
    longest: Duration,
}

impl Limit {
    /// How long a request for one record may take at first. A primary that died without a word is replaced
    /// within seconds, and whoever goes on waiting for its answer does not ask the new one.
    const SHORT: Duration = Duration::from_secs(1);

    /// A short time at first, for requests that take milliseconds where all is well, and twice as long each
    /// time after that; but the whole time as soon as it would not fit in afterwards, so that a store which is
    /// slow is waited for. Not for an acquire: one that is given up and executed later holds the key for
    /// nobody.
    pub(crate) fn growing(longest: Duration) -> Self {
        Self { next: longest.min(Self::SHORT), longest }
    }

    /// How long the next attempt may take where so much time is left.
    pub(crate) fn next(&mut self, left: Duration) -> Duration {
        if left.saturating_sub(self.next) < self.longest {
            self.next = self.longest;
        }
        let next = self.next;
        self.next = next.saturating_mul(2).min(self.longest);
        next
    }
}

/// As long each time.
impl From<Duration> for Limit {
    fn from(longest: Duration) -> Self {
        Self { next: longest, longest }
    }
}

/// Calls `attempt` with the deadline of each attempt until it returns anything but [`Error::Unavailable`], or until `until`
/// has passed. Then it returns the last error; or the one before, if the last attempt had less time than others.
///
/// # Cancel safety
///
/// As `attempt`.
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
        if next.reading() >= until.reading() {
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
    use crate::Clock;

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_store_is_asked_until_the_end_and_not_beyond() {
        let clock = Clock::tokio();
        let until = Duration::from_secs(5);
        let asked = Cell::new(0);
        let result: Result<()> = until_definite(Deadline::at(clock, until), until, |deadline| {
            asked.set(asked.get() + 1);
            assert!(deadline.reading() <= until && !deadline.has_passed());
            async { Err(Error::unavailable("away")) }
        })
        .await;
        assert!(matches!(result, Err(Error::Unavailable { .. })));
        assert!(clock.now() <= until);
        assert!((8..40).contains(&asked.get()), "{}", asked.get());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_is_given_a_second_first_and_once_the_whole_time_in_any_case() {
        let clock = Clock::tokio();
        let given = async |all: u64, longest: u64| {
            let asked = RefCell::new(Vec::new());
            let until = Deadline::after(clock, Duration::from_secs(all));
            let hung: Result<()> = until_definite(until, Limit::growing(Duration::from_secs(longest)), |deadline| {
                asked.borrow_mut().push(deadline.remaining().as_secs());
                async move {
                    deadline.passed().await;
                    Err(Error::unavailable("away"))
                }
            })
            .await;
            assert!(matches!(hung, Err(Error::Unavailable { .. })));
            asked.into_inner()
        };
        assert_eq!(given(30, 5).await[..5], [1, 2, 4, 5, 5]);
        assert_eq!(given(10, 5).await, [1, 2, 5, 1]);
        assert_eq!(given(5, 5).await, [5]);
        assert_eq!(given(1, 5).await, [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_definite_error_is_not_asked_again() {
        let asked = Cell::new(0);
        let result: Result<()> = until_definite(Deadline::at(Clock::tokio(), Duration::MAX), Duration::MAX, |_| {
            asked.set(asked.get() + 1);
            async { Err(Error::invalid("wrong")) }
        })
        .await;
        assert!(matches!(result, Err(Error::Invalid { .. })));
        assert_eq!(asked.get(), 1);
    }
}
