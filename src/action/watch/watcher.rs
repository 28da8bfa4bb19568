//! The task behind a watch: it follows a key's record, or polls it, and reports each change.
//!
//! Mechanism: the store's stream of changes is followed, and resumed after an interruption. If the store has no such
//! stream, the record is polled. Each state is compared with the one before. Because expired holders stay in the
//! record, the task also reads it when the next holder expires.
//!
//! Invariant: a state with an earlier tick than the last one is ignored.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tracing::warn;

use super::{
    Started,
    task::{self, CHANNEL_SIZE, Reports, WatchTask},
};
use crate::{
    Clock, Deadline, Error, Key, Result,
    engine::{context::Context, retry::Backoff},
    record::{Record, StoreClock, StoreTime, events},
    store::{RecordState, Snapshot},
    types::token::HybridTime,
};

/// The shortest and the longest delay between two polls.
pub(super) const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How far the stream may be behind the record before it counts as stuck.
pub(super) const MAX_LAG: Duration = Duration::from_secs(5);

/// How events are made: from the record at the beginning of the watch, and from each change after that.
pub(crate) struct EventDiff<T> {
    pub(crate) first: fn(&Key, Option<&Record>, StoreTime) -> Vec<T>,
    pub(crate) then: fn(&Key, Option<&Record>, Option<&Record>, StoreTime) -> Vec<T>,
}

/// The task of a watch.
pub(super) struct Watcher<T> {
    context: Arc<Context>,
    key: Key,
    clock: Clock,
    diff: EventDiff<T>,
    reports: Reports<T>,
    /// The last state of the record, without expired holders.
    before: Option<Record>,
    /// The store's clock at that state, and what the clock read then.
    seen: Option<(StoreClock, Duration)>,
}

impl<T: Send + 'static> Watcher<T> {
    /// Starts the task. Returns the reply that the watch has begun, which arrives before `give_up`, and the events.
    pub(super) fn start(context: &Arc<Context>, key: Key, diff: EventDiff<T>, give_up: Deadline) -> Started<T> {
        task::start(context, key.to_string(), give_up, |reports| Self {
            context: Arc::clone(context),
            key,
            clock: context.clock(),
            diff,
            reports,
            before: None,
            seen: None,
        })
    }
}

impl<T: Send + 'static> WatchTask for Watcher<T> {
    type Event = T;

    fn reports(&mut self) -> &mut Reports<T> {
        &mut self.reports
    }

    /// Follows the store's stream of changes until it ends.
    async fn follow(&mut self, backoff: &mut Backoff) -> Error {
        let (tell, mut states) = mpsc::channel(CHANNEL_SIZE);
        let mut following = self.context.store.follow(&self.key, tell);
        let (mut check, mut first) = (ExpiryCheck::default(), true);
        loop {
            let due = self.next_expiry().map(|due| due.max(check.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    // The first state is no sign that the stream works.
                    if !mem::replace(&mut first, false) {
                        *backoff = Backoff::new();
                    }
                    check = ExpiryCheck::default();
                    self.note_state(state).await;
                }
                ended = &mut following => {
                    while let Ok(state) = states.try_recv() {
                        self.note_state(state).await;
                    }
                    return ended.err().unwrap_or_else(|| Error::unavailable("the stream of changes has ended: it is opened again"));
                }
                () = self.clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    if let Err(error) = self.check_expiry(&mut check).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Polls the record, because there is no stream of changes.
    async fn poll(&mut self) -> Error {
        let (first, longest) = POLL_BOUNDS;
        let mut backoff = Backoff::between(first, longest);
        loop {
            let read = self.context.store.read(&self.key, self.reports.attempt_deadline()).await;
            let state = read.map(|snapshot| match snapshot {
                None => RecordState { record: None, at: self.about_now() },
                Some(Snapshot { record, at }) => RecordState { record: Some(record), at },
            });
            let failed = match state {
                Ok(state) => {
                    if self.note_state(state).await {
                        // After a change, more may follow soon.
                        backoff = Backoff::between(first, longest);
                    }
                    None
                }
                Err(error) => Some(error),
            };
            let now = self.clock.now();
            let next = now.saturating_add(backoff.next());
            if let Some(Err(permanent)) = failed.map(|error| self.reports.ensure_transient(error, next)) {
                return permanent;
            }
            let due = self.next_expiry().map_or(next, |due| due.max(now.saturating_add(first)));
            self.clock.sleep_until(next.min(due)).await;
        }
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static)) {
        warn!(key = %self.key, error, "the key's change stream cannot be opened: this watch polls its record from now on");
    }
}

impl<T: Send + 'static> Watcher<T> {
    /// Checks by the store's clock whether a holder has expired: it stays in the record until the next change, which
    /// may never come.
    async fn check_expiry(&mut self, check: &mut ExpiryCheck) -> Result<()> {
        let began = self.clock.now();
        let read = self.context.store.read(&self.key, self.reports.attempt_deadline()).await;
        check.not_before = self.clock.now().saturating_add(check.backoff.next());
        match read {
            Ok(Some(Snapshot { record, at })) if self.is_last_seen(&record) => {
                *check = ExpiryCheck::default();
                // The next state of the stream may have an earlier tick than the read.
                let tick = self.seen.map_or(at.tick, |(seen, _)| seen.tick);
                self.note_state(RecordState { record: Some(record), at: StoreClock { tick, ..at } }).await;
            }
            // The record has changed since. The stream reports that, too, and in order.
            Ok(_) => {
                let since = *check.behind_since.get_or_insert(began);
                if self.clock.now().saturating_sub(since) > MAX_LAG {
                    return Err(Error::unavailable("the stream of changes is behind the record: it is opened again"));
                }
            }
            Err(Error::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether a record is the last state.
    fn is_last_seen(&self, record: &Record) -> bool {
        self.before.as_ref().is_some_and(|before| {
            before.last_seen == record.last_seen
                && before.version == record.version
                && before.holders.iter().all(|holder| record.holders.contains(holder))
        })
    }

    /// Takes a state of the record, and reports what happened. Returns whether anything did.
    async fn note_state(&mut self, state: RecordState) -> bool {
        let RecordState { record, at } = state;
        // A new primary may be behind a majority, and return an earlier state.
        if self.seen.is_some_and(|(seen, _)| at.tick < seen.tick) {
            return false;
        }
        let happened = if self.seen.is_none() {
            (self.diff.first)(&self.key, record.as_deref(), at.now)
        } else {
            (self.diff.then)(&self.key, self.before.as_ref(), record.as_deref(), at.now)
        };
        self.before = record.map(|record| events::without_expired(*record, at.now));
        self.seen = Some((at, self.clock.now()));
        self.reports.begin();
        let any = !happened.is_empty();
        for event in happened {
            self.reports.send(event).await;
        }
        any
    }

    /// When, on the clock, the next holder expires.
    fn next_expiry(&self) -> Option<Duration> {
        let (seen, read_at) = self.seen?;
        let holders = &self.before.as_ref()?.holders;
        let left = holders.iter().filter_map(|holder| holder.remaining(seen.now)).min()?;
        Some(read_at.saturating_add(left))
    }

    /// About what the store's clocks read, if a poll finds no record.
    fn about_now(&self) -> StoreClock {
        let Some((seen, read_at)) = self.seen else {
            return StoreClock { now: StoreTime::default(), tick: HybridTime { seconds: 0, ordinal: 0 } };
        };
        let since = u64::try_from(self.clock.now().saturating_sub(read_at).as_millis()).unwrap_or(u64::MAX);
        StoreClock { now: seen.now.after(since), ..seen }
    }
}

/// The state of the checks whether a holder has expired.
pub(super) struct ExpiryCheck {
    /// When, on the clock, the next check may be sent.
    pub(super) not_before: Duration,
    pub(super) backoff: Backoff,
    /// Since when the record is ahead of the stream.
    pub(super) behind_since: Option<Duration>,
}

impl Default for ExpiryCheck {
    fn default() -> Self {
        Self { not_before: Duration::ZERO, backoff: Backoff::new(), behind_since: None }
    }
}
