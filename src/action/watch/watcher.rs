//! The task behind a watch: it follows the records of a key or of a prefix, or polls them, and reports each change.
//!
//! Mechanism: the store's stream of states is followed. It begins with a snapshot. Each state of a record is compared with
//! the one before. If the stream fails, changes may be missing: it is followed again, and what the new snapshot changes is
//! reported behind [`Watched::missed`]. If the store has no such stream, the records are polled: `watch/poll.rs`. Because
//! expired holders stay in their records, the task also reads a record when its next holder expires, and before a later
//! change of another key.
//!
//! Invariants: a state with an earlier hybrid time than the last one is ignored. Of a prefix, a record is kept while it has
//! holders. What a snapshot changes is kept until it is reported, also if the stream fails before the snapshot is complete.
//! The first batch that is reported, which may be empty, says that the watch has begun.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tracing::{debug, warn};

use crate::{
    engine::{context::Context, retry::Backoff},
    record::{KeyFilter, Record, StoreClock, StoreTime, events, time_until},
    store::answers::{FollowedState, RecordState, Snapshot},
    types::{
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        instant::Instant,
        key::Key,
        token::HybridTime,
    },
};

/// How many states and how many batches of items wait for a slow reader.
const CHANNEL_SIZE: usize = 64;

/// The shortest and the longest delay before the stream is opened again, and between two polls.
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long the stream may be behind a record before it counts as stuck. A store that goes on where it was may have to read
/// many changes first.
const MAX_LAG: Duration = Duration::from_secs(600);

/// How long to wait after a check for which the stream was behind, or the store away.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How many records are read concurrently.
const MAX_READS: usize = 32;

/// What a watch reports.
pub(crate) trait Watched: Send + Sync + Sized + 'static {
    /// The items at the beginning of the watch, for each record.
    fn first(key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Self>;

    /// Sorts the items at the beginning, of all records.
    fn sort(_first: &mut [Self]) {}

    /// The items for a change.
    fn changes(key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Self>;

    /// The item for changes between these times that may be missing. `None`: that is not reported.
    fn missed(since: StoreTime, until: StoreTime) -> Option<Self>;
}

/// The task of a watch.
pub(super) struct Watcher<T> {
    pub(super) context: Arc<Context>,
    pub(super) filter: KeyFilter,
    clock: Clock,
    /// Receives the items, or the error that ends the watch.
    report: Sender<Result<Vec<T>>>,
    /// Until when the watch must have begun.
    give_up: Deadline,
    has_begun: bool,
    /// The items that are not reported, of a snapshot that is not complete.
    pub(super) pending: Vec<T>,
    /// Whether changes before the next snapshot may be missing.
    is_interrupted: bool,
    /// The store's time of the last state that was received.
    seen: StoreTime,
    /// The last states of the records, without expired holders.
    pub(super) records: BTreeMap<Key, Record>,
    /// When, on the store's clock, the first holder of each of these records expires.
    expiries: BTreeSet<(StoreTime, Key)>,
    /// The hybrid time of the last state.
    pub(super) hlc: HybridTime,
    /// How far the store's clock is ahead of the clock, in milliseconds, if that is known.
    pub(super) ahead: Option<i64>,
    /// The delays after failures and between polls.
    pub(super) backoff: Backoff,
}

impl<T: Watched> Watcher<T> {
    /// Starts the task of a watch that begins before `give_up`. Returns its items in batches: first those of the
    /// beginning.
    pub(super) fn start(context: &Arc<Context>, filter: KeyFilter, give_up: Deadline) -> Receiver<Result<Vec<T>>> {
        let (report, batches) = mpsc::channel(CHANNEL_SIZE);
        let watcher = Self {
            context: Arc::clone(context),
            filter,
            clock: context.clock(),
            report,
            give_up,
            has_begun: false,
            pending: Vec::new(),
            is_interrupted: false,
            seen: StoreTime::default(),
            records: BTreeMap::new(),
            expiries: BTreeSet::new(),
            hlc: HybridTime { seconds: 0, ordinal: 0 },
            ahead: None,
            backoff: retries(),
        };
        context.spawn(watcher.run());
        batches
    }

    /// Reports items until the receiver is dropped, the handle is shut down, or a permanent error.
    async fn run(mut self) {
        let (closing, report) = (self.context.closing.clone(), self.report.clone());
        let watch = async {
            let error = self.watch().await;
            drop(self.report.send(Err(error)).await);
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = report.closed() => {}
            () = watch => {}
        }
    }

    /// Watches until an error that a retry does not remove.
    async fn watch(&mut self) -> Error {
        let mut polls = false;
        loop {
            if !self.has_begun {
                self.records.clear();
                self.expiries.clear();
                self.pending.clear();
            }
            let prepared = self.context.prepare(self.context.attempt_deadline()).await;
            let is_prepared = prepared.is_ok();
            polls |= !self.context.store.capabilities().change_streams;
            let ended = match prepared {
                Ok(()) if polls => self.poll().await,
                Ok(()) => self.follow().await,
                Err(error) => Err(error),
            };
            self.is_interrupted |= ended.is_err() && self.has_begun;
            let now = self.clock.now();
            let mut next = now.after(self.backoff.next());
            if let Err(error) = ended {
                let (is_refused, watched) = (matches!(error, Error::Invalid { .. }), self.filter.text());
                if is_refused && is_prepared && !polls {
                    warn!(
                        watched,
                        error = error.as_std(),
                        "the change stream cannot be opened: this watch polls from now on"
                    );
                    polls = true;
                    continue;
                }
                let is_too_late = !self.has_begun && self.give_up.instant() <= next;
                if is_too_late || !matches!(error, Error::Unavailable { .. }) {
                    return error;
                }
                debug!(watched, error = error.as_std(), "a watch is interrupted: retrying");
            }
            if polls && let Some(due) = self.next_expiry() {
                next = next.min(due.max(now.after(RETRY_BOUNDS.0)));
            }
            self.clock.sleep_until(next).await;
        }
    }

    /// Follows the store's stream of states until it ends, which is an error.
    async fn follow(&mut self) -> Result<()> {
        let (tell, mut states) = mpsc::channel(CHANNEL_SIZE);
        let known = self.records.keys().cloned().collect();
        let mut following = self.context.store.follow(&self.filter, known, tell);
        let mut check = ExpiryCheck::default();
        loop {
            let due = self.next_expiry().filter(|_| check.is_complete).map(|due| due.max(check.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    if check.is_complete {
                        self.backoff = retries();
                        check.behind_since = None;
                    }
                    self.note(state, &mut check).await?;
                }
                ended = &mut following => {
                    while let Ok(state) = states.try_recv() {
                        self.note(state, &mut check).await?;
                    }
                    ended?;
                    return Err(Error::unavailable("the stream of changes has ended: it is opened again"));
                }
                () = self.clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    self.check_expiries(&mut check, self.store_now(), None).await?;
                }
            }
        }
    }

    /// Takes a state of the stream, and reports what happened until then.
    async fn note(&mut self, state: FollowedState, check: &mut ExpiryCheck) -> Result<()> {
        match state {
            FollowedState::Complete { at } => {
                check.is_complete = true;
                self.record_clock(at.now);
                self.complete(at.now).await;
            }
            FollowedState::Record { key, state } => {
                if check.is_complete && self.clock.now() >= check.not_before {
                    self.check_expiries(check, state.at.now, Some(&key)).await?;
                }
                let at = state.at.now;
                self.apply(key, state);
                if check.is_complete {
                    self.seen = self.seen.max(at);
                    self.report_pending().await;
                }
            }
        }
        Ok(())
    }

    /// Reports what a snapshot of this time has changed, or, at the beginning, what it has.
    pub(super) async fn complete(&mut self, at: StoreTime) {
        if !mem::replace(&mut self.has_begun, true) {
            drop(self.report.send(Ok(mem::take(&mut self.pending))).await);
        } else if mem::take(&mut self.is_interrupted)
            && let Some(missed) = T::missed(self.seen.min(at), at)
        {
            self.pending.insert(0, missed);
        }
        self.seen = at;
        self.report_pending().await;
    }

    /// Waits until there is room for the items. If the receiver was dropped, the task ends.
    async fn report_pending(&mut self) {
        if !self.pending.is_empty() {
            drop(self.report.send(Ok(mem::take(&mut self.pending))).await);
        }
    }

    /// Takes a state of a record. What happened is then pending.
    pub(super) fn apply(&mut self, key: Key, state: RecordState) {
        let RecordState { record, at } = state;
        // A new primary may be behind a majority, and return an earlier state.
        if at.hlc < self.hlc {
            return;
        }
        self.hlc = at.hlc;
        self.record_clock(at.now);
        let before = self.records.get(&key);
        self.pending.extend(if self.has_begun {
            T::changes(&key, before, record.as_deref(), at.now)
        } else {
            T::first(&key, record.as_deref(), at.now)
        });
        let is_kept = |record: &Record| self.filter.is_key() || !record.holders.is_empty();
        let kept = record.filter(|record| is_kept(record)).map(|record| events::without_expired(*record, at.now));
        self.keep(key, kept);
    }

    /// Keeps a record in place of the one before.
    pub(super) fn keep(&mut self, key: Key, record: Option<Record>) {
        let end_of = |record: &Record| record.holders.iter().map(|holder| holder.expires_at).min();
        if let Some(end) = self.records.remove(&key).as_ref().and_then(end_of) {
            self.expiries.remove(&(end, key.clone()));
        }
        if let Some(record) = record {
            self.expiries.extend(end_of(&record).map(|end| (end, key.clone())));
            self.records.insert(key, record);
        }
    }

    /// Reads the records whose first holder expires until this time on the store's clock, without that of one key.
    /// Reports the holders that have expired. If a record has changed, the stream reports that, too, and in order.
    async fn check_expiries(&mut self, check: &mut ExpiryCheck, until: StoreTime, except: Option<&Key>) -> Result<()> {
        let due = self.expiries.iter().take_while(|(end, _)| *end <= until).map(|(_, key)| key);
        let due: Vec<Key> = due.filter(|key| Some(*key) != except).take(MAX_READS).cloned().collect();
        if due.is_empty() {
            return Ok(());
        }
        let began = self.clock.now();
        let (mut is_away, mut is_behind) = (false, false);
        for (key, read) in self.read_all(due).await {
            match read {
                Ok(Some(Snapshot { record, at })) if self.is_last_seen(&key, &record) => {
                    self.ahead = Some(self.ahead_at(at.now));
                    // The next state of the stream may have an earlier hybrid time than the read.
                    let at = StoreClock { hlc: self.hlc, ..at };
                    self.apply(key, RecordState { record: Some(record), at });
                }
                // The stream is interrupted, too.
                Err(Error::Unavailable { .. }) => is_away = true,
                Err(error) if self.filter.is_key() => return Err(error),
                _ => is_behind = true,
            }
        }
        self.report_pending().await;
        let now = self.clock.now();
        check.behind_since = is_behind.then(|| check.behind_since.unwrap_or(began));
        if is_away || is_behind {
            check.not_before = now.after(RECHECK_INTERVAL);
        }
        if check.behind_since.is_some_and(|since| now.since(since) > MAX_LAG) {
            return Err(Error::unavailable("the stream of changes is behind the records: it is opened again"));
        }
        Ok(())
    }

    /// Whether a record is the last state.
    fn is_last_seen(&self, key: &Key, record: &Record) -> bool {
        self.records.get(key).is_some_and(|before| {
            before.last_seen == record.last_seen
                && before.version == record.version
                && before.holders.iter().all(|holder| record.holders.contains(holder))
        })
    }

    /// Reads these records, some of them concurrently. Returns them in this order.
    pub(super) async fn read_all(&self, keys: Vec<Key>) -> Vec<(Key, Result<Option<Snapshot>>)> {
        let reads = keys.into_iter().map(|key| async move {
            let read = self.context.store.read(&key, self.context.attempt_deadline()).await;
            (key, read)
        });
        stream::iter(reads).buffered(MAX_READS).collect().await
    }

    /// Notes that the store's clock read this, now or before.
    pub(super) fn record_clock(&mut self, now: StoreTime) {
        self.ahead = self.ahead.max(Some(self.ahead_at(now)));
    }

    fn ahead_at(&self, now: StoreTime) -> i64 {
        now.millis().saturating_sub(whole_millis(self.clock.now()))
    }

    /// About what the store's clock reads.
    pub(super) fn store_now(&self) -> StoreTime {
        let ahead =
            self.ahead.map(|ahead| StoreTime::from_millis(ahead.saturating_add(whole_millis(self.clock.now()))));
        ahead.unwrap_or_default()
    }

    /// When the next holder expires. `None`: none does, as far as is known.
    fn next_expiry(&self) -> Option<Instant> {
        let (end, _) = self.expiries.first().filter(|(end, _)| time_until(*end, self.store_now()) != Duration::MAX)?;
        // A millisecond later, because the clock is rounded down.
        let due = end.millis().saturating_sub(self.ahead?).saturating_add(1);
        Some(Instant::at(Duration::from_millis(u64::try_from(due).unwrap_or_default())))
    }
}

fn whole_millis(at: Instant) -> i64 {
    i64::try_from(at.since_origin().as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn retries() -> Backoff {
    let (shortest, longest) = RETRY_BOUNDS;
    Backoff::between(shortest, longest)
}

/// The state of a stream, and of the checks whether a holder has expired.
#[derive(Default)]
struct ExpiryCheck {
    /// Whether the snapshot is complete.
    is_complete: bool,
    /// When the next check may be sent.
    not_before: Instant,
    /// Since when a record is ahead of the stream.
    behind_since: Option<Instant>,
}
