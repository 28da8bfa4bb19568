//! Who finds out what happens to a key: told by the store, or by asking.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::{
    mpsc::{self, Receiver, Sender},
    oneshot,
};
use tracing::{debug, warn};

use crate::{
    Clock, Deadline, Error, Key, Result,
    engine::{context::Context, retry::Backoff},
    record::{Record, StoreClock, StoreTime, events},
    store::{RecordState, Snapshot},
    types::token::HybridTime,
};

/// How many states and how many events are kept for who is slow.
const ROOM: usize = 64;
/// Between which bounds one polls that is not told.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How far behind the record what is told may be, before it counts as stuck.
const LAG: Duration = Duration::from_secs(5);

/// What is told of a key: of its record when the watch begins, and of each change after that.
pub(crate) struct EventDiff<T> {
    pub(crate) first: fn(Option<&Record>, StoreTime) -> Vec<T>,
    pub(crate) then: fn(Option<&Record>, Option<&Record>, StoreTime) -> Vec<T>,
}

/// Who finds out what happens to a key.
pub(super) struct Watcher<T> {
    context: Arc<Context>,
    key: Key,
    clock: Clock,
    tale: EventDiff<T>,
    tell: Sender<Result<T>>,
    /// To whom it is said that the watch has begun, and until when it must have.
    begun: Option<(oneshot::Sender<Result<()>>, Duration)>,
    /// The record as it was last, without holders whose time was over.
    before: Option<Record>,
    /// When that was, and what the clock read then.
    seen: Option<(StoreClock, Duration)>,
}

impl<T: Send + 'static> Watcher<T> {
    /// Watches on a task of its own. Gives who says that the watch has begun, which must be until
    /// `give_up`, and the events.
    pub(super) fn start(
        context: &Arc<Context>,
        key: Key,
        tale: EventDiff<T>,
        give_up: Deadline,
    ) -> (oneshot::Receiver<Result<()>>, Receiver<Result<T>>) {
        let (tell, events) = mpsc::channel(ROOM);
        let (begun, beginning) = oneshot::channel();
        let watcher = Self {
            context: Arc::clone(context),
            key,
            clock: context.clock(),
            tale,
            tell,
            begun: Some((begun, give_up.reading())),
            before: None,
            seen: None,
        };
        context.spawn(watcher.run());
        (beginning, events)
    }

    /// Tells until nobody listens, the handle is shut down, or an error that does not pass.
    async fn run(mut self) {
        let (closing, gone) = (self.context.closing.clone(), self.tell.clone());
        let watch = async {
            let error = self.watch().await;
            match self.begun.take() {
                Some((begun, _)) => drop(begun.send(Err(error))),
                None => drop(self.tell.send(Err(error)).await),
            }
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = gone.closed() => {}
            () = watch => {}
        }
    }

    /// Watches until an error that asking again does not mend.
    async fn watch(&mut self) -> Error {
        let mut backoff = Backoff::new();
        loop {
            let prepared = self.context.prepare(Deadline::after(self.clock, self.context.settings.attempt)).await;
            let is_prepared = prepared.is_ok();
            let error = match prepared {
                Ok(()) => self.follow(&mut backoff).await,
                Err(error) => error,
            };
            if is_prepared && matches!(error, Error::Invalid { .. }) {
                self.warn(&error);
                return self.poll().await;
            }
            let next = self.clock.now().saturating_add(backoff.next());
            if let Err(lasting) = self.passes(error, next) {
                return lasting;
            }
            self.clock.sleep_until(next).await;
        }
    }

    /// Tells what the store tells, until it ends.
    async fn follow(&mut self, backoff: &mut Backoff) -> Error {
        let (tell, mut states) = mpsc::channel(ROOM);
        let mut following = self.context.store.follow(&self.key, tell);
        let (mut look, mut first) = (Look::default(), true);
        loop {
            let due = self.due().map(|due| due.max(look.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    // How the record is when it begins is no sign that it goes on.
                    if !mem::replace(&mut first, false) {
                        *backoff = Backoff::new();
                    }
                    look = Look::default();
                    self.meet(state).await;
                }
                ended = &mut following => {
                    while let Ok(state) = states.try_recv() {
                        self.meet(state).await;
                    }
                    return ended.err().unwrap_or_else(|| Error::unavailable("the store has ceased to tell"));
                }
                () = self.clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    if let Err(error) = self.look(&mut look).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Looks whether a holder's time is over, by the store's clock: it stays in the record until the next
    /// change, and nobody may make one.
    async fn look(&mut self, look: &mut Look) -> Result<()> {
        let began = self.clock.now();
        let read = self.context.store.read(&self.key, Deadline::after(self.clock, self.context.settings.attempt)).await;
        look.not_before = self.clock.now().saturating_add(look.backoff.next());
        match read {
            Ok(Some(Snapshot { record, at })) if self.knows(&record) => {
                *look = Look::default();
                // What is told next may have an earlier tick than the read.
                let tick = self.seen.map_or(at.tick, |(seen, _)| seen.tick);
                self.meet(RecordState { record: Some(record), at: StoreClock { tick, ..at } }).await;
            }
            // The record has changed since. That is told, too, and what is told comes in order.
            Ok(_) => {
                let since = *look.behind_since.get_or_insert(began);
                if self.clock.now().saturating_sub(since) > LAG {
                    return Err(Error::unavailable("what the store tells is behind the record: it is followed anew"));
                }
            }
            Err(Error::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether a record is the one that was told last.
    fn knows(&self, record: &Record) -> bool {
        self.before.as_ref().is_some_and(|before| {
            before.last_seen == record.last_seen
                && before.version == record.version
                && before.holders.iter().all(|holder| record.holders.contains(holder))
        })
    }

    /// Asks, where nobody tells.
    async fn poll(&mut self) -> Error {
        let (first, longest) = POLL;
        let mut backoff = Backoff::between(first, longest);
        loop {
            let read =
                self.context.store.read(&self.key, Deadline::after(self.clock, self.context.settings.attempt)).await;
            let state = read.map(|sighting| match sighting {
                None => RecordState { record: None, at: self.about_now() },
                Some(Snapshot { record, at }) => RecordState { record: Some(record), at },
            });
            let failed = match state {
                Ok(state) => {
                    if self.meet(state).await {
                        // Where something happens, more may.
                        backoff = Backoff::between(first, longest);
                    }
                    None
                }
                Err(error) => Some(error),
            };
            let now = self.clock.now();
            let next = now.saturating_add(backoff.next());
            if let Some(Err(lasting)) = failed.map(|error| self.passes(error, next)) {
                return lasting;
            }
            let due = self.due().map_or(next, |due| due.max(now.saturating_add(first)));
            self.clock.sleep_until(next.min(due)).await;
        }
    }

    /// Takes note of a state of the record, and tells what happened. Says whether anything did.
    async fn meet(&mut self, state: RecordState) -> bool {
        let RecordState { record, at } = state;
        // A new primary may not know yet what a majority has, and give what was told before.
        if self.seen.is_some_and(|(seen, _)| at.tick < seen.tick) {
            return false;
        }
        let happened = if self.seen.is_none() {
            (self.tale.first)(record.as_deref(), at.now)
        } else {
            (self.tale.then)(self.before.as_ref(), record.as_deref(), at.now)
        };
        self.before = record.map(|record| events::without_expired(*record, at.now));
        self.seen = Some((at, self.clock.now()));
        if let Some((begun, _)) = self.begun.take() {
            drop(begun.send(Ok(())));
        }
        let any = !happened.is_empty();
        for event in happened {
            // Where nobody listens any more this task ends.
            drop(self.tell.send(Ok(event)).await);
        }
        any
    }

    /// When, on the clock, the time of the next holder is over.
    fn due(&self) -> Option<Duration> {
        let (seen, read_at) = self.seen?;
        let holders = &self.before.as_ref()?.holders;
        let left = holders.iter().filter_map(|holder| holder.remaining(seen.now)).min()?;
        Some(read_at.saturating_add(left))
    }

    /// About what the store's clocks read, where it does not say.
    fn about_now(&self) -> StoreClock {
        let Some((seen, read_at)) = self.seen else {
            return StoreClock { now: StoreTime::default(), tick: HybridTime { seconds: 0, ordinal: 0 } };
        };
        let since = u64::try_from(self.clock.now().saturating_sub(read_at).as_millis()).unwrap_or(u64::MAX);
        StoreClock { now: seen.now.after(since), ..seen }
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static)) {
        warn!(key = %self.key, error, "the key cannot be followed by a change stream: from now on this watch polls its record");
    }

    /// Whether asking again at this time may mend an error; if not, it is given back.
    fn passes(&self, error: Error, next: Duration) -> Result<()> {
        let too_late = self.begun.as_ref().is_some_and(|(_, give_up)| *give_up <= next);
        if too_late || !matches!(error, Error::Unavailable { .. }) {
            return Err(error);
        }
        let error: &(dyn std::error::Error + 'static) = &error;
        debug!(key = %self.key, error, "a watch is interrupted");
        Ok(())
    }
}

/// How it stands with looking whether a holder's time is over.
struct Look {
    /// When, on the clock, it may be looked again.
    not_before: Duration,
    backoff: Backoff,
    /// Since when the record was seen to have changed and that was not told.
    behind_since: Option<Duration>,
}

impl Default for Look {
    fn default() -> Self {
        Self { not_before: Duration::ZERO, backoff: Backoff::new(), behind_since: None }
    }
}
