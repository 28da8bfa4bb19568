//! A store on the bench.

use std::{sync::Arc, time::Duration};

use crate::{
    AcquireId, Deadline, FencingToken, HandleId, Key, LeaseId, Metadata,
    record::{
        Acquire, Holder, LeaseSpec, Leave, Outcome, Record, Refresh, Release, Request, StoreClock, StoreTime, WaitSpec,
    },
    store::{Applied, Snapshot, Store},
};

/// How long a request may take.
pub(super) const LONGEST_REQUEST: Duration = Duration::from_secs(10);
/// A ttl that does not pass in a test.
pub(super) const LONG: u64 = 60_000;
/// One that does, in milliseconds.
pub(super) const SHORT: u64 = 300;

/// A store, and a key of one's own on it.
#[derive(Clone)]
pub(super) struct Bench {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: Key,
}

impl Bench {
    pub(super) fn on(store: Arc<dyn Store>) -> Self {
        let key = format!("conformance/{}", LeaseId::random()).parse().expect("it is a key");
        Self { store, key }
    }

    /// The deadline of a request that is sent now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.store.clock(), LONGEST_REQUEST)
    }

    /// The same store with another key, one of those that begin with this one.
    pub(super) fn beside(&self, name: &str) -> Self {
        let key = format!("{}/{name}", self.key).parse().expect("it is a key");
        Self { store: self.store.clone(), key }
    }

    pub(super) async fn applied(&self, request: impl Into<Request>) -> Applied {
        let request = request.into();
        let applied = self.store.apply(&self.key, request.clone(), self.deadline()).await;
        applied.unwrap_or_else(|error| panic!("{request:?} is applied: {error}"))
    }

    pub(super) async fn send(&self, request: impl Into<Request>) -> Outcome {
        self.applied(request).await.outcome
    }

    /// The token of a request that is granted.
    pub(super) async fn granted(&self, acquire: Acquire) -> FencingToken {
        match self.send(acquire).await {
            Outcome::Granted { token } => token,
            other => panic!("a free key is granted, and not {other:?}"),
        }
    }

    /// The record, if there is one, and when it was read.
    pub(super) async fn seen(&self) -> (Option<Record>, Option<StoreClock>) {
        match self.store.read(&self.key, self.deadline()).await.expect("the record can be read") {
            None => (None, None),
            Some(Snapshot { record, at }) => (Some(*record), Some(at)),
        }
    }

    pub(super) async fn record(&self) -> Record {
        self.seen().await.0.expect("there is a record")
    }

    pub(super) async fn holders(&self) -> Vec<Holder> {
        self.record().await.holders
    }

    /// Waits until the store's clock has passed `time`.
    pub(super) async fn pass(&self, time: StoreTime) {
        loop {
            let now = self.seen().await.1.expect("there is a record").now;
            if now >= time {
                return;
            }
            tokio::time::sleep(time.since(now).max(Duration::from_millis(1))).await;
        }
    }
}

/// Terms of a new lease that lasts.
pub(super) fn terms() -> LeaseSpec {
    LeaseSpec {
        lease: LeaseId::random(),
        caller: AcquireId { handle: HandleId::random(), number: 1 },
        owner: "conformance".parse().expect("it is an owner"),
        limit: 0,
        ttl: LONG,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
    }
}

/// Asks once.
pub(super) fn once(terms: &LeaseSpec) -> Acquire {
    Acquire { terms: terms.clone(), wait: None }
}

/// Asks and waits.
pub(super) fn wait(terms: &LeaseSpec) -> Acquire {
    Acquire { terms: terms.clone(), wait: Some(WaitSpec { ttl: LONG, queue_limit: 100 }) }
}

pub(super) fn refresh(terms: &LeaseSpec) -> Request {
    Request::Refresh(Refresh { lease: terms.lease, ttl: terms.ttl, grace: terms.grace, metadata: None })
}

pub(super) fn release(terms: &LeaseSpec, token: FencingToken) -> Request {
    Request::Release(Release { lease: terms.lease, token })
}

/// Gives back what an acquire of these terms was granted, or its place in the queue.
pub(super) fn leave(terms: &LeaseSpec) -> Request {
    Request::Leave(Leave { lease: terms.lease, caller: terms.caller })
}

impl From<Acquire> for Request {
    fn from(acquire: Acquire) -> Self {
        Self::Acquire(acquire)
    }
}
