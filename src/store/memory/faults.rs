//! Faults of a store in memory, for tests of the code that uses leases. Feature `test-util`.
//!
//! Mechanism: each request and each stream of a [`MemoryStore`] passes its [`Link`]. A test cuts the link, delays its
//! replies, or lets it lose one.
//!
//! Invariant: a request is applied once or not at all, and before its reply is delayed or lost, as on a server.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::MemoryStore;
use crate::{
    record::{self, Acquire, HoldLimits, LeaseSpec, Request},
    types::{
        acquire_id::{AcquireId, HandleId},
        clock::ManualClock,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        owner::Owner,
        sharing::Sharing,
        token::FencingToken,
        ttl::{Ttl, millis},
    },
};

/// What handles send to the records and receive from them passes here.
#[derive(Debug, Default)]
pub(super) struct Link {
    faults: watch::Sender<Faults>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    is_cut: bool,
    /// How long each reply is under way.
    delay: Duration,
    /// How many of the next replies are lost.
    lost_replies: u32,
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
        if arrives_at < deadline.reading() { answer } else { Err(unreachable_store()) }
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

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        self.faults.send_modify(change);
    }
}

fn unreachable_store() -> Error {
    Error::unavailable("the store in memory did not answer, because a test has broken its link: restore the link")
}

/// For tests of the code that uses leases: see [`testing`](crate::testing).
impl MemoryStore {
    /// Creates an empty store whose time is that of `clock`, with the default retention.
    #[must_use]
    pub fn on_clock(clock: ManualClock) -> Self {
        Self { clock: clock.into(), ..Self::default() }
    }

    /// Returns another link to the same records, without the faults of this one. So a test cuts one handle off, and another
    /// handle reaches the records.
    #[must_use]
    pub fn link(&self) -> Self {
        Self { link: Arc::default(), ..self.clone() }
    }

    /// Cuts the link, or restores it. While it is cut, no request arrives, each ends in
    /// [`Error::Unavailable`](crate::Error::Unavailable) at its deadline, and waiters poll.
    ///
    /// All clones of this store have the same link. [`link`](Self::link) makes another one.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.link.change(|faults| faults.is_cut = !is_reachable);
    }

    /// Delays each later reply by this time, and removes the delay if it is zero. A request whose reply comes after its
    /// deadline is applied, and ends in [`Error::Unavailable`](crate::Error::Unavailable).
    pub fn delay_replies(&self, by: Duration) {
        self.link.change(|faults| faults.delay = by);
    }

    /// Lets the reply to the next request get lost, after the request was applied. That can be a refresh of the background
    /// task. A second call before that request lets two replies get lost.
    pub fn lose_next_reply(&self) {
        self.link.change(|faults| faults.lost_replies = faults.lost_replies.saturating_add(1));
    }

    /// Grants the key to another lease, as if its holders had expired while they were paused, and returns the new token. No
    /// holder is notified: each learns it with its next refresh, as
    /// [`LossCause::TakenOver`](crate::LossCause::TakenOver). The queue stays.
    ///
    /// The other lease has a ttl of 30 seconds, and nothing refreshes it.
    #[allow(clippy::must_use_candidate, reason = "a test may need no write of the other lease")]
    pub fn take_over(&self, key: &Key) -> FencingToken {
        let terms = LeaseSpec {
            lease: LeaseId::random(),
            acquire_id: AcquireId { handle: HandleId::random(), number: 0 },
            owner: Owner::of_this_process(),
            sharing: Sharing::Exclusive,
            ttl: millis(Ttl::DEFAULT.duration()),
            grace: 0,
            group: None,
            metadata: Metadata::default(),
            hold: HoldLimits::default(),
        };
        let acquire = Request::Acquire(Acquire { terms, wait: None });
        self.with(|records, at| {
            let mut before = records.by_key.get(key).cloned();
            let queue = before.as_mut().map(|record| {
                record.holders.clear();
                mem::take(&mut record.queue)
            });
            let (Some(mut after), _granted) = record::apply(before.as_ref(), at, &acquire) else {
                unreachable!("an acquire makes a record");
            };
            after.queue = queue.unwrap_or_default();
            let token = after.version;
            records.followers.send(key, Some(&after), at);
            records.by_key.insert(key.clone(), after);
            token
        })
    }
}
