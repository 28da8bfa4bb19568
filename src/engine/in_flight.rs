//! The requests in flight of a keeper.
//!
//! Purpose: an attempt without an answer may be lost or slow. The refresh is sent again, and the answers to earlier
//! attempts still count.
//!
//! Mechanism: the requests are in a vector, because permits bound how many there are.

use std::{future::poll_fn, task::Poll};

use crate::store::BoxFuture;

/// Waits for the next answer to these requests. If nothing is in flight, it waits for ever.
///
/// # Cancel safety
///
/// Dropping the future loses no answer.
pub(crate) async fn next_answer<T>(requests: &mut Vec<BoxFuture<T>>) -> T {
    poll_fn(|context| {
        for at in 0..requests.len() {
            if let Some(request) = requests.get_mut(at)
                && let Poll::Ready(answer) = request.as_mut().poll(context)
            {
                drop(requests.swap_remove(at));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn after(millis: u64, answer: u8) -> BoxFuture<u8> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            answer
        })
    }

    #[tokio::test(start_paused = true)]
    async fn answers_come_in_the_order_in_which_they_are_ready_and_none_is_lost() {
        let mut requests = Vec::new();
        for (millis, answer) in [(30, 1), (10, 2), (20, 3)] {
            requests.push(after(millis, answer));
        }
        tokio::time::timeout(Duration::from_millis(5), next_answer(&mut requests)).await.unwrap_err();
        assert_eq!(
            [next_answer(&mut requests).await, next_answer(&mut requests).await, next_answer(&mut requests).await],
            [2, 3, 1]
        );
        assert!(requests.is_empty());
        tokio::time::timeout(Duration::from_secs(1), next_answer(&mut requests)).await.unwrap_err();
    }
}
