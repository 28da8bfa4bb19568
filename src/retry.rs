//! Asking again until somebody knows.

use std::time::Duration;

use crate::{Clock, Error, Result};

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

/// Calls `attempt`, giving it how long it may take, until it answers with anything but
/// [`Error::Unavailable`] or the clock reads `until`; then the last error is the answer, or the one
/// before where the last attempt only ran out of what time was left.
///
/// # Cancel safety
///
/// As `attempt`.
pub(crate) async fn until_definite<T, F>(
    clock: Clock,
    until: Duration,
    limit: impl Into<Limit>,
    mut attempt: impl FnMut(Duration) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (mut limit, mut backoff) = (limit.into(), Backoff::new());
    let mut last = None;
    loop {
        let left = until.saturating_sub(clock.now());
        let longest = limit.next(left);
        let within = left.min(longest);
        let error = match attempt(within).await {
            Err(error @ Error::Unavailable { .. }) => error,
            definite => return definite,
        };
        let error = last.take().filter(|_| within < longest).unwrap_or(error);
        let next = clock.now().saturating_add(backoff.next());
        if next >= until {
            return Err(error);
        }
        last = Some(error);
        clock.sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_store_is_asked_until_the_end_and_not_beyond() {
        let clock = Clock::tokio();
        let until = Duration::from_secs(5);
        let asked = Cell::new(0);
        let result: Result<()> = until_definite(clock, until, until, |within| {
            asked.set(asked.get() + 1);
            assert!(within <= until && !within.is_zero());
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
            let until = clock.now().saturating_add(Duration::from_secs(all));
            let hung: Result<()> =
                until_definite(clock, until, Limit::growing(Duration::from_secs(longest)), |within| {
                    asked.borrow_mut().push(within.as_secs());
                    async move {
                        clock.sleep_until(clock.now().saturating_add(within)).await;
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
        let result: Result<()> = until_definite(Clock::tokio(), Duration::MAX, Duration::MAX, |_| {
            asked.set(asked.get() + 1);
            async { Err(Error::invalid("wrong")) }
        })
        .await;
        assert!(matches!(result, Err(Error::Invalid { .. })));
        assert_eq!(asked.get(), 1);
    }
}
