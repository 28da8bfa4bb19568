//! What the requirements run on: a store and a key.

use std::{sync::Arc, time::Duration};

use crate::{
    record::{
        Acquire, HoldLimits, Holder, LeaseSpec, Leave, Outcome, Record, Refresh, Release, Request, StoreClock,
        StoreTime, WaitSpec,
    },
    store::{
        Store,
        answers::{Applied, Snapshot},
    },
    types::{
        acquire_id::{AcquireId, HandleId},
        deadline::Deadline,
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        sharing::Sharing,
        token::{FencingToken, HybridTime},
    },
};

/// How long a request may take.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A ttl that does not expire during a requirement, in milliseconds.
pub(super) const LONG: u64 = 60_000;
/// A ttl that expires during a requirement, in milliseconds.
pub(super) const SHORT: u64 = 300;

/// A store, and a key that no other requirement uses.
#[derive(Clone)]
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: Key,
}

impl Fixture {
    pub(super) fn on(store: Arc<dyn Store>) -> Self {
        let key = format!("conformance/{}", LeaseId::random()).parse().expect("the text is a key");
        Self { store, key }
    }

    /// The deadline of a request that is sent now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.store.clock(), REQUEST_TIMEOUT)
    }

    /// The same store with another key, which begins with this one.
    pub(super) fn beside(&self, name: &str) -> Self {
        let key = format!("{}/{name}", self.key).parse().expect("the text is a key");
        Self { store: self.store.clone(), key }
    }

    pub(super) async fn applied(&self, request: impl Into<Request>) -> Applied {
        let request = request.into();
        let applied = self.store.apply(&self.key, request.clone(), self.deadline()).await;
        applied.unwrap_or_else(|error| panic!("{request:?} must be applied: {error}"))
    }

    pub(super) async fn send(&self, request: impl Into<Request>) -> Outcome {
        self.applied(request).await.outcome
    }

    /// The token of an acquire that must be granted.
    pub(super) async fn granted(&self, acquire: Acquire) -> FencingToken {
        match self.send(acquire).await {
            Outcome::Granted { token, .. } => token,
            other => panic!("a free key must be granted, not {other:?}"),
        }
    }

    /// The record, if there is one, and the store's time of the read.
    pub(super) async fn seen(&self) -> (Option<Record>, Option<StoreClock>) {
        match self.store.read(&self.key, self.deadline()).await.expect("the record must be readable") {
            None => (None, None),
            Some(Snapshot { record, at }) => (Some(*record), Some(at)),
        }
    }

    pub(super) async fn record(&self) -> Record {
        self.seen().await.0.expect("there must be a record")
    }

    /// The time of the last change of the record, with the tick of its second.
    pub(super) async fn last_change(&self) -> StoreClock {
        let now = self.record().await.last_seen;
        let seconds = u64::try_from(now.millis()).expect("the time is after 1970") / 1000;
        StoreClock { now, tick: HybridTime { seconds, ordinal: 0 } }
    }

    pub(super) async fn holders(&self) -> Vec<Holder> {
        self.record().await.holders
    }

    /// Waits until the store's clock has passed `time`.
    pub(super) async fn pass(&self, time: StoreTime) {
        loop {
            let now = self.seen().await.1.expect("there must be a record").now;
            if now >= time {
                return;
            }
            tokio::time::sleep(time.since(now).max(Duration::from_millis(1))).await;
        }
    }
}

/// The spec of a new lease with a long ttl.
pub(super) fn terms() -> LeaseSpec {
    LeaseSpec {
        lease: LeaseId::random(),
        acquire_id: AcquireId { handle: HandleId::random(), number: 1 },
        owner: "conformance".parse().expect("the text is an owner"),
        sharing: Sharing::Exclusive,
        ttl: LONG,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    }
}

/// An acquire that does not wait.
pub(super) fn once(terms: &LeaseSpec) -> Acquire {
    Acquire { terms: terms.clone(), wait: None }
}

/// An acquire that waits.
pub(super) fn wait(terms: &LeaseSpec) -> Acquire {
    Acquire { terms: terms.clone(), wait: Some(WaitSpec { ttl: LONG, queue_limit: 100 }) }
}

pub(super) fn refresh(terms: &LeaseSpec) -> Request {
    Request::Refresh(Refresh {
        lease: terms.lease,
        ttl: terms.ttl,
        grace: terms.grace,
        metadata: None,
        acquire_id: None,
    })
}

pub(super) fn release(terms: &LeaseSpec, token: FencingToken) -> Request {
    Request::Release(Release { lease: terms.lease, token })
}

/// Returns what an acquire of this spec was granted, or its place in the queue.
pub(super) fn leave(terms: &LeaseSpec) -> Request {
    Request::Leave(Leave { lease: terms.lease, acquire_id: terms.acquire_id })
}

impl From<Acquire> for Request {
    fn from(acquire: Acquire) -> Self {
        Self::Acquire(acquire)
    }
}
