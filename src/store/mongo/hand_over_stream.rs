//! How the handles of a store hear of what they are handed: one change stream for those on one runtime.
//!
//! Purpose: each open change stream keeps a connection of the client, so the handles of a hundred tenants cannot have one each.
//!
//! Mechanism: the ids of the handles of a store begin with the same digits, and the server filters by them. So the filter stays
//! the same when a handle comes or goes. One task reads the stream and passes on what it says of each handle. A handle whose id
//! begins with other digits has a stream of its own.
//!
//! Invariant: the stream tells each handle a tick first, and passes on each later hand-over to it. The stream keeps the last
//! hand-overs that it has read, for handles that join. If the stream has dropped some that a handle needs, the handle asks the
//! primary for its time. The stream cannot have read an event after that time before the handle had joined.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::{
    bson::{Document, Timestamp, doc},
    change_stream::ChangeStream,
    error::Result as DriverResult,
    options::ReadConcern,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::{
    super::Notification,
    Inner, MongoStore, document,
    execute::PRIMARY,
    fault::needs,
    stream_end::{End, ended_early},
    traffic::Traffic,
};
use crate::{AcquireId, Clock, FencingToken, HandleId, HybridTime, Result};

/// How long the server holds a request for events when there is none. A stream also lives on for so long after its last listener
/// has gone.
const AWAIT: Duration = Duration::from_secs(2);

/// How long the server may be silent before a handle that joins opens another stream.
const SILENCE: Duration = AWAIT.saturating_mul(5);

/// How many hand-overs a stream keeps for handles that join.
const MAX_KEPT: usize = 4_096;

/// The streams of a store on one runtime, by the digits with which the ids of their handles begin.
#[derive(Default)]
pub(super) struct HandOverStreams(Mutex<State>);

#[derive(Default)]
struct State {
    by_digits: HashMap<String, Stream>,
    /// How many there were.
    opened: u64,
}

/// A stream that is read or being opened.
struct Stream {
    number: u64,
    listeners: Vec<Listener>,
    /// All hand-overs after `kept_from` that were read.
    kept: VecDeque<HandOver>,
    kept_from: Timestamp,
    /// When, on the clock, the server answered last.
    heard_at: Duration,
}

/// That a handle was handed a key, or, without a token, robbed of it.
#[derive(Clone, Copy)]
struct HandOver {
    caller: AcquireId,
    token: Option<FencingToken>,
    at: Timestamp,
}

/// A handle that listens to a stream, until its receiver is dropped.
struct Listener {
    handle: HandleId,
    pass_on: UnboundedSender<Passed>,
}

/// What is passed on to a handle, and at last why the stream has ended.
type Passed = std::result::Result<Notification, End>;

impl HandOverStreams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a stream. Gives the number of one that has to be opened, and otherwise whether the handle is passed on all since
    /// the time for which it asked.
    fn join(&self, digits: &str, handle: HandleId, since: Timestamp, pass_on: &UnboundedSender<Passed>) -> Joined {
        let (now, mut state) = (Clock::Boot.now(), self.state());
        let listener = Listener { handle, pass_on: pass_on.clone() };
        if let Some(stream) = state.by_digits.get_mut(digits)
            && stream.heard_at.saturating_add(SILENCE) > now
        {
            let has_all = stream.kept_from <= since;
            if has_all {
                // Whoever is gone need not be told.
                let _told = pass_on.send(Ok(Notification::Started { since: super::tick(since) }));
                for HandOver { caller, token, .. } in stream.kept.iter().filter(|kept| kept.at > since) {
                    listener.tell(*caller, *token);
                }
            }
            stream.listeners.push(listener);
            return Joined::Open { has_all };
        }
        state.opened = state.opened.saturating_add(1);
        let number = state.opened;
        let (listeners, kept) = (vec![listener], VecDeque::new());
        // Those who listen to one that is silent listen again.
        state.by_digits.insert(digits.to_owned(), Stream { number, listeners, kept, kept_from: since, heard_at: now });
        Joined::First { number }
    }
}

enum Joined {
    First { number: u64 },
    Open { has_all: bool },
}

impl Listener {
    fn tell(&self, caller: AcquireId, token: Option<FencingToken>) {
        if self.handle == caller.handle {
            // Whoever is gone is left out before the next event is read.
            let _told = self.pass_on.send(Ok(Notification::of(caller, token)));
        }
    }
}

/// A stream from the side of the task that reads it. When this is dropped, all who listen are left.
struct Reading {
    traffic: Arc<Traffic>,
    digits: String,
    number: u64,
}

impl Reading {
    /// Does something with the stream, unless another one has taken its place.
    fn with<T>(&self, act: impl FnOnce(&mut Stream) -> T) -> Option<T> {
        let mut state = self.traffic.hand_over_streams.state();
        state.by_digits.get_mut(&self.digits).filter(|stream| stream.number == self.number).map(act)
    }

    /// Notes that the server has answered, and that somebody listens. If nobody does, the stream is given up.
    fn is_heard(&self) -> bool {
        let mut state = self.traffic.hand_over_streams.state();
        let Some(stream) = state.by_digits.get_mut(&self.digits).filter(|stream| stream.number == self.number) else {
            return false;
        };
        stream.heard_at = Clock::Boot.now();
        stream.listeners.retain(|listener| !listener.pass_on.is_closed());
        let is_heard = !stream.listeners.is_empty();
        if !is_heard {
            state.by_digits.remove(&self.digits);
        }
        is_heard
    }

    /// Passes on what an event says of each handle.
    fn pass_on(&self, event: &Document) {
        // An event always has a time.
        if let Ok(at) = event.get_timestamp("clusterTime") {
            self.with(|stream| stream.pass_on(handed(event), at));
        }
    }

    /// Tells why the stream has ended. Where it could not be opened, that is for whom it was opened: it may be because of
    /// the time from which it was to begin. The others listen again.
    fn end(&self, end: &End) {
        let told = if matches!(end, End::NotOpened(_)) { 1 } else { usize::MAX };
        self.with(|stream| {
            for listener in stream.listeners.iter().take(told) {
                let _told = listener.pass_on.send(Err(end.clone()));
            }
        });
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.traffic.hand_over_streams.state();
        if state.by_digits.get(&self.digits).is_some_and(|stream| stream.number == self.number) {
            state.by_digits.remove(&self.digits);
        }
    }
}

impl Stream {
    fn pass_on(&mut self, handed: Vec<(AcquireId, Option<FencingToken>)>, at: Timestamp) {
        for (caller, token) in handed {
            for listener in &self.listeners {
                listener.tell(caller, token);
            }
            self.kept.push_back(HandOver { caller, token, at });
        }
        while self.kept.len() > MAX_KEPT {
            self.kept_from = self.kept.pop_front().map_or(self.kept_from, |forgotten| forgotten.at);
        }
    }
}

/// Tells what is handed to this handle from `since` on, or from a later time that it tells, until nobody listens.
pub(super) async fn watch(
    store: &Arc<Inner>,
    handle: HandleId,
    since: HybridTime,
    tell: &UnboundedSender<Notification>,
) -> Result<()> {
    let mut passed = join(store, handle, since, tell).await?;
    loop {
        let told = tokio::select! {
            told = passed.recv() => told,
            () = tell.closed() => return Ok(()),
        };
        match told {
            Some(Ok(told)) => drop(tell.send(told)),
            Some(Err(end)) => return Err(end.meaning(store)),
            None => return Err(ended_early()),
        }
    }
}

/// Joins the stream of this handle, which is opened if there is none. Gives what is passed on.
async fn join(
    store: &Arc<Inner>,
    handle: HandleId,
    since: HybridTime,
    tell: &UnboundedSender<Notification>,
) -> Result<UnboundedReceiver<Passed>> {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let from = Timestamp { time: number(since.seconds), increment: number(since.ordinal) };
    let (traffic, digits) = (store.traffic.here(), store.handles.common_digits(handle));
    let (pass_on, passed) = mpsc::unbounded_channel();
    match traffic.hand_over_streams.join(&digits, handle, from, &pass_on) {
        Joined::First { number } => {
            let reading = Reading { traffic, digits, number };
            MongoStore::run_unwatched(run(Arc::clone(store), reading, from, pass_on));
        }
        Joined::Open { has_all: true } => {}
        Joined::Open { has_all: false } => {
            let now = store.operation_time().await.map_err(|error| store.meaning(error, needs::WATCH))?;
            let _told = tell.send(Notification::Started { since: super::tick(now) });
        }
    }
    Ok(passed)
}

/// Reads a stream until nobody listens or it ends.
async fn run(store: Arc<Inner>, reading: Reading, from: Timestamp, first: UnboundedSender<Passed>) {
    if let Err(end) = read(&store, &reading, from, first).await {
        reading.end(&end);
    }
}

async fn read(
    store: &Inner,
    reading: &Reading,
    from: Timestamp,
    first: UnboundedSender<Passed>,
) -> std::result::Result<(), End> {
    let _permit = store.client.stream_permit().map_err(End::TooMany)?;
    let mut events = store.hand_overs(&reading.digits, from).await.map_err(End::NotOpened)?;
    let _told = first.send(Ok(Notification::Started { since: super::tick(from) }));
    drop(first);
    while reading.is_heard() {
        // One that was opened can be opened again, whatever ended it.
        match events.next_if_any().await.map_err(End::Failed)? {
            Some(event) => reading.pass_on(&event),
            None if events.is_alive() => {}
            None => return Err(End::Closed),
        }
    }
    Ok(())
}

impl Inner {
    /// What is handed to the handles whose ids begin with these digits.
    async fn hand_overs(&self, digits: &str, from: Timestamp) -> DriverResult<ChangeStream<Document>> {
        let collection = self.database.collection::<Document>(&self.collection);
        let events = collection
            .watch()
            .pipeline(concerning(digits))
            .start_at_operation_time(from)
            .max_await_time(AWAIT)
            .read_concern(ReadConcern::majority())
            .selection_criteria(PRIMARY)
            .await?;
        Ok(events.with_type::<Document>())
    }
}

/// The events that concern handles whose ids begin with these digits. An update of a small document is logged as a
/// replacement, one of a larger document as what changed in it. With the type of the operation in it the server applies
/// this to the oplog itself; without, it makes an event of every change of a larger document first.
fn concerning(digits: &str) -> [Document; 2] {
    let theirs = doc! { "$regex": format!("(^|;){digits}") };
    [
        doc! { "$match": { "$or": [
            { "operationType": "replace", "fullDocument.handover": theirs.clone() },
            { "operationType": "update", "updateDescription.updatedFields.handover": theirs },
        ] } },
        doc! { "$project": {
            "clusterTime": 1, "fullDocument.handover": 1, "updateDescription.updatedFields.handover": 1,
        } },
    ]
}

/// Whom an event says to have been handed its key, or robbed of it.
fn handed(event: &Document) -> Vec<(AcquireId, Option<FencingToken>)> {
    let replaced = event.get_document("fullDocument");
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let handover = replaced.or(updated).and_then(|fields| fields.get_str("handover")).unwrap_or_default();
    document::handed(handover).unwrap_or_default()
}

#[cfg(test)]
mod tests;
