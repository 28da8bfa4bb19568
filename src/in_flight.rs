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

/// How long an unanswered attempt is listened to. With a refresh at a third of the ttl, a constant round trip of two
/// fifths of the ttl is within it and leaves a fifth.
pub(crate) fn attempt_life(ttl: Ttl) -> Duration {
    twelfths(ttl, 5).min(LONGEST_LIFE)
}

/// How long after an unanswered attempt the next one is sent; the first time after a second at most. A primary that died
/// without a word is replaced within seconds. In the life of an attempt no more than [`MAX_ATTEMPTS`] are sent.
pub(crate) fn resend_interval(ttl: Ttl) -> Duration {
    twelfths(ttl, 2).min(LONGEST_RESEND)
}

fn twelfths(ttl: Ttl, many: u32) -> Duration {
    ttl.duration().saturating_mul(many).checked_div(12).unwrap_or_default()
}

/// When the next of several attempts is sent.
#[derive(Debug)]
pub(crate) struct Resend {
    interval: Duration,
    /// Of the first attempt, until it is sent.
    first: Option<Duration>,
}

impl Resend {
    /// `first` is added to the second after which the first attempt is sent again.
    pub(crate) fn of(ttl: Ttl, first: Duration) -> Self {
        let interval = resend_interval(ttl);
        Self { interval, first: Some(interval.min(Duration::from_secs(1).saturating_add(first))) }
    }

    /// The same, but no sooner than this after the attempt before.
    pub(crate) fn no_sooner(self, than: Duration) -> Self {
        Self { interval: self.interval.max(than), first: self.first.map(|first| first.max(than)) }
    }

    /// How long to wait for an answer to the attempt that is sent now.
    pub(crate) fn next(&mut self) -> Duration {
        self.first.take().unwrap_or(self.interval)
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
    fn no_more_than_four_attempts_are_sent_in_the_life_of_one_and_one_lasts_for_two_fifths_of_the_ttl() {
        for millis in [10, 1_500, 2_400, 6_000, 30_000, 3_600_000, 365 * 24 * 3_600_000] {
            let ttl = Ttl::try_from(Duration::from_millis(millis)).unwrap();
            let life = attempt_life(ttl);
            assert!(life >= ttl.duration().mul_f64(0.4).min(LONGEST_LIFE), "{ttl:?}");
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
