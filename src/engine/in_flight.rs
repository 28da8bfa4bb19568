//! Requests in flight, of a lease's task or of a schedule.
//!
//! Purpose: an attempt without an answer may be lost or slow. The refresh is sent again, and the answers to earlier
//! attempts still count.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use crate::store::BoxFuture;

/// The longest time that an attempt waits for its answer.
const LONGEST_LIFE: Duration = Duration::from_secs(60);

/// How long an attempt waits for its answer, if this time is left to the lease's deadline.
pub(crate) fn attempt_life(left: Duration) -> Duration {
    left.min(LONGEST_LIFE)
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
}
