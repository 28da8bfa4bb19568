//! Records in this process: for tests, for examples, and for programs without other processes.

#[cfg(feature = "test-util")]
mod faults;
mod follow;
mod link;

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex},
    time::Duration,
};

use follow::Followers;
use link::Link;
use tokio::sync::mpsc::{Sender, UnboundedSender};

use super::{
    BoxFuture, Store,
    answers::{Applied, FollowedState, Notification, Page, Snapshot},
    pages::list_page,
    pool::LARGE_PART,
};
use crate::{
    record::{self, BatchRequest, Filter, KeyFilter, LeaseRefs, Position, Record, Request, StoreClock, StoreTime},
    types::{
        acquire_id::HandleId,
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        lock::lock,
        token::HybridTime,
        ttl::{Ttl, millis},
    },
};

/// Records in the memory of this process, on tokio's clock, which a test can pause.
///
/// A clone shares the records. Records and tokens end with the process.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    clock: Clock,
    retention: Duration,
    records: Arc<Mutex<Records>>,
    /// What passes between handles and records. A test can break it.
    link: Arc<Link>,
}

#[derive(Debug)]
struct Records {
    /// In the order of keys, so that a page of a list continues where the page before it ended.
    by_key: BTreeMap<Key, Record>,
    /// The last reading of the hybrid clock.
    hlc: HybridTime,
    /// When idle records are collected next.
    collect_at: StoreTime,
    /// The handles that get notifications.
    watchers: Vec<(HandleId, UnboundedSender<Notification>)>,
    /// The receivers of records' states.
    followers: Followers,
}

impl MemoryStore {
    /// Creates an empty store that keeps idle records for `retention`, or for the shortest ttl, 10 ms, if that is longer.
    #[must_use]
    pub fn new(retention: Duration) -> Self {
        Self {
            clock: Clock::tokio(),
            retention: retention.max(Ttl::MIN.duration()),
            records: Arc::new(Mutex::new(Records {
                by_key: BTreeMap::new(),
                hlc: HybridTime { seconds: HybridTime::EPOCH_SECONDS, ordinal: 0 },
                collect_at: StoreTime::default(),
                watchers: Vec::new(),
                followers: Followers::default(),
            })),
            link: Arc::default(),
        }
    }

    /// How many keys have a record.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(|records, _| records.by_key.len())
    }

    /// Whether no key has a record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Deletes the record of a key, as an operator might.
    pub fn remove(&self, key: &Key) {
        self.with(|records, at| records.remove(key, at));
    }

    /// Replaces the record of a key, as an operator who restores a backup might.
    #[cfg(feature = "unstable-store")]
    pub fn restore(&self, key: Key, record: Record) {
        self.with(|records, at| records.put(key, record, at));
    }

    /// Applies a request when its future is polled first.
    fn answer<T: Send + 'static>(
        &self,
        deadline: Deadline,
        act: impl FnOnce(&Self, &mut Records, StoreClock) -> Result<T> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let store = self.clone();
        Box::pin(async move { store.link.carry(deadline, || store.with(|records, at| act(&store, records, at))).await })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Records, StoreClock) -> T) -> T {
        let mut records = lock(&self.records);
        let at = records.read_clocks(self.clock.now().since_origin());
        records.collect(at, self.retention);
        act(&mut records, at)
    }
}

impl Records {
    /// Reads the clocks. The wall clock of this store begins where tokens do. The hybrid clock follows it, and moves on
    /// at each reading.
    fn read_clocks(&mut self, elapsed: Duration) -> StoreClock {
        let now = StoreTime::default().after(HybridTime::EPOCH_SECONDS.saturating_mul(1000)).after(millis(elapsed));
        let wall = HybridTime {
            seconds: HybridTime::EPOCH_SECONDS.saturating_add(elapsed.as_secs()),
            ordinal: elapsed.subsec_micros().into(),
        };
        let next = if self.hlc.ordinal < HybridTime::MAX_ORDINAL {
            HybridTime { ordinal: self.hlc.ordinal.saturating_add(1), ..self.hlc }
        } else {
            HybridTime { seconds: self.hlc.seconds.saturating_add(1), ordinal: 0 }
        };
        self.hlc = wall.max(next);
        StoreClock { now, hlc: self.hlc }
    }

    /// Sets the record of a key, and sends its state to the followers.
    fn put(&mut self, key: Key, record: Record, at: StoreClock) {
        self.followers.send(&key, Some(&record), at);
        self.by_key.insert(key, record);
    }

    /// Removes the record of a key, and sends that to the followers.
    fn remove(&mut self, key: &Key, at: StoreClock) {
        self.by_key.remove(key);
        self.followers.send(key, None, at);
    }

    /// The records from this key on. A text that is no key precedes all records.
    fn starting_at(&self, key: Option<&str>) -> impl Iterator<Item = (&Key, &Record)> {
        let start = key.and_then(|key| key.parse::<Key>().ok()).map_or(Bound::Unbounded, Bound::Included);
        self.by_key.range::<Key, _>((start, Bound::Unbounded))
    }

    /// Removes the records that have been idle for `retention`. This looks at all records, so it does not run at each
    /// call.
    fn collect(&mut self, at: StoreClock, retention: Duration) {
        if at.now < self.collect_at {
            return;
        }
        let retention = millis(retention);
        let Self { by_key, followers, .. } = self;
        by_key.retain(|key, record| {
            let is_kept = record.expires_at.after(retention) > at.now;
            if !is_kept {
                followers.send(key, None, at);
            }
            is_kept
        });
        self.collect_at = at.now.after((retention / 4).clamp(1_000, 60_000));
    }
}

/// Sends the hand-overs of a change to the watchers. Removes watchers that are gone.
fn notify(watchers: &mut Vec<(HandleId, UnboundedSender<Notification>)>, after: &Record) {
    watchers.retain(|(_, notifications)| !notifications.is_closed());
    for (handle, notifications) in watchers {
        for (acquire_id, token) in after.handover.iter().filter(|(acquire_id, _)| acquire_id.handle == *handle) {
            // A receiver that is dropped now is removed the next time.
            drop(notifications.send(Notification::of(*acquire_id, *token, Some(after.last_seen))));
        }
    }
}

impl Default for MemoryStore {
    /// Creates an empty store that keeps idle records for 24 hours, the default of a handle.
    fn default() -> Self {
        Self::new(Duration::from_secs(24 * 3600))
    }
}

impl Store for MemoryStore {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.answer(deadline, |_, _, _| Ok(()))
    }

    fn part_size(&self) -> usize {
        LARGE_PART
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let key = key.clone();
        self.answer(deadline, move |_, records, at| {
            let before = records.by_key.get(&key);
            if before.is_some_and(|record| record.version.get() > Record::MAX_VERSION) {
                let message = "`version` is not a fencing token with room to grow".into();
                return Err(Error::Corrupt { key, message });
            }
            let (after, outcome) = record::apply(before, at, &request);
            let changed = before != after.as_ref();
            if let Some(after) = after.filter(|_| changed) {
                notify(&mut records.watchers, &after);
                records.put(key, after, at);
            }
            Ok(Applied { outcome, at: Some(at), changed, sent: None })
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (leases, batch) = (leases.clone(), batch.clone());
        self.answer(deadline, move |_, records, at| {
            let mut is_all = true;
            for (key, tokens) in leases {
                let before = records.by_key.get(&key);
                let after = before.and_then(|before| record::apply_batch(before, at, &tokens, &batch));
                let Some(after) = after else {
                    is_all = false;
                    continue;
                };
                notify(&mut records.watchers, &after);
                records.put(key, after, at);
            }
            Ok(is_all)
        })
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let key = key.clone();
        self.answer(deadline, move |_, records, at| {
            Ok(records.by_key.get(&key).map(|record| Snapshot { record: Box::new(record.clone()), at }))
        })
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.answer(deadline, |_, _, at| Ok(at.now))
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let filter = filter.clone();
        self.answer(deadline, move |_, records, at| {
            let first = after.as_ref().map(|position| &*position.key);
            Ok(list_page(records.starting_at(first), at.now, &filter, after.as_ref(), page_size))
        })
    }

    fn notifications(
        &self,
        handle: HandleId,
        _since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        let store = self.clone();
        Box::pin(async move {
            let receiver = notifications.clone();
            store.with(|records, at| {
                let first = notifications.send(Notification::Started { since: at.hlc });
                if first.is_ok() {
                    records.watchers.push((handle, notifications));
                }
            });
            store.link.pass(receiver.closed()).await
        })
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, states: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        let (store, filter) = (self.clone(), filter.clone());
        Box::pin(async move {
            let followed = store.with(|records, at| {
                let Records { by_key, followers, .. } = records;
                let known = match &filter {
                    KeyFilter::Key(key) => vec![key.clone()],
                    KeyFilter::Prefix(_) => known,
                };
                let is_first = |(key, record): &(&Key, &Record)| {
                    filter.admits(key) && !record.holders.is_empty() && !known.contains(key)
                };
                let held = by_key.iter().filter(is_first).map(|(key, record)| (key, Some(record)));
                let mut first = held.chain(known.iter().map(|key| (key, by_key.get(key))));
                followers.join(filter.clone(), &mut first, at, states)
            });
            store.link.pass(followed).await
        })
    }

    fn close(&self, _deadline: Deadline) -> BoxFuture<()> {
        Box::pin(async {})
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn retention(&self) -> Duration {
        self.retention
    }
}
