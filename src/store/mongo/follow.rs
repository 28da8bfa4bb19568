//! How it is told what becomes of a record: a snapshot of it, and a change stream from there on.
//!
//! An update of a larger document is logged as what changed in it. That is applied to the document as it
//! was before (`delta.rs`): to look up the whole document, as the server offers, finds a later one, and so
//! leaves states out.

use std::time::Duration;

use mongodb::{
    bson::{Bson, DateTime, Document, Timestamp, doc},
    change_stream::{ChangeStream, event::ResumeToken},
    error::{Error as DriverError, Result as DriverResult},
    options::{ChangeStreamOptions, ReadConcern, ReadPreference, SelectionCriteria},
};
use tokio::sync::mpsc::Sender;

use super::{
    super::State,
    Inner, delta, document,
    events::AWAIT,
    fault::{self, needs},
    server_limit,
};
use crate::{
    Error, Key, Result,
    record::{Moment, StoreTime},
    token::Tick,
};

/// How long a snapshot may take.
const WITHIN: Duration = Duration::from_secs(5);

/// Codes of a server that has no snapshot to read at this moment: the collection was made just now, or a
/// majority has not come as far.
const NO_SNAPSHOT: [i32; 2] = [239, 246];

/// Tells what becomes of the record of a key until nobody listens.
pub(super) async fn follow(store: &Inner, key: &Key, tell: &Sender<State>) -> Result<()> {
    let (mut last, from, at) = store.snapshot(key).await?;
    let mut heard = tell.send(last.state(key, at)?).await.is_ok();
    // Not what happened at that time itself: where it is the last thing that happened, and that was the drop of
    // the collection, the stream would end with it again and again.
    let after = Timestamp { increment: from.increment.saturating_add(1), ..from };
    let opened = store.changes(key, Start::At(after)).await;
    let mut events = opened.map_err(|error| store.meaning(error, needs::WATCH))?;
    // One that ends is taken up where it ended. One that then ends at once is not.
    let mut taken_up = false;
    while heard && !tell.is_closed() {
        match events.next_if_any().await {
            Ok(Some(event)) => {
                taken_up = false;
                // What is in the snapshot is known.
                if event.get_timestamp("clusterTime").is_ok_and(|time| time > from) {
                    heard = tell.send(last.meet(key, &event)?).await.is_ok();
                }
            }
            Ok(None) if events.is_alive() => taken_up = false,
            Ok(None) => return Err(over()),
            Err(error) => match events.resume_token() {
                Some(token) if !taken_up => {
                    events = store.changes(key, Start::Behind(token)).await.map_err(fault::watch_ended)?;
                    taken_up = true;
                }
                _ => return Err(fault::watch_ended(error)),
            },
        }
    }
    Ok(())
}

fn over() -> Error {
    Error::unavailable("the change stream ended, as it does when its collection is dropped: it is opened again")
}

/// Where a change stream begins.
enum Start {
    At(Timestamp),
    Behind(ResumeToken),
}

/// What a read finds.
struct Look {
    found: Option<Document>,
    /// The cluster time as of which it is, if the collection is there.
    as_of: Option<Timestamp>,
    /// The cluster time of the answer.
    answered: Timestamp,
}

impl Inner {
    /// The record of a key as a majority has it, as of which cluster time, and when.
    async fn snapshot(&self, key: &Key) -> Result<(Last, Timestamp, Moment)> {
        let (found, from) = match self.look(key).await? {
            Look { found, as_of: Some(from), .. } => (found, from),
            // There is no snapshot of a collection that is not there. If it is still not there after the
            // time of that answer, whatever becomes of it is told from that time on.
            Look { answered, .. } => match self.look(key).await? {
                Look { found, as_of: Some(from), .. } => (found, from),
                Look { .. } => (None, answered),
            },
        };
        let now = found.as_ref().and_then(|found| time(found, "now"));
        let at = Moment { now: now.unwrap_or_else(|| second(from)), tick: tick(from) };
        Ok((Last(found), from, at))
    }

    async fn look(&self, key: &Key) -> Result<Look> {
        let mut projection = document::all();
        projection.insert("queue", doc! { "$slice": 0 });
        let command = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": projection,
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "snapshot" },
            "maxTimeMS": server_limit(WITHIN),
        };
        let reply = self.raw_command(&self.database, command).await.map_err(|error| self.no_snapshot(error))?;
        let cursor = reply.get_document("cursor").map_err(fault::unreadable)?;
        let found = cursor.get_array("firstBatch").map_err(fault::unreadable)?.first();
        Ok(Look {
            found: found.and_then(Bson::as_document).cloned(),
            as_of: cursor.get_timestamp("atClusterTime").ok(),
            answered: reply.get_timestamp("operationTime").map_err(fault::unreadable)?,
        })
    }

    fn no_snapshot(&self, error: DriverError) -> Error {
        if fault::code(&error).is_some_and(|code| NO_SNAPSHOT.contains(&code)) {
            return fault::watch_ended(error);
        }
        self.meaning(error, needs::READ)
    }

    /// What happens to the document of a key.
    async fn changes(&self, key: &Key, start: Start) -> DriverResult<ChangeStream<Document>> {
        let (from, behind) = match start {
            Start::At(from) => (Some(from), None),
            Start::Behind(token) => (None, Some(token)),
        };
        let options = ChangeStreamOptions::builder()
            .start_at_operation_time(from)
            .resume_after(behind)
            .max_await_time(AWAIT)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let collection = self.database.collection::<Document>(&self.collection);
        let events = collection.watch().pipeline(concerning(key, &self.collection)).with_options(options).await?;
        Ok(events.with_type::<Document>())
    }
}

/// The events that concern a key, and those that concern all keys of its collection. Without the queue,
/// which may be long.
fn concerning(key: &Key, collection: &str) -> [Document; 2] {
    [
        doc! { "$match": { "$or": [
            {
                "operationType": { "$in": ["insert", "replace", "update", "delete"] },
                "documentKey._id": { "$eq": key.as_str() },
            },
            { "operationType": { "$in": ["drop", "rename"] }, "ns.coll": { "$eq": collection } },
        ] } },
        doc! { "$project": { "fullDocument.queue": 0, "updateDescription.updatedFields.queue": 0 } },
    ]
}

/// The document of a key as the last event left it, if it is there.
struct Last(Option<Document>);

impl Last {
    /// What an event makes of it.
    fn meet(&mut self, key: &Key, event: &Document) -> Result<State> {
        let logged = event.get_timestamp("clusterTime").map_err(fault::unreadable)?;
        let seen = self.last_seen();
        match event.get_str("operationType").map_err(fault::unreadable)? {
            "insert" | "replace" => {
                self.0 = Some(event.get_document("fullDocument").map_err(fault::unreadable)?.clone());
            }
            "update" => {
                let update = event.get_document("updateDescription").map_err(fault::unreadable)?;
                let applied = self.0.as_mut().and_then(|document| delta::apply(document, update));
                applied.ok_or_else(|| Error::unavailable("a change cannot be followed: the record is read again"))?;
            }
            "delete" | "drop" | "rename" => self.0 = None,
            // The stream that ends says so.
            _ => return Err(over()),
        }
        // What changes a record says when. What somebody else writes may not.
        let said = self.last_seen().filter(|said| seen.is_none_or(|seen| *said > seen));
        let now = said.or_else(|| time(event, "wallTime")).unwrap_or_else(|| second(logged));
        self.state(key, Moment { now, tick: tick(logged) })
    }

    fn last_seen(&self) -> Option<StoreTime> {
        time(self.0.as_ref()?, "last_seen")
    }

    /// The record that this is.
    fn state(&self, key: &Key, at: Moment) -> Result<State> {
        let read = |document: &Document| {
            let mut document = document.clone();
            document.insert("queue", Vec::<Bson>::new());
            document::decode_record(key, &document).map(Box::new)
        };
        Ok(State { record: self.0.as_ref().map(read).transpose()?, at })
    }
}

fn time(document: &Document, name: &str) -> Option<StoreTime> {
    document.get_datetime(name).ok().map(|time| StoreTime::from_millis(DateTime::timestamp_millis(*time)))
}

fn second(timestamp: Timestamp) -> StoreTime {
    StoreTime::from_millis(i64::from(timestamp.time).saturating_mul(1000))
}

fn tick(timestamp: Timestamp) -> Tick {
    Tick { seconds: timestamp.time.into(), ordinal: timestamp.increment.into() }
}
