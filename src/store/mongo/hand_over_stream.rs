//! How the handles of a store hear of what they are handed: one change stream for those on one runtime.
//!
//! Purpose: each open change stream keeps a connection of the client, so the handles of a hundred tenants cannot have one each.
//!
//! Mechanism: the ids of the handles of a store begin with the same digits, and the server filters by them. So the filter stays
//! the same when a handle comes or goes. One task reads the stream and passes on what it says of each handle. A handle whose id
//! begins with other digits has a stream of its own.
//!
//! Invariant: what happens after the tick that a handle is told first is passed on to it. One that joins a stream is told the
//! time of a request that was sent after it had joined. What happened later than that cannot have been read before.

use std::{
    collections::HashMap,
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
    super::Told,
    Inner, MongoStore, document,
    execute::PRIMARY,
    fault::needs,
    stream_end::{End, ended_early},
    traffic::Traffic,
};
use crate::{Caller, FencingToken, HandleId, Result, Tick};

/// How long the server holds a request for events when there is none: also how long a stream lives on
/// after nobody listens any more.
const AWAIT: Duration = Duration::from_secs(2);

/// The streams of a store on one runtime, by the digits with which the ids of their handles begin.
#[derive(Default)]
pub(super) struct HandOverStreams(Mutex<HashMap<String, Vec<Listener>>>);

/// A handle that listens to a stream, until its receiver is dropped.
struct Listener {
    handle: HandleId,
    pass_on: Passed,
}

/// What is passed on to a handle, and at last why the stream has ended.
type Passed = UnboundedSender<std::result::Result<Told, End>>;

impl HandOverStreams {
    fn streams(&self) -> MutexGuard<'_, HashMap<String, Vec<Listener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody listens to a stream. If nobody does, the task that reads it ends.
    fn is_heard(&self, digits: &str) -> bool {
        let mut streams = self.streams();
        let Some(listeners) = streams.get_mut(digits) else { return false };
        listeners.retain(|listener| !listener.pass_on.is_closed());
        let is_heard = !listeners.is_empty();
        if !is_heard {
            streams.remove(digits);
        }
        is_heard
    }

    /// Passes on what an event says of each handle.
    fn pass_on(&self, digits: &str, event: &Document) {
        let streams = self.streams();
        for (caller, token) in handed(event) {
            let listeners = streams.get(digits).into_iter().flatten();
            for listener in listeners.filter(|listener| listener.handle == caller.handle) {
                // Whoever is gone is left out before the next event is read.
                let _passed_on = listener.pass_on.send(Ok(Told::of(caller, token)));
            }
        }
    }

    /// Ends a stream for all who listen.
    fn end(&self, digits: &str, end: &End) {
        for listener in self.streams().remove(digits).into_iter().flatten() {
            let _told = listener.pass_on.send(Err(end.clone()));
        }
    }
}

/// Tells what is handed to this handle from `since` on, or from now on, until nobody listens.
pub(super) async fn watch(
    store: &Arc<Inner>,
    handle: HandleId,
    since: Tick,
    tell: &UnboundedSender<Told>,
) -> Result<()> {
    let mut passed = match join(store, handle, since) {
        Joined::First(passed) => passed,
        Joined::Open(passed) => {
            let now = store.operation_time().await.map_err(|error| store.meaning(error, needs::WATCH))?;
            let _is_heard = tell.send(Told::Watching { since: super::tick(now) });
            passed
        }
    };
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

/// What is passed on to a handle that has joined a stream.
enum Joined {
    /// That is opened for it, and begins with the tick from which on all is passed on.
    First(UnboundedReceiver<std::result::Result<Told, End>>),
    /// That was there.
    Open(UnboundedReceiver<std::result::Result<Told, End>>),
}

fn join(store: &Arc<Inner>, handle: HandleId, since: Tick) -> Joined {
    let traffic = store.traffic.here();
    let digits = store.handles.common_digits(handle);
    let (pass_on, passed) = mpsc::unbounded_channel();
    let mut streams = traffic.hand_over_streams.streams();
    let is_open = streams.contains_key(&digits);
    streams.entry(digits.clone()).or_default().push(Listener { handle, pass_on: pass_on.clone() });
    drop(streams);
    if is_open {
        return Joined::Open(passed);
    }
    MongoStore::run_unwatched(run(Arc::clone(store), traffic, digits, since, pass_on));
    Joined::First(passed)
}

/// Reads a stream until nobody listens or it ends. Should this task be dropped with its runtime, so are all who listen.
async fn run(store: Arc<Inner>, traffic: Arc<Traffic>, digits: String, since: Tick, first: Passed) {
    let streams = &traffic.hand_over_streams;
    if let Err(end) = read(&store, streams, &digits, since, first).await {
        streams.end(&digits, &end);
    }
}

async fn read(
    store: &Inner,
    streams: &HandOverStreams,
    digits: &str,
    since: Tick,
    first: Passed,
) -> std::result::Result<(), End> {
    let _permit = store.client.stream_permit().map_err(End::TooMany)?;
    let mut events = store.hand_overs(digits, since).await.map_err(End::NotOpened)?;
    let _told = first.send(Ok(Told::Watching { since }));
    drop(first);
    while streams.is_heard(digits) {
        // One that was opened can be opened again, whatever ended it.
        match events.next_if_any().await.map_err(End::Failed)? {
            Some(event) => streams.pass_on(digits, &event),
            None if events.is_alive() => {}
            None => return Err(End::Closed),
        }
    }
    Ok(())
}

impl Inner {
    /// What is handed to the handles whose ids begin with these digits.
    async fn hand_overs(&self, digits: &str, since: Tick) -> DriverResult<ChangeStream<Document>> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let collection = self.database.collection::<Document>(&self.collection);
        let events = collection
            .watch()
            .pipeline(concerning(digits))
            .start_at_operation_time(Timestamp { time: number(since.seconds), increment: number(since.ordinal) })
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
        doc! { "$project": { "fullDocument.handover": 1, "updateDescription.updatedFields.handover": 1 } },
    ]
}

/// Whom an event says to have been handed its key, or robbed of it.
fn handed(event: &Document) -> Vec<(Caller, Option<FencingToken>)> {
    let replaced = event.get_document("fullDocument");
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let handover = replaced.or(updated).and_then(|fields| fields.get_str("handover")).unwrap_or_default();
    document::handed(handover).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_a_handle_of_what_is_its_own_in_either_form() {
        let (own, other) = (HandleId::random(), HandleId::random());
        let handed =
            [(other, 1), (own, 2), (own, 3)].map(|(handle, number)| format!("{}=9;", Caller { handle, number }));
        let handed = handed.concat();
        let both = [2, 3].map(|number| Told::Handed { number, token: FencingToken::new(9).unwrap() });
        let replacement = doc! { "fullDocument": { "handover": &handed } };
        let update = doc! { "updateDescription": { "updatedFields": { "handover": &handed } } };
        assert_eq!(passed_on(&replacement, own), both);
        assert_eq!(passed_on(&update, own), both);
        for strange in
            [doc! {}, doc! { "fullDocument": { "handover": 1 } }, doc! { "fullDocument": { "handover": "x=y;" } }]
        {
            assert_eq!(passed_on(&strange, own), []);
        }
    }

    /// What a handle is told of an event.
    fn passed_on(event: &Document, handle: HandleId) -> Vec<Told> {
        let (streams, (pass_on, mut passed)) = (HandOverStreams::default(), mpsc::unbounded_channel());
        streams.streams().entry("0".into()).or_default().push(Listener { handle, pass_on });
        streams.pass_on("0", event);
        assert!(streams.is_heard("0"));
        let mut told = Vec::new();
        while let Ok(Ok(one)) = passed.try_recv() {
            told.push(one);
        }
        drop(passed);
        assert!(!streams.is_heard("0"), "nobody listens");
        told
    }
}
