//! The task behind a watch: it follows the records of a key or of a prefix, or polls them, and reports each change.
//!
//! Mechanism: the store's stream of states is followed. It begins with a snapshot. Each state of a record is compared with
//! the one before. If the stream fails, changes may be missing: it is followed again, and what the new snapshot changes is
//! reported behind [`Watched::missed`]. If the store has no such stream, the records are polled. Because expired holders
//! stay in their records, the task also reads a record when its next holder expires, and before a later change of another
//! key.
//!
//! Invariants: a state with an earlier tick than the last one is ignored. Of a prefix, a record is kept while it has
//! holders. What a snapshot changes is kept until it is reported, also if the stream fails before the snapshot is complete.

use std::{
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    mem,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::sync::mpsc;
use tracing::warn;

use super::{
    Started,
    reports::{CHANNEL_SIZE, Reports},
};
use crate::{
    Clock, Deadline, Error, Key, Result,
    engine::{context::Context, retry::Backoff},
    record::{KeyFilter, Record, StoreClock, StoreTime, events},
    store::{FollowedState, RecordState, Snapshot},
    types::token::HybridTime,
};

/// How long the stream may be behind a record before it counts as stuck. A store that goes on where it was may have to read
/// many changes first.
const MAX_LAG: Duration = Duration::from_secs(600);

/// How many records are read concurrently.
const MAX_READS: usize = 32;

/// What a watch reports.
pub(crate) trait Watched: Send + Sync + Sized + 'static {
    /// The items at the beginning of the watch, for each record.
    fn first(key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Self>;

    /// The items for a change.
    fn changes(key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Self>;

    /// The item for changes between these times that may be missing. `None`: that is not reported.
    fn missed(since: StoreTime, until: StoreTime) -> Option<Self>;

    /// Sorts the first items of many keys.
    fn sort_first(_first: &mut [Self]) {}
}

/// The task of a watch.
pub(super) struct Watcher<T> {
    pub(super) context: Arc<Context>,
    pub(super) filter: KeyFilter,
    pub(super) clock: Clock,
    pub(super) reports: Reports<T>,
    /// The items of a snapshot that is not complete.
    pub(super) pending: Vec<T>,
    /// Whether changes before the next snapshot may be missing.
    pub(super) is_interrupted: bool,
    /// The store's time of the last state that was received.
    seen: StoreTime,
    /// The last states of the records, without expired holders.
    pub(super) records: HashMap<Key, Record>,
    /// When, on the store's clock, each holder of these records expires.
    pub(super) expiries: BTreeSet<(StoreTime, Key)>,
    /// The tick of the last state.
    pub(super) tick: HybridTime,
    /// How far the store's clock is ahead of the clock, in milliseconds, if that is known.
    ahead: Option<i64>,
}

impl<T: Watched> Watcher<T> {
    /// Starts the task. Returns the reply that the watch has begun, which arrives before `give_up`, and the items.
    pub(super) fn start(context: &Arc<Context>, filter: KeyFilter, give_up: Deadline) -> Started<T> {
        let subject = match &filter {
            KeyFilter::Key(key) => key.to_string(),
            KeyFilter::Prefix(prefix) => prefix.clone(),
        };
        let (reports, started) = Reports::new(context, subject, give_up);
        let watcher = Self {
            context: Arc::clone(context),
            filter,
            clock: context.clock(),
            reports,
            pending: Vec::new(),
            is_interrupted: false,
            seen: StoreTime::default(),
            records: HashMap::new(),
            expiries: BTreeSet::new(),
            tick: HybridTime { seconds: 0, ordinal: 0 },
            ahead: None,
        };
        context.spawn(watcher.run());
        started
    }

    /// Reports items until the receiver is dropped, the handle is shut down, or a permanent error.
    async fn run(mut self) {
        let (closing, closed) = (self.context.closing.clone(), self.reports.closed());
        let watch = async {
            let error = self.watch().await;
            self.reports.end(error).await;
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = closed => {}
            () = watch => {}
        }
    }

    /// Watches until an error that a retry does not remove.
    async fn watch(&mut self) -> Error {
        let mut backoff = Backoff::new();
        loop {
            let prepared = self.context.prepare(self.reports.attempt_deadline()).await;
            let is_prepared = prepared.is_ok();
            if is_prepared && !self.context.store.capabilities().change_streams {
                return self.poll().await;
            }
            let error = match prepared {
                Ok(()) => self.follow(&mut backoff).await,
                Err(error) => error,
            };
            if is_prepared && matches!(error, Error::Invalid { .. }) {
                self.warn(&error);
                return self.poll().await;
            }
            let next = self.clock.now().saturating_add(backoff.next());
            if let Err(permanent) = self.reports.ensure_transient(error, next) {
                return permanent;
            }
            self.clock.sleep_until(next).await;
        }
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static)) {
        let watched = &self.reports.subject;
        warn!(watched, error, "the change stream cannot be opened: this watch polls from now on");
    }

    /// Follows the store's stream of states until it ends.
    async fn follow(&mut self, backoff: &mut Backoff) -> Error {
        if !self.reports.has_begun() {
            self.records.clear();
            self.expiries.clear();
            self.pending.clear();
        }
        let (tell, mut states) = mpsc::channel(CHANNEL_SIZE);
        let known = self.records.keys().cloned().collect();
        let mut following = self.context.store.follow(&self.filter, known, tell);
        let mut check = ExpiryCheck::default();
        let error = loop {
            let due = self.next_expiry().filter(|_| check.is_complete).map(|due| due.max(check.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    if check.is_complete {
                        *backoff = Backoff::new();
                        check.behind_since = None;
                    }
                    if let Err(error) = self.note(state, &mut check).await {
                        break error;
                    }
                }
                ended = &mut following => {
                    let mut error = ended.err();
                    while let Ok(state) = states.try_recv() {
                        if let Err(earlier) = self.note(state, &mut check).await {
                            error = Some(earlier);
                            break;
                        }
                    }
                    break error.unwrap_or_else(|| Error::unavailable("the stream of changes has ended: it is opened again"));
                }
                () = self.clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    if let Err(error) = self.check_expiries(&mut check, self.store_now(), None).await {
                        break error;
                    }
                }
            }
        };
        self.is_interrupted = self.reports.has_begun();
        error
    }

    /// Takes a state of the stream, and reports what happened until then.
    async fn note(&mut self, state: FollowedState, check: &mut ExpiryCheck) -> Result<()> {
        match state {
            FollowedState::Complete { at } => {
                check.is_complete = true;
                self.note_clock(at.now);
                self.complete(at.now).await;
            }
            FollowedState::Record { key, state } => {
                if check.is_complete && self.clock.now() >= check.not_before {
                    self.check_expiries(check, state.at.now, Some(&key)).await?;
                }
                let at = state.at.now;
                let items = self.apply(key, state);
                self.pending.extend(items);
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
        if self.reports.begin() {
            T::sort_first(&mut self.pending);
        } else if mem::take(&mut self.is_interrupted)
            && let Some(missed) = T::missed(self.seen.min(at), at)
        {
            self.reports.send(missed).await;
        }
        self.seen = at;
        self.report_pending().await;
    }

    async fn report_pending(&mut self) {
        for item in mem::take(&mut self.pending) {
            self.reports.send(item).await;
        }
    }

    /// Takes a state of a record. Returns what happened.
    pub(super) fn apply(&mut self, key: Key, state: RecordState) -> Vec<T> {
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
        let items = if self.reports.has_begun() {
            T::changes(&key, before.as_ref(), record.as_deref(), at.now)
        } else {
            T::first(&key, record.as_deref(), at.now)
        };
        let is_key = matches!(self.filter, KeyFilter::Key(_));
        if let Some(record) = record.filter(|record| is_key || !record.holders.is_empty()) {
            let record = events::without_expired(*record, at.now);
            let ends = record.holders.iter().filter(|holder| holder.remaining(at.now).is_some());
            self.expiries.extend(ends.map(|holder| (holder.expires_at, key.clone())));
            self.records.insert(key, record);
        }
        items
    }

    /// Reads the records of the holders that expire until this time on the store's clock, without those of one key.
    /// Reports the holders that have expired. If a record has changed, the stream reports that, too, and in order.
    async fn check_expiries(&mut self, check: &mut ExpiryCheck, until: StoreTime, except: Option<&Key>) -> Result<()> {
        let mut due: Vec<Key> = Vec::new();
        for (_, key) in self.expiries.iter().take_while(|(end, _)| *end <= until) {
            if due.len() < MAX_READS && Some(key) != except && !due.contains(key) {
                due.push(key.clone());
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        let began = self.clock.now();
        let (mut are_all_current, mut is_behind) = (true, false);
        for (key, read) in self.read_all(due).await {
            match read {
                Ok(Some(Snapshot { record, at })) if self.is_last_seen(&key, &record) => {
                    self.ahead = Some(self.ahead_at(at.now));
                    // The next state of the stream may have an earlier tick than the read.
                    let at = StoreClock { tick: self.tick, ..at };
                    let expired = self.apply(key, RecordState { record: Some(record), at });
                    self.pending.extend(expired);
                }
                // The stream is interrupted, too.
                Err(Error::Unavailable { .. }) => are_all_current = false,
                Err(error) if matches!(self.filter, KeyFilter::Key(_)) => return Err(error),
                _ => is_behind = true,
            }
        }
        self.report_pending().await;
        if are_all_current && !is_behind {
            *check = ExpiryCheck { is_complete: check.is_complete, ..ExpiryCheck::default() };
            return Ok(());
        }
        check.not_before = self.clock.now().saturating_add(check.backoff.next());
        if !is_behind {
            check.behind_since = None;
            return Ok(());
        }
        let since = *check.behind_since.get_or_insert(began);
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

    /// Reads these records, some of them concurrently. Returns them in this order.
    pub(super) async fn read_all(&self, keys: Vec<Key>) -> Vec<(Key, Result<Option<Snapshot>>)> {
        let mut done = Vec::new();
        for keys in keys.chunks(MAX_READS) {
            let deadline = self.reports.attempt_deadline();
            let mut reads: Vec<_> = keys.iter().map(|key| (self.context.store.read(key, deadline), None)).collect();
            poll_fn(|task| {
                let mut is_pending = false;
                for (read, answer) in reads.iter_mut().filter(|(_, answer)| answer.is_none()) {
                    match read.as_mut().poll(task) {
                        Poll::Ready(read) => *answer = Some(read),
                        Poll::Pending => is_pending = true,
                    }
                }
                if is_pending { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            let answers = reads.into_iter().filter_map(|(_, answer)| answer);
            done.extend(keys.iter().cloned().zip(answers));
        }
        done
    }

    /// Notes that the store's clock read this, now or before.
    pub(super) fn note_clock(&mut self, now: StoreTime) {
        self.ahead = self.ahead.max(Some(self.ahead_at(now)));
    }

    fn ahead_at(&self, now: StoreTime) -> i64 {
        now.millis().saturating_sub(whole_millis(self.clock.now()))
    }

    pub(super) fn knows_clock(&self) -> bool {
        self.ahead.is_some()
    }

    /// About what the store's clock reads.
    pub(super) fn store_now(&self) -> StoreTime {
        let ahead =
            self.ahead.map(|ahead| StoreTime::from_millis(ahead.saturating_add(whole_millis(self.clock.now()))));
        ahead.unwrap_or_default()
    }

    /// When, on the clock, the next holder expires.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let (end, _) = self.expiries.first()?;
        // A millisecond later, because the clock is rounded down.
        let due = end.millis().saturating_sub(self.ahead?).saturating_add(1);
        Some(Duration::from_millis(u64::try_from(due).unwrap_or_default()))
    }
}

fn whole_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The state of a stream, and of the checks whether a holder has expired.
struct ExpiryCheck {
    /// Whether the snapshot is complete.
    is_complete: bool,
    /// When, on the clock, the next check may be sent.
    not_before: Duration,
    backoff: Backoff,
    /// Since when a record is ahead of the stream.
    behind_since: Option<Duration>,
}

impl Default for ExpiryCheck {
    fn default() -> Self {
        Self { is_complete: false, not_before: Duration::ZERO, backoff: Backoff::new(), behind_since: None }
    }
}
