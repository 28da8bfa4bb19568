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
    longest: Duration,
    mut attempt: impl FnMut(Duration) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut backoff = Backoff::new();
    let mut last = None;
    loop {
        let within = until.saturating_sub(clock.now()).min(longest);
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
    use std::cell::Cell;

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
