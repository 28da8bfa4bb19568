//! Records in this process: for tests, for examples, and for programs without other processes.

mod follow;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use follow::Followers;
use tokio::sync::mpsc::{Sender, UnboundedSender};

use super::{Applied, BoxFuture, Expired, ExpiredPage, Notification, Page, PrefixState, RecordState, Snapshot, Store};
use crate::{
    Clock, Deadline, Error, FencingToken, HandleId, Key, Result,
    record::{self, BatchRequest, Filter, LeaseRefs, ListedLease, Position, Record, Request, StoreClock, StoreTime},
    types::{token::HybridTime, ttl::millis},
};

/// Records in the memory of this process, on tokio's clock, which a test can pause.
///
/// A clone shares the records. Records and tokens end with the process.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    clock: Clock,
    retention: Duration,
    records: Arc<Mutex<Records>>,
}

#[derive(Debug)]
struct Records {
    by_key: HashMap<Key, Record>,
    /// The last reading of the hybrid clock.
    tick: HybridTime,
    /// When idle records are collected next.
    collect_at: StoreTime,
    /// The handles that get notifications.
    watchers: Vec<(HandleId, UnboundedSender<Notification>)>,
    /// The receivers of records' states.
    followers: Followers,
}

impl MemoryStore {
    /// Creates an empty store that keeps idle records for `retention`.
    #[must_use]
    pub fn new(retention: Duration) -> Self {
        Self {
            clock: Clock::tokio(),
            retention,
            records: Arc::new(Mutex::new(Records {
                by_key: HashMap::new(),
                tick: HybridTime { seconds: HybridTime::EPOCH_SECONDS, ordinal: 0 },
                collect_at: StoreTime::default(),
                watchers: Vec::new(),
                followers: Followers::default(),
            })),
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
        self.with(|records, at| {
            records.by_key.remove(key);
            records.followers.send(key, None, at);
        });
    }

    /// Replaces the record of a key, as an operator who restores a backup might.
    pub fn restore(&self, key: Key, record: Record) {
        self.with(|records, at| {
            records.followers.send(&key, Some(&record), at);
            records.by_key.insert(key, record);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Records, StoreClock) -> T) -> T {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let at = records.read_clocks(self.clock.now());
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
        let next = if self.tick.ordinal < HybridTime::MAX_ORDINAL {
            HybridTime { ordinal: self.tick.ordinal.saturating_add(1), ..self.tick }
        } else {
            HybridTime { seconds: self.tick.seconds.saturating_add(1), ordinal: 0 }
        };
        self.tick = wall.max(next);
        StoreClock { now, tick: self.tick }
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

/// Whether a record has no holders and no waiters and has been idle for the retention.
fn is_idle(record: &Record, now: StoreTime, retention: Duration) -> bool {
    record.holders.is_empty() && record.queue.is_empty() && record.expires_at.after(millis(retention)) <= now
}

/// What a purge removes of a record.
fn find_expired(key: &Key, record: &Record, now: StoreTime, retention: Duration) -> Option<Expired> {
    if is_idle(record, now, retention) {
        return Some(Expired::Idle { key: key.clone(), version: record.version });
    }
    let mut ends = record
        .holders
        .iter()
        .map(|holder| holder.expires_at)
        .chain(record.queue.iter().map(|waiter| waiter.expires_at));
    ends.any(|end| end <= now).then(|| Expired::Lapsed { key: key.clone() })
}

/// Shortens a list to a page. Returns the last entry of the page, if there are more.
fn cut<T>(list: &mut Vec<T>, page_size: u32) -> Option<&T> {
    let page_size = usize::try_from(page_size).unwrap_or(usize::MAX).max(1);
    let has_more = list.len() > page_size;
    list.truncate(page_size);
    list.last().filter(|_| has_more)
}

/// Sends the hand-overs of a change to the watchers. Removes watchers that are gone.
fn notify(watchers: &mut Vec<(HandleId, UnboundedSender<Notification>)>, after: &Record) {
    watchers.retain(|(_, notifications)| !notifications.is_closed());
    for (handle, notifications) in watchers {
        for (caller, token) in after.handover.iter().filter(|(caller, _)| caller.handle == *handle) {
            // A receiver that is dropped now is removed the next time.
            drop(notifications.send(Notification::of(*caller, *token, Some(after.last_seen))));
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
    fn prepare(&self, _deadline: Deadline) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn apply(&self, key: &Key, request: Request, _deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(async move {
            store.with(|records, at| {
                let before = records.by_key.get(&key);
                if before.is_some_and(|record| record.version.get() > Record::MAX_VERSION) {
                    return Err(Error::Corrupt {
                        key,
                        message: "`version` is not a fencing token with room to grow".into(),
                    });
                }
                let (after, outcome) = record::apply(before, at, &request);
                let changed = before != after.as_ref();
                if let Some(after) = after {
                    if changed {
                        notify(&mut records.watchers, &after);
                        records.followers.send(&key, Some(&after), at);
                    }
                    records.by_key.insert(key, after);
                }
                Ok(Applied { outcome, at: Some(at), changed, sent: None })
            })
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, _deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (store, leases, batch) = (self.clone(), leases.clone(), batch.clone());
        Box::pin(async move {
            Ok(store.with(|records, at| {
                let done = |(key, tokens): &(Key, Vec<FencingToken>)| {
                    let after = record::apply_batch(records.by_key.get(key)?, at, tokens, &batch)?;
                    Some((key.clone(), after))
                };
                let done: Vec<(Key, Record)> = leases.iter().filter_map(done).collect();
                let all = done.len() == leases.len();
                if all || !matches!(batch, BatchRequest::Refresh { .. }) {
                    for (key, after) in done {
                        notify(&mut records.watchers, &after);
                        records.followers.send(&key, Some(&after), at);
                        records.by_key.insert(key, after);
                    }
                }
                all
            }))
        })
    }

    fn read(&self, key: &Key, _deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(async move {
            Ok(store.with(|records, at| {
                records.by_key.get(&key).map(|record| Snapshot { record: Box::new(record.clone()), at })
            }))
        })
    }

    fn now(&self, _deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        let store = self.clone();
        Box::pin(async move { Ok(store.with(|_, at| at.now)) })
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        page_size: u32,
        _deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let (store, filter) = (self.clone(), filter.clone());
        Box::pin(async move {
            let mut leases: Vec<ListedLease> = store.with(|records, at| {
                let held = |(key, record): (&Key, &Record)| {
                    let (holders, waiting) = (record.holders.iter().cloned(), record.count_waiters(at.now));
                    holders.map(|holder| ListedLease::of(key.clone(), holder, waiting, at.now)).collect::<Vec<_>>()
                };
                records.by_key.iter().flat_map(held).collect()
            });
            leases
                .retain(|lease| filter.admits(lease) && after.as_ref().is_none_or(|position| position.precedes(lease)));
            leases.sort_by(|one, other| (one.holder.token, &one.key).cmp(&(other.holder.token, &other.key)));
            let next = cut(&mut leases, page_size).map(Position::behind);
            Ok(Page { leases, next })
        })
    }

    fn list_expired(
        &self,
        after: Option<String>,
        page_size: u32,
        _deadline: Deadline,
    ) -> BoxFuture<Result<ExpiredPage>> {
        let store = self.clone();
        Box::pin(async move {
            let mut found: Vec<(Key, Expired)> = store.with(|records, at| {
                let behind =
                    records.by_key.iter().filter(|(key, _)| after.as_deref().is_none_or(|after| key.as_str() > after));
                behind
                    .filter_map(|(key, record)| {
                        Some((key.clone(), find_expired(key, record, at.now, store.retention)?))
                    })
                    .collect()
            });
            found.sort_by(|(one, _), (other, _)| one.cmp(other));
            let next = cut(&mut found, page_size).map(|(key, _)| key.as_str().to_owned());
            Ok(ExpiredPage { expired: found.into_iter().map(|(_, expired)| expired).collect(), next })
        })
    }

    fn delete_idle(&self, key: &Key, version: FencingToken, _deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(async move {
            Ok(store.with(|records, at| {
                let is_deleted = records
                    .by_key
                    .get(&key)
                    .is_some_and(|record| record.version == version && is_idle(record, at.now, store.retention));
                if is_deleted {
                    records.by_key.remove(&key);
                    records.followers.send(&key, None, at);
                }
                is_deleted
            }))
        })
    }

    fn watch(
        &self,
        handle: HandleId,
        _since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        let store = self.clone();
        Box::pin(async move {
            let receiver = notifications.clone();
            store.with(|records, at| {
                let first = notifications.send(Notification::Started { since: at.tick });
                if first.is_ok() {
                    records.watchers.push((handle, notifications));
                }
            });
            receiver.closed().await;
            Ok(())
        })
    }

    fn follow(&self, key: &Key, states: Sender<RecordState>) -> BoxFuture<Result<()>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(async move {
            let followed = store.with(|records, at| {
                let record = records.by_key.get(&key);
                records.followers.join(key.clone(), record, at, states)
            });
            followed.await;
            Ok(())
        })
    }

    fn follow_prefix(&self, prefix: &str, known: Vec<Key>, states: Sender<PrefixState>) -> BoxFuture<Result<()>> {
        let (store, prefix) = (self.clone(), prefix.to_owned());
        Box::pin(async move {
            let followed = store.with(|records, at| {
                let Records { by_key, followers, .. } = records;
                let is_first = |(key, record): &(&Key, &Record)| {
                    key.as_str().starts_with(&prefix) && !record.holders.is_empty() && !known.contains(key)
                };
                let held = by_key.iter().filter(is_first).map(|(key, record)| (key, Some(record)));
                let mut first = held.chain(known.iter().map(|key| (key, by_key.get(key))));
                followers.join_prefix(prefix.clone(), &mut first, at, states)
            });
            followed.await;
            Ok(())
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
