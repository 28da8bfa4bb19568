//! Faults of a store in memory, for tests of the code that uses leases. Feature `test-util`.
//!
//! Mechanism: a test cuts the link of a [`MemoryStore`], delays its replies, or lets it lose one: see `memory/link.rs`.

use std::{mem, sync::Arc, time::Duration};

use super::MemoryStore;
use crate::{
    record::{self, Acquire, HoldLimits, LeaseSpec, Request},
    types::{
        acquire_id::{AcquireId, HandleId},
        clock::{Clock, ManualClock},
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        owner::Owner,
        sharing::Sharing,
        token::FencingToken,
        ttl::{Ttl, millis},
    },
};

/// For tests of the code that uses leases: see [`testing`](crate::testing).
impl MemoryStore {
    /// Creates an empty store whose time is that of `clock`, with the default retention.
    #[must_use]
    pub fn on_clock(clock: ManualClock) -> Self {
        Self { clock: Clock::Manual(clock), ..Self::default() }
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
        self.link.faults.send_modify(|faults| faults.is_cut = !is_reachable);
    }

    /// Delays each later reply by this time, and removes the delay if it is zero. A request whose reply comes after its
    /// deadline is applied, and ends in [`Error::Unavailable`](crate::Error::Unavailable).
    pub fn delay_replies(&self, by: Duration) {
        self.link.faults.send_modify(|faults| faults.delay = by);
    }

    /// Lets the reply to the next request get lost, after the request was applied. That can be a refresh of the background
    /// task. A second call before that request lets two replies get lost.
    pub fn lose_next_reply(&self) {
        self.link.faults.send_modify(|faults| faults.lost_replies = faults.lost_replies.saturating_add(1));
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
            records.put(key.clone(), after, at);
            token
        })
    }
}
