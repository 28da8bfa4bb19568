//! The policies for a key that is held: one attempt, a wait in the queue, or retries.

use std::{fmt, sync::Arc, time::Duration};

use crate::types::{
    backoff::delay_between,
    duration::format_duration,
    error::{Error, Result},
    instant::Instant,
    owner::Owner,
    token::FencingToken,
};

/// What an acquire does if the key is held. Checked.
#[derive(Clone, Debug)]
pub(crate) enum OnHeld {
    /// One attempt.
    Once,
    /// Waits in the queue for up to this long.
    Wait(Duration),
    /// Retries without a place in the queue.
    Retry(Retry),
}

impl OnHeld {
    /// The setting, if there is one.
    pub(crate) fn of(wait: Option<Duration>, retry: Option<Retry>) -> Result<Option<Self>> {
        match (wait, retry) {
            (Some(_), Some(_)) => Err(Error::invalid(
                "both `wait` and `retry` are set: set one of them, `wait` if the order of arrival counts",
            )),
            (Some(wait), None) => Ok(Some(Self::wait(wait))),
            (None, Some(retry)) => retry.checked().map(|retry| Some(Self::Retry(retry))),
            (None, None) => Ok(None),
        }
    }

    /// Waits for up to this long. Zero is one attempt.
    pub(crate) fn wait(at_most: Duration) -> Self {
        if at_most.is_zero() { Self::Once } else { Self::Wait(at_most) }
    }
}

/// A policy for retrying a key that is held, instead of waiting in its queue.
///
/// [`Acquire::wait`](crate::action::Acquire::wait) is fair, faster and sends fewer requests. Retries are for callers that
/// decide after each attempt. A queued waiter is served before a caller that retries.
///
/// The policy applies to [`Error::Held`] only; any other error is returned at once. When the policy ends, the error is
/// [`Error::RetriesExhausted`].
///
/// A policy must have an end: a number of [`attempts`](Self::attempts), a [`max_elapsed`](Self::max_elapsed) time, or a
/// closure, which can stop. [`unlimited`](Self::unlimited) declares that it has none.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Error, Mongoseal, Retry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let held = seal.acquire("reports/nightly").await?;
///
/// let retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(20)).attempts(3);
/// match seal.acquire("reports/nightly").retry(retry).await {
///     Err(Error::RetriesExhausted { attempts, .. }) => assert_eq!(attempts, 3),
///     other => panic!("{other:?}"),
/// }
///
/// // Retries when the holder's time is over, unless that is long.
/// let patient = Retry::custom(|attempt| Some(attempt.free_in).filter(|left| left.as_secs() < 5));
/// assert!(seal.acquire("reports/nightly").retry(patient).await.is_err());
/// # held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a policy does nothing until it is given to an acquire or to a handle"]
pub struct Retry {
    next: Arc<Next>,
    /// The first and the longest delay, unless a closure of the caller chooses them.
    bounds: Option<(Duration, Duration)>,
    attempts: Option<u32>,
    max_elapsed: Option<Duration>,
    is_unlimited: bool,
}

/// The closure that chooses the next delay.
type Next = dyn Fn(&Attempt) -> Option<Duration> + Send + Sync;

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { next: _, bounds, attempts, max_elapsed, is_unlimited } = self;
        f.debug_struct("Retry")
            .field("bounds", bounds)
            .field("attempts", attempts)
            .field("max_elapsed", max_elapsed)
            .field("is_unlimited", is_unlimited)
            .finish_non_exhaustive()
    }
}

/// An attempt that found the key held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of the attempt; the first is 1.
    pub number: u32,
    /// The time since the first attempt began.
    pub elapsed: Duration,
    /// The delay before this attempt. `None` for the first.
    pub previous_delay: Option<Duration>,
    /// The holder's owner.
    pub owner: Owner,
    /// The holder's token.
    pub token: FencingToken,
    /// How long until the key is free if the holder does not refresh, by the store's clock.
    pub free_in: Duration,
}

impl Retry {
    /// Retries after the same delay each time.
    pub fn fixed(delay: Duration) -> Self {
        Self::of(move |_| Some(delay), Some((delay, delay)))
    }

    /// Retries after delays that double from `first` to `longest`. Each is shortened at random by up to half, so that
    /// callers that failed together do not retry together.
    pub fn exponential(first: Duration, longest: Duration) -> Self {
        Self::of(move |attempt| Some(delay_between(first, longest, attempt.number)), Some((first, longest)))
    }

    /// Retries after the delay that `next` returns; `None` stops. `next` runs on the task of the acquire and should not
    /// block. If it panics, awaiting the acquire panics, too.
    pub fn custom(next: impl Fn(&Attempt) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self::of(next, None)
    }

    fn of(
        next: impl Fn(&Attempt) -> Option<Duration> + Send + Sync + 'static,
        bounds: Option<(Duration, Duration)>,
    ) -> Self {
        Self { next: Arc::new(next), bounds, attempts: None, max_elapsed: None, is_unlimited: false }
    }

    /// Limits the number of attempts, the first included.
    pub fn attempts(mut self, at_most: u32) -> Self {
        self.attempts = Some(at_most);
        self
    }

    /// Starts no attempt later than this after the first.
    pub fn max_elapsed(mut self, at_most: Duration) -> Self {
        self.max_elapsed = Some(at_most);
        self
    }

    /// Retries until the key is granted. A policy without an end must set this.
    pub fn unlimited(mut self) -> Self {
        self.is_unlimited = true;
        self
    }

    /// Refuses a policy that contradicts itself or has no end by mistake.
    fn checked(self) -> Result<Self> {
        let is_bounded = self.attempts.is_some() || self.max_elapsed.is_some();
        if let Some((first, longest)) = self.bounds.filter(|(first, longest)| first > longest) {
            return Err(Error::invalid(format!(
                "a retry cannot have a first delay of {} and a longest delay of {}: swap them",
                format_duration(first),
                format_duration(longest)
            )));
        }
        if self.attempts == Some(0) {
            return Err(Error::invalid(
                "`attempts` cannot be 0, which sends nothing: allow 1 or more, the first attempt counts",
            ));
        }
        if self.is_unlimited && is_bounded {
            return Err(Error::invalid(
                "`unlimited` is set together with `attempts` or `max_elapsed`: set one or the other",
            ));
        }
        let Some((first, _)) = self.bounds else { return Ok(self) };
        if first.is_zero() {
            return Err(Error::invalid("a retry has a delay of zero, which keeps the store busy: set 20 ms or more"));
        }
        if !is_bounded && !self.is_unlimited {
            return Err(Error::invalid("this retry has no end: set `attempts` or `max_elapsed`, or call `unlimited`"));
        }
        if let Some(max_elapsed) = self.max_elapsed.filter(|max_elapsed| *max_elapsed < first) {
            return Err(Error::invalid(format!(
                "a retry whose first delay is {} makes no second attempt within {}: shorten the delay",
                format_duration(first),
                format_duration(max_elapsed)
            )));
        }
        Ok(self)
    }
}

/// The progress of a policy.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    policy: &'a Retry,
    /// When the first began.
    began: Instant,
    made: u32,
    previous_delay: Option<Duration>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn of(policy: &'a Retry, began: Instant) -> Self {
        Self { policy, began, made: 0, previous_delay: None }
    }

    /// Returns how long to wait after an attempt that has ended now with this error. If the policy has ended, returns the
    /// final error.
    pub(crate) fn next(&mut self, error: Error, now: Instant) -> Result<Duration> {
        let elapsed = now.since(self.began);
        let Error::Held { key, owner, token, free_in, .. } = &error else { return Err(error) };
        self.made = self.made.saturating_add(1);
        let attempt = Attempt {
            number: self.made,
            elapsed,
            previous_delay: self.previous_delay,
            owner: owner.clone(),
            token: *token,
            free_in: *free_in,
        };
        let policy = self.policy;
        let next = (policy.next)(&attempt).filter(|delay| {
            policy.attempts.is_none_or(|attempts| self.made < attempts)
                && policy.max_elapsed.is_none_or(|max_elapsed| elapsed.saturating_add(*delay) <= max_elapsed)
        });
        self.previous_delay = next;
        let key = key.clone();
        next.ok_or_else(|| Error::RetriesExhausted { key, attempts: attempt.number, elapsed, held: Box::new(error) })
    }
}
