//! A custom store: leases on any database that has transactions with compare-and-swap.
//!
//! ```text
//! cargo run --example custom_store     # two handles on this store
//! cargo test --example custom_store    # the conformance suite on this store
//! ```
//!
//! The library runs the protocol. [`record::apply`] is the state machine of a record: a pure function from a record, a
//! request and a time to the next record and the outcome. A store reads a row, calls that function, and writes the row
//! if no other client has changed it since. In this example `Table` stands for the database. Replace it by your client,
//! and keep `TableStore`.
//!
//! `mongoseal::conformance`, with the feature `test-util`, checks the guarantees that [`store`](mongoseal::store)
//! lists. Run it in the tests of your store, as the end of this file does.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mongoseal::{
    Clock, Deadline, Error, FencingToken, HandleId, HybridTime, Key, Mongoseal, Result, StoreTime,
    record::{self, BatchRequest, Filter, LeaseRefs, ListedLease, Position, Record, Request, StoreClock},
    store::{Applied, BoxFuture, Expired, ExpiredPage, Notification, Page, RecordState, Snapshot, Store},
};
use tokio::sync::mpsc::{Sender, UnboundedSender};

/// How long the store keeps an idle record. It must be longer than each ttl and than each call, so that no stalled
/// request meets a key whose record was deleted meanwhile.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The database: rows, a revision for each, and a clock. A row never changes without a new revision.
#[derive(Debug)]
struct Table {
    rows: BTreeMap<Key, (u64, Record)>,
    revision: u64,
    tick: HybridTime,
}

/// What a transaction wants to write: a key, the revision that it has read, and the new row, or `None` to delete it.
type Change = (Key, Option<u64>, Option<Record>);

impl Table {
    /// Reads the database's clocks. The hybrid clock follows the wall clock, never goes back, and moves on each time.
    fn moment(&mut self) -> StoreClock {
        let elapsed = Clock::Boot.now();
        let wall = HybridTime {
            seconds: HybridTime::EPOCH_SECONDS + elapsed.as_secs(),
            ordinal: elapsed.subsec_micros().into(),
        };
        let next = match self.tick {
            HybridTime { seconds, ordinal: HybridTime::MAX_ORDINAL.. } => {
                HybridTime { seconds: seconds + 1, ordinal: 0 }
            }
            HybridTime { seconds, ordinal } => HybridTime { seconds, ordinal: ordinal + 1 },
        };
        self.tick = wall.max(next);
        let millis = u64::try_from(elapsed.as_millis()).expect("the machine has not run for that long");
        StoreClock { now: StoreTime::default().after(HybridTime::EPOCH_SECONDS * 1000 + millis), tick: self.tick }
    }

    /// Writes all rows, if none of them has changed since it was read. Returns whether it did.
    fn commit(&mut self, changes: Vec<Change>) -> bool {
        let revision = |key: &Key| self.rows.get(key).map(|(revision, _)| *revision);
        if !changes.iter().all(|(key, read, _)| revision(key) == *read) {
            return false;
        }
        for (key, _, record) in changes {
            self.revision += 1;
            match record {
                Some(record) => drop(self.rows.insert(key, (self.revision, record))),
                None => drop(self.rows.remove(&key)),
            }
        }
        true
    }
}

/// The store: a connection to the database. A clone shares it.
#[derive(Clone, Debug)]
struct TableStore(Arc<Mutex<Table>>);

impl TableStore {
    fn new() -> Self {
        let tick = HybridTime { seconds: 0, ordinal: 0 };
        Self(Arc::new(Mutex::new(Table { rows: BTreeMap::new(), revision: 0, tick })))
    }

    /// One round trip to the database.
    fn query<T>(&self, query: impl FnOnce(&mut Table) -> T) -> T {
        query(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a row and its revision, and then the clocks.
    fn read_row(&self, key: &Key) -> (Option<u64>, Option<Record>, StoreClock) {
        self.query(|table| {
            let (revision, record) = table.rows.get(key).cloned().unzip();
            (revision, record, table.moment())
        })
    }

    /// Runs a transaction until no other client has changed its rows, for as long as the call may take. The answer
    /// holds once the changes are committed.
    fn transact<T: Send + 'static>(
        &self,
        deadline: Deadline,
        run: impl Fn(&Self) -> (Vec<Change>, T) + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let store = self.clone();
        Box::pin(async move {
            while !deadline.has_passed() {
                let (changes, answer) = run(&store);
                if store.query(|table| table.commit(changes)) {
                    return Ok(answer);
                }
                tokio::task::yield_now().await;
            }
            Err(Error::unavailable("other clients changed the same rows all the time: retry"))
        })
    }

    /// Reads all rows at one time, in the order of their keys.
    fn rows(&self) -> (Vec<(Key, Record)>, StoreClock) {
        self.query(|table| {
            let rows = table.rows.iter().map(|(key, (_, record))| (key.clone(), record.clone())).collect();
            (rows, table.moment())
        })
    }
}

/// Whether a record has no holder and no waiter and has outlived the retention.
fn is_idle(record: &Record, now: StoreTime) -> bool {
    let retention = u64::try_from(RETENTION.as_millis()).expect("it is a day");
    record.holders.is_empty() && record.queue.is_empty() && record.expires_at.after(retention) <= now
}

/// Cuts a list to one page. Returns the last element of the page if more follow.
fn cut<T>(list: &mut Vec<T>, most: u32) -> Option<&T> {
    let most = usize::try_from(most).expect("a page fits").max(1);
    let has_more = list.len() > most;
    list.truncate(most);
    list.last().filter(|_| has_more)
}

impl Store for TableStore {
    fn prepare(&self, _deadline: Deadline) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let key = key.clone();
        self.transact(deadline, move |store| {
            let (revision, before, at) = store.read_row(&key);
            let (after, outcome) = record::apply(before.as_ref(), at, &request);
            let changed = before != after;
            let writes = if changed { vec![(key.clone(), revision, after)] } else { vec![] };
            (writes, Applied { outcome, at: Some(at), changed, sent: None })
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (leases, joint) = (leases.clone(), joint.clone());
        self.transact(deadline, move |store| {
            let change = |(key, tokens): &(Key, Vec<FencingToken>)| {
                let (revision, before, at) = store.read_row(key);
                let after = record::apply_batch(&before?, at, tokens, &joint)?;
                Some((key.clone(), revision, Some(after)))
            };
            let changes: Vec<Change> = leases.iter().filter_map(change).collect();
            let is_all = changes.len() == leases.len();
            let is_refresh = matches!(joint, BatchRequest::Refresh { .. });
            (if is_all || !is_refresh { changes } else { vec![] }, is_all)
        })
    }

    fn read(&self, key: &Key, _deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let (_, record, at) = self.read_row(key);
        let seen = record.map(|record| Snapshot { record: Box::new(record), at });
        Box::pin(async { Ok(seen) })
    }

    fn now(&self, _deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        let now = self.query(|table| table.moment().now);
        Box::pin(async move { Ok(now) })
    }

    fn list(&self, wanted: &Filter, after: Option<Position>, most: u32, _: Deadline) -> BoxFuture<Result<Page>> {
        let (rows, at) = self.rows();
        let leases = rows.into_iter().flat_map(|(key, record)| {
            let waiting = record.count_waiters(at.now);
            record.holders.into_iter().map(move |holder| ListedLease::of(key.clone(), holder, waiting, at.now))
        });
        let is_wanted =
            |lease: &ListedLease| wanted.admits(lease) && after.as_ref().is_none_or(|at| at.precedes(lease));
        let mut leases: Vec<ListedLease> = leases.filter(is_wanted).collect();
        leases.sort_by(|one, other| (one.holder.token, &one.key).cmp(&(other.holder.token, &other.key)));
        let next = cut(&mut leases, most).map(Position::behind);
        Box::pin(async { Ok(Page { leases, next }) })
    }

    fn list_expired(&self, after: Option<String>, most: u32, _deadline: Deadline) -> BoxFuture<Result<ExpiredPage>> {
        let (rows, StoreClock { now, .. }) = self.rows();
        let expired = |(key, record): (Key, Record)| {
            let mut ends = record.holders.iter().map(|holder| holder.expires_at);
            let mut waits = record.queue.iter().map(|waiter| waiter.expires_at);
            let is_over = |end: StoreTime| end <= now;
            match record.version {
                version if is_idle(&record, now) => Some((key.clone(), Expired::Idle { key, version })),
                _ if ends.any(is_over) || waits.any(is_over) => Some((key.clone(), Expired::Lapsed { key })),
                _ => None,
            }
        };
        let is_behind = |(key, _): &(Key, Record)| after.as_deref().is_none_or(|after| key.as_str() > after);
        let mut found: Vec<(Key, Expired)> = rows.into_iter().filter(is_behind).filter_map(expired).collect();
        let next = cut(&mut found, most).map(|(key, _)| key.as_str().to_owned());
        let expired = found.into_iter().map(|(_, expired)| expired).collect();
        Box::pin(async { Ok(ExpiredPage { expired, next }) })
    }

    fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let key = key.clone();
        self.transact(deadline, move |store| {
            let (revision, record, at) = store.read_row(&key);
            let goes = record.is_some_and(|record| record.version == version && is_idle(&record, at.now));
            (if goes { vec![(key.clone(), revision, None)] } else { vec![] }, goes)
        })
    }

    // This database has no notifications, so handles poll. Waiting is then slower, and no promise changes.
    fn watch(
        &self,
        _handle: HandleId,
        _since: HybridTime,
        _tell: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        Box::pin(async { Err(Error::invalid("this store has no notifications: poll")) })
    }

    fn follow(&self, _key: &Key, _tell: Sender<RecordState>) -> BoxFuture<Result<()>> {
        Box::pin(async { Err(Error::invalid("this store has no notifications: poll")) })
    }

    fn close(&self, _deadline: Deadline) -> BoxFuture<()> {
        Box::pin(async {})
    }

    /// Holders run on other machines than the database, so they count their deadlines on their own clock.
    fn clock(&self) -> Clock {
        Clock::Boot
    }

    fn retention(&self) -> Duration {
        RETENTION
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(TableStore::new());
    let alice = Mongoseal::builder().owner("alice").on_store(store.clone())?;
    let bob = Mongoseal::builder().owner("bob").on_store(store)?;

    let lease = alice.acquire("reports/nightly").await?;
    let first = lease.token();
    println!("alice acquired {:?} with token {first}", lease.key());

    match bob.acquire("reports/nightly").await {
        Err(Error::Held { owner, .. }) => println!("bob is refused: {owner:?} holds the key"),
        other => panic!("a held key must be refused: {other:?}"),
    }

    let waiting = bob.acquire("reports/nightly").wait(Duration::from_secs(10));
    let (released, lease) = tokio::join!(lease.release(), waiting);
    released?;
    let second = lease?.token();
    println!("alice released the key, and bob acquired it with token {second}");
    assert!(second > first, "tokens grow");

    alice.shutdown().await;
    bob.shutdown().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_store_keeps_every_clause() {
        let mut clauses = tokio::task::JoinSet::new();
        for clause in mongoseal::conformance::clauses() {
            clauses.spawn(async move {
                clause.check(Arc::new(TableStore::new())).await;
                println!("{} holds", clause.name());
            });
        }
        while let Some(ended) = clauses.join_next().await {
            ended.expect("a clause that fails says what it expected");
        }
    }
}
