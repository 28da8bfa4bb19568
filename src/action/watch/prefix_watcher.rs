//! The task behind a watch of a prefix: it follows the records of many keys, or polls lists, and reports each change.
//!
//! Mechanism: the store's stream of states is followed, and begun again after an interruption. If the store has no such
//! stream, the leases are listed, and the records whose holders have changed are read. Each state of a record is
//! compared with the one before. Because expired holders stay in their records, the task also reads a record when its
//! next holder expires, and before a later change of another key.
//!
//! Invariant: a state with an earlier tick than the last one is ignored. A record is kept while it has holders.

mod poll;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::sync::mpsc;
use tracing::warn;

use super::{
    Started,
    task::{self, CHANNEL_SIZE, Reports, WatchTask},
    watcher::{ExpiryCheck, MAX_LAG},
};
use crate::{
    Clock, Deadline, Error, Event, Key, Result,
    engine::{context::Context, retry::Backoff},
    record::{Record, StoreClock, StoreTime, events},
    store::{PrefixState, RecordState, Snapshot},
    types::token::HybridTime,
};

/// How many records are read concurrently.
const MAX_READS: usize = 32;

/// The task of a watch of a prefix.
pub(super) struct PrefixWatcher {
    context: Arc<Context>,
    prefix: String,
    clock: Clock,
    reports: Reports<Event>,
    /// The holders at the beginning.
    first: Vec<Event>,
    /// The last states of the records that have holders, without the expired ones.
    records: HashMap<Key, Record>,
    /// When, on the store's clock, each holder of these records expires.
    expiries: BTreeSet<(StoreTime, Key)>,
    /// The tick of the last state.
    tick: HybridTime,
    /// How far the store's clock is ahead of the clock, in milliseconds, as far as is known.
    ahead: i64,
}

impl PrefixWatcher {
    /// Starts the task. Returns the reply that the watch has begun, which arrives before `give_up`, and the events.
    pub(super) fn start(context: &Arc<Context>, prefix: String, give_up: Deadline) -> Started<Event> {
        task::start(context, prefix.clone(), give_up, |reports| Self {
            context: Arc::clone(context),
            prefix,
            clock: context.clock(),
            reports,
            first: Vec::new(),
            records: HashMap::new(),
            expiries: BTreeSet::new(),
            tick: HybridTime { seconds: 0, ordinal: 0 },
            ahead: i64::MIN,
        })
    }
}

impl WatchTask for PrefixWatcher {
    type Event = Event;

    fn reports(&mut self) -> &mut Reports<Event> {
        &mut self.reports
    }

    /// Follows the store's stream of states until it ends.
    async fn follow(&mut self, backoff: &mut Backoff) -> Error {
        if !self.reports.has_begun() {
            self.records.clear();
            self.expiries.clear();
            self.first.clear();
        }
        let (tell, mut states) = mpsc::channel(CHANNEL_SIZE);
        let known = self.records.keys().cloned().collect();
        let mut following = self.context.store.follow_prefix(&self.prefix, known, tell);
        let (mut check, mut is_complete) = (ExpiryCheck::default(), false);
        loop {
            let due = self.next_expiry().filter(|_| is_complete).map(|due| due.max(check.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    if is_complete {
                        *backoff = Backoff::new();
                        check.behind_since = None;
                    }
                    is_complete |= matches!(state, PrefixState::Complete { .. });
                    if let Err(error) = self.note(state, &mut check).await {
                        return error;
                    }
                }
                ended = &mut following => {
                    while let Ok(state) = states.try_recv() {
                        if let Err(error) = self.note(state, &mut check).await {
                            return error;
                        }
                    }
                    return ended.err().unwrap_or_else(|| Error::unavailable("the stream of changes has ended: it is opened again"));
                }
                () = self.clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    if let Err(error) = self.check_expiries(&mut check, self.store_now(), None).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Polls lists.
    async fn poll(&mut self) -> Error {
        self.poll_lists().await
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static)) {
        warn!(prefix = %self.prefix, error, "the change stream of a prefix cannot be opened: this watch polls lists of leases from now on");
    }
}

impl PrefixWatcher {
    /// Takes a state of the stream, and reports what happened until then.
    async fn note(&mut self, state: PrefixState, check: &mut ExpiryCheck) -> Result<()> {
        match state {
            PrefixState::Complete { at } => {
                self.note_clock(at.now);
                self.begin().await;
            }
            PrefixState::Record { key, state } => {
                if self.reports.has_begun() && self.clock.now() >= check.not_before {
                    self.check_expiries(check, state.at.now, Some(&key)).await?;
                }
                let events = self.apply(key, state);
                self.report(events).await;
            }
        }
        Ok(())
    }

    /// Reports that the watch has begun, and the first holders, in the order of their tokens.
    async fn begin(&mut self) {
        if !self.reports.begin() {
            return;
        }
        let mut first = std::mem::take(&mut self.first);
        first.sort_by(|one, other| (one.token, &one.key).cmp(&(other.token, &other.key)));
        self.report(first).await;
    }

    async fn report(&mut self, events: Vec<Event>) {
        if !self.reports.has_begun() {
            self.first.extend(events);
            return;
        }
        for event in events {
            self.reports.send(event).await;
        }
    }

    /// Takes a state of a record. Returns what happened.
    fn apply(&mut self, key: Key, state: RecordState) -> Vec<Event> {
        let RecordState { record, at } = state;
        // A new primary may be behind a majority, and return an earlier state.
        if at.tick < self.tick {
            return Vec::new();
        }
        self.tick = at.tick;
        self.note_clock(at.now);
        let before = self.records.remove(&key);
        for holder in before.iter().flat_map(|before| &before.holders) {
            self.expiries.remove(&(holder.expires_at, key.clone()));
        }
        let events = if self.reports.has_begun() {
            events::changes(&key, before.as_ref(), record.as_deref(), at.now)
        } else {
            events::present(&key, record.as_deref(), at.now)
        };
        if let Some(record) = record.filter(|record| !record.holders.is_empty()) {
            let record = events::without_expired(*record, at.now);
            let ends = record.holders.iter().filter(|holder| holder.remaining(at.now).is_some());
            self.expiries.extend(ends.map(|holder| (holder.expires_at, key.clone())));
            self.records.insert(key, record);
        }
        events
    }

    /// Reads the records of the holders that expire until this time on the store's clock, without those of one key.
    /// Reports the holders that have expired. If a record has changed, the stream reports that, too, and in order.
    async fn check_expiries(&mut self, check: &mut ExpiryCheck, until: StoreTime, except: Option<&Key>) -> Result<()> {
        let due = self.expiries.iter().take_while(|(end, _)| *end <= until).map(|(_, key)| key);
        let due: HashSet<Key> = due.filter(|key| Some(*key) != except).take(MAX_READS).cloned().collect();
        if due.is_empty() {
            return Ok(());
        }
        let began = self.clock.now();
        let (mut expired, mut are_all_current) = (Vec::new(), true);
        for (key, read) in self.read_all(due.into_iter().collect()).await {
            match read {
                Ok(Some(Snapshot { record, at })) if self.is_last_seen(&key, &record) => {
                    self.ahead = self.ahead_at(at.now);
                    // The next state of the stream may have an earlier tick than the read.
                    let at = StoreClock { tick: self.tick, ..at };
                    expired.extend(self.apply(key, RecordState { record: Some(record), at }));
                }
                _ => are_all_current = false,
            }
        }
        expired.sort_by_key(|event| event.at);
        self.report(expired).await;
        if are_all_current {
            *check = ExpiryCheck::default();
            return Ok(());
        }
        let since = *check.behind_since.get_or_insert(began);
        check.not_before = self.clock.now().saturating_add(check.backoff.next());
        if self.clock.now().saturating_sub(since) > MAX_LAG {
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

    /// Reads these records, some of them concurrently.
    async fn read_all(&self, keys: Vec<Key>) -> Vec<(Key, Result<Option<Snapshot>>)> {
        let mut done = Vec::new();
        for keys in keys.chunks(MAX_READS) {
            let deadline = self.reports.attempt_deadline();
            let mut reads: Vec<_> = keys.iter().map(|key| (key, self.context.store.read(key, deadline))).collect();
            poll_fn(|task| {
                reads.retain_mut(|(key, read)| match read.as_mut().poll(task) {
                    Poll::Ready(read) => {
                        done.push((key.clone(), read));
                        false
                    }
                    Poll::Pending => true,
                });
                if reads.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        done
    }

    /// Notes that the store's clock read this, now or before.
    fn note_clock(&mut self, now: StoreTime) {
        self.ahead = self.ahead.max(self.ahead_at(now));
    }

    fn ahead_at(&self, now: StoreTime) -> i64 {
        now.millis().saturating_sub(whole_millis(self.clock.now()))
    }

    /// About what the store's clock reads.
    fn store_now(&self) -> StoreTime {
        StoreTime::from_millis(self.ahead.saturating_add(whole_millis(self.clock.now())))
    }

    /// When, on the clock, the next holder expires.
    fn next_expiry(&self) -> Option<Duration> {
        let (end, _) = self.expiries.first()?;
        // A millisecond later, because the clock is rounded down.
        let due = end.millis().saturating_sub(self.ahead).saturating_add(1);
        Some(Duration::from_millis(u64::try_from(due).unwrap_or_default()))
    }
}

fn whole_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
