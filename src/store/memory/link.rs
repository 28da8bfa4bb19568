//! The link between a store in memory and its handles.
//!
//! Purpose: a test of the code that uses leases breaks the link, as a network does.
//!
//! Mechanism: each request and each stream passes the [`Link`], which delays, loses or refuses by its [`Faults`]. Without
//! the feature `test-util` it has none.
//!
//! Invariant: a request is applied once or not at all, and before its reply is delayed or lost, as on a server.

use std::time::Duration;

use tokio::sync::watch;

use crate::types::{
    deadline::Deadline,
    error::{Error, Result},
};

/// What handles send to the records and receive from them passes here.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) faults: watch::Sender<Faults>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) is_cut: bool,
    /// How long each reply is under way.
    pub(super) delay: Duration,
    /// How many of the next replies are lost.
    pub(super) lost_replies: u32,
}

impl Link {
    /// Sends a request, which `act` applies, and waits for the reply.
    pub(super) async fn carry<T>(&self, deadline: Deadline, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let Faults { is_cut, mut delay, .. } = *self.faults.borrow();
        if is_cut {
            deadline.passed().await;
            return Err(unreachable_store());
        }
        let answer = act();
        self.faults.send_if_modified(|faults| {
            if faults.lost_replies > 0 {
                (faults.lost_replies, delay) = (faults.lost_replies.saturating_sub(1), Duration::MAX);
            }
            false
        });
        if delay.is_zero() {
            return answer;
        }
        let arrives_at = deadline.clock().now().after(delay);
        let in_time = deadline.or_at(arrives_at);
        in_time.passed().await;
        if arrives_at < deadline.instant() { answer } else { Err(unreachable_store()) }
    }

    /// Passes a stream on until it ends or the link is cut.
    pub(super) async fn pass(&self, stream: impl Future<Output = ()>) -> Result<()> {
        let mut faults = self.faults.subscribe();
        tokio::select! {
            biased;
            _cut = faults.wait_for(|faults| faults.is_cut) => Err(unreachable_store()),
            () = stream => Ok(()),
        }
    }
}

fn unreachable_store() -> Error {
    Error::unavailable("the store in memory did not answer, because a test has broken its link: restore the link")
}
