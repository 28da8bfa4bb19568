//! Concurrent attempts of one refresh, of a lease or of a batch.
//!
//! Purpose: an attempt without an answer may be lost or slow.
//!
//! Mechanism: the refresh is sent again, and the answers to earlier attempts still count. So a slow store is not sent a
//! request in vain, and a lost request is replaced.
//!
//! Invariant: at most [`MAX_ATTEMPTS`] attempts to refresh a lease are in flight at once.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use crate::{Ttl, store::BoxFuture};

/// The most attempts to refresh one lease that are in flight at once.
pub(crate) const MAX_ATTEMPTS: usize = 4;

/// The longest time that an attempt waits for its answer, and the longest time until the next attempt.
const LONGEST_LIFE: Duration = Duration::from_secs(60);
const LONGEST_RESEND: Duration = Duration::from_secs(24);

/// How long an attempt waits for its answer, if this time is left to the lease's deadline.
pub(crate) fn attempt_life(left: Duration) -> Duration {
    left.min(LONGEST_LIFE)
}

/// When the attempts of a refresh are sent.
#[derive(Debug)]
pub(crate) struct Resend {
    interval: Duration,
    /// The time between the first attempt and the second, until the first is sent.
    first: Option<Duration>,
}

impl Resend {
    /// A primary that died is replaced within seconds, so the second attempt follows soon: after a second plus
    /// `longer`, or after a sixth of the ttl if that is less. Later attempts are apart by a third of the time from the
    /// refresh to the deadline, so that [`MAX_ATTEMPTS`] are enough.
    pub(crate) fn of(ttl: Ttl, longer: Duration) -> Self {
        let ttl = ttl.duration();
        let (sixth, third) = (ttl.checked_div(6), ttl.saturating_mul(2).checked_div(9));
        let first = Duration::from_secs(1).saturating_add(longer).min(sixth.unwrap_or_default());
        Self { interval: third.unwrap_or_default().min(LONGEST_RESEND), first: Some(first) }
    }

    /// Keeps at least this time between attempts.
    pub(crate) fn no_sooner(self, than: Duration) -> Self {
        Self { interval: self.interval.max(than), first: self.first.map(|first| first.max(than)) }
    }

    /// The time between the attempt that is sent now and the next one.
    pub(crate) fn next(&mut self) -> Duration {
        self.first.take().unwrap_or(self.interval)
    }

    /// The time between later attempts.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Skips the short time after the first attempt, because a batch has just sent a refresh of the lease.
    pub(crate) fn skip_first(&mut self) {
        self.first = self.first.map(|_| self.interval);
    }

    /// Whether no attempt was sent yet.
    pub(crate) fn is_unused(&self) -> bool {
        self.first.is_some()
    }
}

/// Requests that are in flight.
pub(crate) struct InFlight<T>(Vec<BoxFuture<T>>);

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> InFlight<T> {
    pub(crate) fn push(&mut self, request: BoxFuture<T>) {
        self.0.push(request);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for the next answer. If nothing is in flight, it waits for ever.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no answer.
    pub(crate) async fn next(&mut self) -> T {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        for at in 0..self.0.len() {
            if let Some(request) = self.0.get_mut(at)
                && let Poll::Ready(answer) = request.as_mut().poll(context)
            {
                drop(self.0.swap_remove(at));
                if self.0.is_empty() {
                    // Frees the memory: most leases have nothing in flight most of the time.
                    self.0 = Vec::new();
                }
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64, answer: u8) -> BoxFuture<u8> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            answer
        })
    }

    #[tokio::test(start_paused = true)]
    async fn answers_come_in_the_order_in_which_they_are_ready_and_none_is_lost() {
        let mut requests = InFlight::default();
        for (millis, answer) in [(30, 1), (10, 2), (20, 3)] {
            requests.push(after(millis, answer));
        }
        tokio::time::timeout(Duration::from_millis(5), requests.next()).await.unwrap_err();
        assert_eq!([requests.next().await, requests.next().await, requests.next().await], [2, 3, 1]);
        assert!(requests.is_empty());
        tokio::time::timeout(Duration::from_secs(1), requests.next()).await.unwrap_err();
    }

    #[test]
    fn no_more_than_four_attempts_are_sent_in_the_life_of_one() {
        for millis in [10, 1_500, 2_400, 6_000, 30_000, 60_000, 100_000, 3_600_000, 365 * 24 * 3_600_000] {
            let ttl = Ttl::try_from(Duration::from_millis(millis)).unwrap();
            let life = attempt_life(ttl.third().saturating_mul(2));
            let mut resend = Resend::of(ttl, Duration::ZERO);
            let mut sent = vec![Duration::ZERO];
            while sent.len() < 40 {
                sent.push(*sent.last().unwrap() + resend.next());
            }
            for (number, at) in sent.iter().enumerate() {
                let alive = sent[..=number].iter().filter(|other| **other + life > *at).count();
                assert!(alive <= MAX_ATTEMPTS, "{ttl:?}: {alive} at {at:?}");
            }
        }
    }
}
