//! Watching what happens to a key.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::sync::{
    mpsc::{self, Receiver, Sender},
    oneshot,
};
use tracing::{debug, warn};

use crate::{
    Clock, Error, Key, Mongoseal, Result,
    record::{Event, Moment, Record, StoreTime, events},
    retry::Backoff,
    seal::{self, Inner},
    store::{Sighting, State},
    token::Tick,
};

/// How many states and how many events are kept for who is slow.
const ROOM: usize = 64;
/// Between which bounds one polls that is not told.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How far behind the record what is told may be, before it counts as stuck.
const LAG: Duration = Duration::from_secs(5);

impl Mongoseal {
    /// Watches a key: gives what happens to its leases, one after another.
    ///
    /// First come those who hold the key, as [`Holds`](crate::EventKind::Holds); then whatever happens
    /// after this has returned, each event with the token it is about. See [`EventStream`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where nobody answered within the operation timeout,
    /// [`Error::Corrupt`] where the document is not a record, [`Error::Invalid`] for a key that is none,
    /// or where the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the watch and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{EventKind, Mongoseal};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let token = lease.token();
    ///
    /// let mut events = seal.watch("reports/nightly").await?;
    /// lease.release().await?;
    ///
    /// let first = events.next().await.expect("it goes on")?;
    /// assert!(matches!(first.kind, EventKind::Holds { .. }));
    /// let second = events.next().await.expect("it goes on")?;
    /// assert_eq!((second.token, second.kind), (token, EventKind::Released));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch<K>(&self, key: K) -> Result<EventStream>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into)?;
        let inner = &self.inner;
        inner.runs()?;
        let (clock, give_up) = (inner.clock(), inner.give_up());
        let (tell, events) = mpsc::channel(ROOM);
        let (begun, beginning) = oneshot::channel();
        let watcher = Watcher {
            inner: Arc::clone(inner),
            key,
            clock,
            tell,
            begun: Some((begun, give_up)),
            before: None,
            seen: None,
        };
        inner.tasks.spawn(watcher.run());
        tokio::select! {
            biased;
            begun = beginning => match begun {
                Ok(begun) => begun?,
                Err(_ended) => return Err(seal::shut_down()),
            },
            () = clock.sleep_until(give_up) => {
                return Err(Error::unavailable(
                    "the store did not say who holds the key within the operation timeout: check that it can be reached and ask again",
                ));
            }
        }
        Ok(EventStream { inner: Arc::clone(inner), events, ended: false })
    }
}

/// What happens to a key, in order.
///
/// Also a [`Stream`]. It goes on until it is dropped, until its handle is shut down, or until an error
/// that asking again does not mend; that error is the last it gives.
///
/// # Guarantees
///
/// Where the store tells of each change, as the memory store does and MongoDB with its change stream, no
/// grant is left out, however short, and every grant is followed by how it ended. An expiry is told when
/// it comes, also where nobody touches the key. A lease that is kept alive is told once.
///
/// While the store cannot be reached nothing is told. A change stream that was interrupted goes on where
/// it was. Where it cannot, as when the oplog has moved on or the collection was dropped, the record is
/// read again and compared with what it was: then a lease that came and went in between is left out, one
/// that ended after its time would have been over is told as expired, and one that was given on and then
/// taken up by another acquire as released. The same goes for a watch that polls.
///
/// It polls where there is no change stream, as for a user without the privilege `changeStream`: at
/// intervals that grow to a second, and when the time of the next holder is over.
///
/// Events wait for who reads slowly, and on MongoDB for no longer than the oplog keeps them. Each watch
/// is a change stream of its own, and takes one of its client's connections.
#[must_use = "events are told to who asks for them"]
pub struct EventStream {
    inner: Arc<Inner>,
    events: Receiver<Result<Event>>,
    ended: bool,
}

impl EventStream {
    /// The next event, when it happens; `None` after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where the document has become something else than a record, and
    /// [`Error::Invalid`] where the deployment or its privileges must be changed, or once the handle was
    /// shut down. It is the last that is given.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing: the next call gives the event that this one would have given.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context)).unwrap_or_else(|| {
            Err(if self.inner.closing.is_cancelled() {
                seal::shut_down()
            } else {
                Error::invalid("the runtime that watched has ended: watch on one that goes on")
            })
        });
        self.ended = event.is_err();
        Poll::Ready(Some(event))
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        self.poll_event(context)
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

/// Who finds out what happens to a key.
struct Watcher {
    inner: Arc<Inner>,
    key: Key,
    clock: Clock,
    tell: Sender<Result<Event>>,
    /// To whom it is said that the watch has begun, and until when it must have.
    begun: Option<(oneshot::Sender<Result<()>>, Duration)>,
    /// The record as it was last, without holders whose time was over.
    before: Option<Record>,
    /// When that was, and what the clock read then.
    seen: Option<(Moment, Duration)>,
}

impl Watcher {
    /// Tells until nobody listens, the handle is shut down, or an error that does not pass.
    async fn run(mut self) {
        let (closing, gone) = (self.inner.closing.clone(), self.tell.clone());
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
            let prepared = self.inner.prepare(self.inner.settings.attempt).await;
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
        let mut following = self.inner.store.follow(&self.key, tell);
        let mut look = Look::default();
        loop {
            let due = self.due().map(|due| due.max(look.not_before));
            tokio::select! {
                biased;
                Some(state) = states.recv() => {
                    *backoff = Backoff::new();
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
        let read = self.inner.store.read(&self.key, self.inner.settings.attempt).await;
        look.not_before = self.clock.now().saturating_add(look.backoff.next());
        match read {
            Ok(Sighting::Seen { record, at }) if self.knows(&record) => {
                *look = Look::default();
                // What is told next may have an earlier tick than the read.
                let tick = self.seen.map_or(at.tick, |(seen, _)| seen.tick);
                self.meet(State { record: Some(record), at: Moment { tick, ..at } }).await;
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
            let read = self.inner.store.read(&self.key, self.inner.settings.attempt).await;
            let state = read.map(|sighting| match sighting {
                Sighting::Nothing => State { record: None, at: self.about_now() },
                Sighting::Seen { record, at } => State { record: Some(record), at },
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
    async fn meet(&mut self, state: State) -> bool {
        let State { record, at } = state;
        // A new primary may not know yet what a majority has, and give what was told before.
        if self.seen.is_some_and(|(seen, _)| at.tick < seen.tick) {
            return false;
        }
        let happened = if self.seen.is_none() {
            events::present(record.as_deref(), at.now)
        } else {
            events::changes(self.before.as_ref(), record.as_deref(), at.now)
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
    fn about_now(&self) -> Moment {
        let Some((seen, read_at)) = self.seen else {
            return Moment { now: StoreTime::default(), tick: Tick { seconds: 0, ordinal: 0 } };
        };
        let since = u64::try_from(self.clock.now().saturating_sub(read_at).as_millis()).unwrap_or(u64::MAX);
        Moment { now: seen.now.after(since), ..seen }
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static)) {
        warn!(key = %self.key, error, "the store does not tell what happens to a key: it is polled");
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
