//! The states of a record: a snapshot, and the changes after it.
//!
//! Purpose: a caller that follows a key gets each state of its record.
//!
//! Mechanism: `follow/shared_stream.rs` reads the changes of all followed records. The server logs an update of a
//! larger document as its difference. `update_description.rs` applies the difference to the document before it. The
//! server can look up the whole document, but may return a later one, so states would be left out.
//!
//! Invariant: states come in their order. If a subscriber is slower than the changes of its record, it gets the next
//! snapshot in their place.

mod key_streams;
pub(super) mod prefix;
mod shared_stream;
pub(super) mod subscribers;

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, DateTime, Document, Timestamp, doc},
    error::Error as DriverError,
};
use tokio::sync::mpsc::Sender;
use tracing::debug;

use self::shared_stream::subscribe;
use super::{
    context::MongoContext,
    document::{self, hybrid_time},
    error::{self, needs},
    limits::{deadline_after, server_limit},
    stream_error::{self, StreamEnd},
    update_description,
};
use crate::{
    Error, Key, Result,
    record::{StoreClock, StoreTime},
    store::RecordState,
};

/// How long a snapshot may take.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Codes of a server that has no snapshot now: the collection was just created, or a majority lags behind.
const NO_SNAPSHOT_CODES: [i32; 2] = [239, 246];

/// How long to wait after a snapshot that was too old.
const SNAPSHOT_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Sends the states of the record of a key until the receiver is dropped.
pub(super) async fn follow(store: &Arc<MongoContext>, key: &Key, states: &Sender<RecordState>) -> Result<()> {
    loop {
        let into_error = |end: StreamEnd| end.into_error(store.database.name(), &store.collection);
        let mut subscription = subscribe(store, key);
        let begun = subscription.begun().await.map_err(|end| end.map_or_else(stream_error::ended_early, into_error))?;
        let (mut last, as_of, at) = store.snapshot_after(key, begun).await?;
        if states.send(last.state(key, at)?).await.is_err() {
            return Ok(());
        }
        loop {
            let change = tokio::select! {
                change = subscription.changes.recv() => change,
                () = states.closed() => return Ok(()),
            };
            let Some(change) = change else { break };
            // Changes in the snapshot are skipped.
            if change.get_timestamp("clusterTime").is_ok_and(|time| time > as_of) {
                let at = last.update(&change)?;
                if states.send(last.state(key, at)?).await.is_err() {
                    return Ok(());
                }
            }
        }
        if let Some(end) = subscription.end() {
            return Err(into_error(end));
        }
        debug!(%key, "a watch is slower than the changes of its record: the record is read again");
    }
}

/// The result of a snapshot read.
struct SnapshotReply {
    found: Vec<Document>,
    /// The cluster time of the snapshot, if the collection exists.
    as_of: Option<Timestamp>,
    /// The cluster time of the answer.
    answered: Timestamp,
}

impl MongoContext {
    /// Reads a snapshot that is not older than this time. A new primary may not know yet how far a majority has come.
    async fn snapshot_after(&self, key: &Key, time: Timestamp) -> Result<(FollowedDocument, Timestamp, StoreClock)> {
        let deadline = deadline_after(SNAPSHOT_TIMEOUT);
        loop {
            let (last, as_of, at) = self.snapshot(key).await?;
            if as_of >= time {
                return Ok((last, as_of, at));
            }
            if deadline.has_passed() {
                return Err(no_majority());
            }
            tokio::time::sleep(SNAPSHOT_RETRY_INTERVAL).await;
        }
    }

    /// The record of a key as a majority has it, the cluster time of that state, and the store's clocks.
    async fn snapshot(&self, key: &Key) -> Result<(FollowedDocument, Timestamp, StoreClock)> {
        let (found, from) = self.first_snapshot(doc! { "_id": key.as_str() }, 1).await?;
        let found = found.into_iter().next();
        let now = found.as_ref().and_then(|found| time(found, "now"));
        let at = StoreClock { now: now.unwrap_or_else(|| second(from)), tick: hybrid_time(from) };
        Ok((FollowedDocument(found), from, at))
    }

    /// The first documents that match, as a majority has them, and the cluster time of that state.
    async fn first_snapshot(&self, filter: Document, limit: i64) -> Result<(Vec<Document>, Timestamp)> {
        match self.read_snapshot(filter.clone(), limit, None).await? {
            SnapshotReply { found, as_of: Some(from), .. } => Ok((found, from)),
            // A collection that does not exist has no snapshot. If it does not exist at a second read either, the
            // stream passes on each change after the time of the first answer.
            SnapshotReply { answered, .. } => match self.read_snapshot(filter, limit, None).await? {
                SnapshotReply { found, as_of: Some(from), .. } => Ok((found, from)),
                SnapshotReply { .. } => Ok((Vec::new(), answered)),
            },
        }
    }

    /// Reads the first documents that match, in the order of `_id`s, as of this cluster time or of the latest. If they
    /// do not fit in a reply, there are fewer.
    async fn read_snapshot(&self, filter: Document, limit: i64, as_of: Option<Timestamp>) -> Result<SnapshotReply> {
        let mut level = doc! { "level": "snapshot" };
        level.extend(as_of.map(|as_of| ("atClusterTime".to_owned(), Bson::Timestamp(as_of))));
        let mut projection = document::whole_projection();
        projection.insert("queue", doc! { "$slice": 0 });
        let command = doc! {
            "find": &self.collection,
            "filter": filter,
            "projection": projection,
            "sort": { "_id": 1 },
            "limit": limit,
            "batchSize": limit,
            "singleBatch": true,
            "readConcern": level,
            "maxTimeMS": server_limit(deadline_after(SNAPSHOT_TIMEOUT)),
        };
        let reply = self.raw_command(&self.database, command).await.map_err(|error| self.no_snapshot(error))?;
        let cursor = reply.get_document("cursor").map_err(error::unreadable)?;
        let found = cursor.get_array("firstBatch").map_err(error::unreadable)?.iter();
        Ok(SnapshotReply {
            found: found.filter_map(Bson::as_document).cloned().collect(),
            as_of: cursor.get_timestamp("atClusterTime").ok(),
            answered: reply.get_timestamp("operationTime").map_err(error::unreadable)?,
        })
    }

    fn no_snapshot(&self, error: DriverError) -> Error {
        if error::code(&error).is_some_and(|code| NO_SNAPSHOT_CODES.contains(&code)) {
            return error::stream_failed(error);
        }
        self.translate(error, needs::READ)
    }
}

fn no_majority() -> Error {
    Error::unavailable("no majority has the latest writes of the primary: check the other members of the replica set")
}

/// The document of a key after the last event, if it exists.
struct FollowedDocument(Option<Document>);

impl FollowedDocument {
    /// Applies an event. Returns the time of the change.
    fn update(&mut self, event: &Document) -> Result<StoreClock> {
        let logged = event.get_timestamp("clusterTime").map_err(error::unreadable)?;
        let seen = self.last_seen();
        match event.get_str("operationType").map_err(error::unreadable)? {
            "insert" | "replace" => {
                self.0 = Some(event.get_document("fullDocument").map_err(error::unreadable)?.clone());
            }
            "update" => {
                let update = event.get_document("updateDescription").map_err(error::unreadable)?;
                let applied = self.0.as_mut().and_then(|document| update_description::apply(document, update));
                applied.ok_or_else(|| {
                    Error::unavailable("a change does not fit the record before it: the record is read again")
                })?;
            }
            "delete" | "drop" | "rename" => self.0 = None,
            // An event that ends the stream.
            _ => return Err(stream_error::closed()),
        }
        // A change by this store writes when it was made. A change by another program may not.
        let written = self.last_seen().filter(|written| seen.is_none_or(|seen| *written > seen));
        let now = written.or_else(|| time(event, "wallTime")).unwrap_or_else(|| second(logged));
        Ok(StoreClock { now, tick: hybrid_time(logged) })
    }

    fn last_seen(&self) -> Option<StoreTime> {
        time(self.0.as_ref()?, "last_seen")
    }

    /// The record of this document.
    fn state(&self, key: &Key, at: StoreClock) -> Result<RecordState> {
        let read = |document: &Document| {
            let mut document = document.clone();
            document.insert("queue", Vec::<Bson>::new());
            document::decode_record(key, &document).map(Box::new)
        };
        Ok(RecordState { record: self.0.as_ref().map(read).transpose()?, at })
    }
}

fn time(document: &Document, name: &str) -> Option<StoreTime> {
    document.get_datetime(name).ok().map(|time| StoreTime::from_millis(DateTime::timestamp_millis(*time)))
}

fn second(timestamp: Timestamp) -> StoreTime {
    StoreTime::from_millis(i64::from(timestamp.time).saturating_mul(1000))
}
