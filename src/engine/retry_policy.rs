//! What to do where a key is held: give up, wait in the queue, or try again.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Error, FencingToken, Owner, Result, engine::retry::Backoff};

/// What to do where a key is held, checked.
#[derive(Clone, Debug)]
pub(crate) enum OnHeld {
    /// One attempt.
    Once,
    /// Waits in the queue so long.
    Wait(Duration),
    /// Attempts, without a place in the queue.
    Retry(Retry),
}

impl OnHeld {
    /// What was set, if anything was.
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

    /// A wait of up to this long. Zero is one attempt.
    pub(crate) fn wait(at_most: Duration) -> Self {
        if at_most.is_zero() { Self::Once } else { Self::Wait(at_most) }
    }
}

/// When to ask again for a key that is held, instead of waiting in its queue.
///
/// [`Acquire::wait`](crate::Acquire::wait) is fair, faster and sends fewer requests; attempts are for
/// those who want to decide each time. Whoever waits in the queue comes before whoever tries again.
///
/// Only a key that is held is tried again by this policy: [`Error::Held`]. Any other error surfaces
/// at once as what it is. Where the policy ends, the error is [`Error::RetriesExhausted`].
///
/// A policy must have an end: a number of [`attempts`](Self::attempts), a [`max_elapsed`](Self::max_elapsed) time,
/// or a closure, which can stop. [`unlimited`](Self::unlimited) says that it has none.
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
/// // Asks again when the holder's time is over, unless that is long.
/// let patient = Retry::custom(|attempt| Some(attempt.remaining).filter(|left| left.as_secs() < 5));
/// assert!(seal.acquire("reports/nightly").retry(patient).await.is_err());
/// # held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a policy does nothing until it is given to an acquire or to a handle"]
pub struct Retry {
    delays: Delays,
    attempts: Option<u32>,
    max_elapsed: Option<Duration>,
    unlimited: bool,
}

/// What a caller wrote to decide on the next delay.
type Next = dyn Fn(&Attempt) -> Option<Duration> + Send + Sync;

#[derive(Clone)]
enum Delays {
    Fixed(Duration),
    Exponential { first: Duration, longest: Duration },
    Custom(Arc<Next>),
}

impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(delay) => f.debug_tuple("Fixed").field(delay).finish(),
            Self::Exponential { first, longest } => {
                f.debug_struct("Exponential").field("first", first).field("longest", longest).finish()
            }
            Self::Custom(_) => f.write_str("Custom(..)"),
        }
    }
}

/// An attempt that found the key held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Which attempt it was; the first is 1.
    pub number: u32,
    /// How long it is since the first attempt began.
    pub elapsed: Duration,
    /// How long was waited before this attempt. `None` before the first.
    pub previous_delay: Option<Duration>,
    /// Who holds the key.
    pub owner: Owner,
    /// The holder's token.
    pub token: FencingToken,
    /// How long the holder keeps the key if it is not refreshed, by the store's clock.
    pub remaining: Duration,
}

impl Retry {
    /// Asks again after the same delay each time.
    pub fn fixed(delay: Duration) -> Self {
        Self::new(Delays::Fixed(delay))
    }

    /// Asks again after delays that double from `first` to `longest`, each less up to half of it by
    /// chance, so that those who failed together do not come back together.
    pub fn exponential(first: Duration, longest: Duration) -> Self {
        Self::new(Delays::Exponential { first, longest })
    }

    /// Asks again after the delay that `next` answers with; `None` stops. It is called on the task
    /// that asks and should not block. If it panics, so does whoever awaits the acquire.
    pub fn custom(next: impl Fn(&Attempt) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self::new(Delays::Custom(Arc::new(next)))
    }

    fn new(delays: Delays) -> Self {
        Self { delays, attempts: None, max_elapsed: None, unlimited: false }
    }

    /// At most so many attempts, the first included.
    pub fn attempts(mut self, at_most: u32) -> Self {
        self.attempts = Some(at_most);
        self
    }

    /// No attempt begins later than this after the first.
    pub fn max_elapsed(mut self, at_most: Duration) -> Self {
        self.max_elapsed = Some(at_most);
        self
    }

    /// Until the key is granted: what a policy without an end has to say.
    pub fn unlimited(mut self) -> Self {
        self.unlimited = true;
        self
    }

    /// Refuses what contradicts itself and what would go on without an end by accident.
    fn checked(self) -> Result<Self> {
        let bounded = self.attempts.is_some() || self.max_elapsed.is_some();
        let first = match self.delays {
            Delays::Fixed(delay) => Some(delay),
            Delays::Exponential { first, longest } if first > longest => {
                return Err(Error::invalid(format!(
                    "a retry cannot begin with a delay of {first:?} and have none longer than {longest:?}: swap them"
                )));
            }
            Delays::Exponential { first, .. } => Some(first),
            Delays::Custom(_) => None,
        };
        if self.attempts == Some(0) {
            return Err(Error::invalid("a retry of 0 attempts asks nothing: the first attempt counts, so 1 or more"));
        }
        if self.unlimited && bounded {
            return Err(Error::invalid(
                "`unlimited` is set together with `attempts` or `max_elapsed`: set one or the other",
            ));
        }
        let Some(first) = first else { return Ok(self) };
        if first.is_zero() {
            return Err(Error::invalid(
                "a retry with a delay of zero keeps the store busy: 20 milliseconds or more are usual",
            ));
        }
        if !bounded && !self.unlimited {
            return Err(Error::invalid(
                "this retry has no end: give it a number of `attempts`, a `max_elapsed` time, or say `unlimited`",
            ));
        }
        if let Some(max_elapsed) = self.max_elapsed.filter(|max_elapsed| *max_elapsed < first) {
            return Err(Error::invalid(format!(
                "a retry whose first delay is {first:?} never asks again within {max_elapsed:?}: shorten the delay"
            )));
        }
        Ok(self)
    }
}

/// A policy at work.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    policy: &'a Retry,
    backoff: Backoff,
    made: u32,
    previous_delay: Option<Duration>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn of(policy: &'a Retry) -> Self {
        let backoff = match policy.delays {
            Delays::Exponential { first, longest } => Backoff::between(first, longest),
            Delays::Fixed(_) | Delays::Custom(_) => Backoff::new(),
        };
        Self { policy, backoff, made: 0, previous_delay: None }
    }

    /// How long to wait after an attempt that ended with `error`, `elapsed` after the first began; or
    /// the error that is the end of it.
    pub(crate) fn next(&mut self, error: Error, elapsed: Duration) -> Result<Duration> {
        let Error::Held { key, owner, token, remaining } = &error else { return Err(error) };
        self.made = self.made.saturating_add(1);
        let attempt = Attempt {
            number: self.made,
            elapsed,
            previous_delay: self.previous_delay,
            owner: owner.clone(),
            token: *token,
            remaining: *remaining,
        };
        let policy = self.policy;
        let next = match &policy.delays {
            Delays::Fixed(delay) => Some(*delay),
            Delays::Exponential { .. } => Some(self.backoff.next()),
            Delays::Custom(next) => next(&attempt),
        };
        let next = next.filter(|delay| {
            policy.attempts.is_none_or(|attempts| self.made < attempts)
                && policy.max_elapsed.is_none_or(|max_elapsed| elapsed.saturating_add(*delay) <= max_elapsed)
        });
        self.previous_delay = next;
        let key = key.clone();
        next.ok_or_else(|| Error::RetriesExhausted { key, attempts: attempt.number, elapsed, held: Box::new(error) })
    }
}
