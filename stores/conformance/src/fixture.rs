//! What the requirements run on: a store and a key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    FencingToken, Key, LeaseId, Metadata, Sharing,
    record::{
        self, Acquire, BatchRequest, HoldLimits, Holder, LeaseRefs, LeaseSpec, Leave, Outcome, Record, Refresh,
        Release, Request, StoreClock, StoreTime, WaitSpec,
    },
    store::{AcquireId, Applied, Deadline, HandleId, HybridTime, Snapshot, Store},
};

/// How long an answer may take on a fast store: of a request, and until a change is sent to those that follow it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A ttl that does not expire during a requirement, however slow the store is, in milliseconds.
pub(super) const LONG: u64 = 600_000;
/// A ttl that expires during a requirement, in milliseconds.
const SHORT: u64 = 300;

/// A store, and a key that no other requirement uses.
#[derive(Clone)]
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: Key,
    /// The factor of all times that the requirements wait, and that a slow store could exceed.
    patience: u32,
    /// Whether the requirement has such a time, beside that of an answer.
    is_timed: Arc<AtomicBool>,
    /// The records as the state machine has them, and as they were read after each request.
    records: Arc<Mutex<BTreeMap<Key, Record>>>,
}

impl Fixture {
    pub(super) fn on(store: Arc<dyn Store>, patience: u32, is_timed: Arc<AtomicBool>) -> Self {
        let key = format!("conformance/{}", LeaseId::random()).parse().expect("the text is a key");
        Self { store, key, patience, is_timed, records: Arc::default() }
    }

    /// A ttl or a hold of so many milliseconds on a fast store.
    pub(super) fn millis(&self, millis: u64) -> u64 {
        self.is_timed.store(true, Ordering::Relaxed);
        millis.saturating_mul(self.patience.into())
    }

    /// A ttl that expires during a requirement, in milliseconds.
    pub(super) fn short(&self) -> u64 {
        self.millis(SHORT)
    }

    /// How long an answer may take.
    pub(super) fn answer_timeout(&self) -> Duration {
        ANSWER_TIMEOUT.saturating_mul(self.patience)
    }

    /// The deadline of a request that is sent now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.store.clock(), self.answer_timeout())
    }

    /// The same store with another key, which begins with this one.
    pub(super) fn beside(&self, name: &str) -> Self {
        self.with_key(format!("{}/{name}", self.key).parse().expect("the text is a key"))
    }

    /// The same store with another key.
    pub(super) fn with_key(&self, key: Key) -> Self {
        Self { key, ..self.clone() }
    }

    /// Applies a request. The record, the outcome and the mark of a change must be those of the state machine.
    pub(super) async fn applied(&self, request: Request) -> Applied {
        let applied = self.store.apply(&self.key, request.clone(), self.deadline()).await;
        let applied = applied.unwrap_or_else(|error| panic!("{request:?} must be applied: {error}"));
        let (before, after) = self.read().await;
        let at = applied.at.unwrap_or_else(|| {
            assert!(
                before.is_none() || applied.outcome == Outcome::Released,
                "{request:?} found a record, so its answer must have the time: {applied:?}"
            );
            last_change(after.as_ref())
        });
        let expected = record::apply(before.as_ref(), at, &request);
        assert_eq!((&after, &applied.outcome), (&expected.0, &expected.1), "{request:?} on {before:#?}");
        assert!(!applied.changed || before != after, "{request:?} is marked as a change, and the record is the same");
        applied
    }

    /// Applies a batch request. The record of each key and the answer must be those of the state machine.
    pub(super) async fn apply_batch(&self, leases: &LeaseRefs, batch: BatchRequest) -> bool {
        let done = self.store.apply_batch(leases, &batch, self.deadline()).await;
        let done = done.unwrap_or_else(|error| panic!("{batch:?} must be applied: {error}"));
        let mut is_applied_to_all = true;
        for (key, tokens) in leases {
            let (before, after) = self.with_key(key.clone()).read().await;
            // A change issues at most one token, which is then the version.
            let at = StoreClock {
                hlc: after.as_ref().map_or(HybridTime { seconds: 0, ordinal: 0 }, |after| after.version.into()),
                ..last_change(after.as_ref())
            };
            let expected = before.as_ref().and_then(|before| record::apply_batch(before, at, tokens, &batch));
            is_applied_to_all &= expected.is_some();
            assert_eq!(after, expected.or(before), "{batch:?} for {tokens:?} of {key}");
        }
        assert_eq!(done, is_applied_to_all, "{batch:?} for {leases:?}: the answer must be whether all were applied");
        done
    }

    /// Reads the record. Returns it as it was before the last request, and as it is.
    async fn read(&self) -> (Option<Record>, Option<Record>) {
        let after = self.seen().await.0;
        let mut records = self.records.lock().expect("no requirement panics while it has the records");
        let before = match &after {
            Some(after) => records.insert(self.key.clone(), after.clone()),
            None => records.remove(&self.key),
        };
        (before, after)
    }

    pub(super) async fn send(&self, request: Request) -> Outcome {
        self.applied(request).await.outcome
    }

    /// The token of an acquire that must be granted.
    pub(super) async fn granted(&self, acquire: Request) -> FencingToken {
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

    /// The record after the last request, if there is one.
    pub(super) fn known(&self) -> Option<Record> {
        let records = self.records.lock().expect("no requirement panics while it has the records");
        records.get(&self.key).cloned()
    }

    pub(super) fn record(&self) -> Record {
        self.known().expect("there must be a record")
    }

    pub(super) fn holders(&self) -> Vec<Holder> {
        self.record().holders
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

/// The time of the last change of a record, with the hybrid time of its second.
fn last_change(record: Option<&Record>) -> StoreClock {
    let now = record.map_or(StoreTime::default(), |record| record.last_seen);
    let seconds = u64::try_from(now.millis()).expect("the time is after 1970") / 1000;
    StoreClock { now, hlc: HybridTime { seconds, ordinal: 0 } }
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
pub(super) fn once(terms: &LeaseSpec) -> Request {
    Request::Acquire(Acquire { terms: terms.clone(), wait: None })
}

/// An acquire that waits.
pub(super) fn wait(terms: &LeaseSpec) -> Request {
    queue(terms, LONG, 100)
}

/// An acquire that waits with this wait ttl, if the queue is shorter than the limit.
pub(super) fn queue(terms: &LeaseSpec, ttl: u64, queue_limit: u32) -> Request {
    Request::Acquire(Acquire { terms: terms.clone(), wait: Some(WaitSpec { ttl, queue_limit }) })
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
