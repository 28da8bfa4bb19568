//! Requests of one lease, or of one batch, that are under way at once.
//!
//! A request that is not answered may be lost, or slow. So it is sent again and the first one is still listened to:
//! a store that is slow is not asked in vain, and one that lost a request is asked anew.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use crate::{Ttl, store::BoxFuture};

/// The most attempts to refresh one lease that are under way at once.
pub(crate) const MAX_ATTEMPTS: usize = 4;

/// The longest time that an attempt is listened to, and the longest time until the next one is sent.
const LONGEST_LIFE: Duration = Duration::from_secs(60);
const LONGEST_RESEND: Duration = Duration::from_secs(24);

/// How long an unanswered attempt is listened to, of a lease with this time to its deadline.
pub(crate) fn attempt_life(left: Duration) -> Duration {
    left.min(LONGEST_LIFE)
}

/// When the next of several attempts is sent.
#[derive(Debug)]
pub(crate) struct Resend {
    interval: Duration,
    /// The time after the first attempt, until that is sent.
    first: Option<Duration>,
}

impl Resend {
    /// A primary that died without a word is replaced within seconds, so the second attempt follows soon: after a second
    /// or a sixth of the ttl. Those after it are spread to the deadline, a third of the time from the refresh to it apart:
    /// so [`MAX_ATTEMPTS`] are enough. `longer` is added to the second.
    pub(crate) fn of(ttl: Ttl, longer: Duration) -> Self {
        let ttl = ttl.duration();
        let (sixth, third) = (ttl.checked_div(6), ttl.saturating_mul(2).checked_div(9));
        let first = Duration::from_secs(1).saturating_add(longer).min(sixth.unwrap_or_default());
        Self { interval: third.unwrap_or_default().min(LONGEST_RESEND), first: Some(first) }
    }

    /// The same, but no sooner than this after the attempt before.
    pub(crate) fn no_sooner(self, than: Duration) -> Self {
        Self { interval: self.interval.max(than), first: self.first.map(|first| first.max(than)) }
    }

    /// How long to wait for an answer to the attempt that is sent now.
    pub(crate) fn next(&mut self) -> Duration {
        self.first.take().unwrap_or(self.interval)
    }

    /// How long it is between two attempts, the first two excepted.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Skips the short time after the first attempt, for a lease of which others have just asked.
    pub(crate) fn skip_first(&mut self) {
        self.first = self.first.map(|_| self.interval);
    }

    /// Whether no attempt was sent.
    pub(crate) fn is_unused(&self) -> bool {
        self.first.is_some()
    }
}

/// Requests that are under way.
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

    /// Waits for the next answer; for ever if nothing is under way.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
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
                    // Most leases have nothing under way most of the time.
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
