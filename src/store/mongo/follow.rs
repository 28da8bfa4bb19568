//! Notifications of the changes of a record: a snapshot of the record, and the changes after it.
//!
//! `watch_stream.rs` reads the changes of all followed records. If a follower is slower than the changes of its record, it gets
//! the next snapshot in their place.
//!
//! An update of a larger document is logged as what changed in it. That is applied to the document as it
//! was before (`delta.rs`): to look up the whole document, as the server offers, finds a later one, and so
//! leaves states out.

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, DateTime, Document, Timestamp, doc},
    error::Error as DriverError,
};
use tokio::sync::mpsc::Sender;
use tracing::debug;

use super::{
    super::RecordState,
    Inner, delta, document,
    fault::{self, needs},
    server_limit, stream_end, tick,
    watch_stream::Following,
};
use crate::{
    Clock, Error, Key, Result,
    record::{StoreClock, StoreTime},
};

/// How long a snapshot may take.
const WITHIN: Duration = Duration::from_secs(5);

/// Codes of a server that has no snapshot to read at this moment: the collection was made just now, or a
/// majority has not come as far.
const NO_SNAPSHOT: [i32; 2] = [239, 246];

/// How long to wait before a snapshot is taken again that was too early.
const TOO_EARLY: Duration = Duration::from_millis(20);

/// Tells what becomes of the record of a key until nobody listens.
pub(super) async fn follow(store: &Arc<Inner>, key: &Key, tell: &Sender<RecordState>) -> Result<()> {
    loop {
        let mut following = Following::begin(store, key);
        let begun = following.begun(store).await?;
        let (mut last, as_of, at) = store.snapshot_after(key, begun).await?;
        if tell.send(last.state(key, at)?).await.is_err() {
            return Ok(());
        }
        loop {
            let change = tokio::select! {
                change = following.changes.recv() => change,
                () = tell.closed() => return Ok(()),
            };
            let Some(change) = change else { break };
            // What is in the snapshot is known.
            if change.get_timestamp("clusterTime").is_ok_and(|time| time > as_of)
                && tell.send(last.meet(key, &change)?).await.is_err()
            {
                return Ok(());
            }
        }
        if let Some(error) = following.end(store) {
            return Err(error);
        }
        debug!(%key, "a watch was too slow: the record is read again");
    }
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
    /// A snapshot that is not older than this time. A new primary may not know yet how far a majority has come.
    async fn snapshot_after(&self, key: &Key, time: Timestamp) -> Result<(Last, Timestamp, StoreClock)> {
        let until = Clock::Boot.now().saturating_add(WITHIN);
        loop {
            let (last, as_of, at) = self.snapshot(key).await?;
            if as_of >= time {
                return Ok((last, as_of, at));
            }
            if Clock::Boot.now() > until {
                return Err(Error::unavailable(
                    "no majority has what the primary has applied: check the other members of the replica set",
                ));
            }
            tokio::time::sleep(TOO_EARLY).await;
        }
    }

    /// The record of a key as a majority has it, as of which cluster time, and when.
    async fn snapshot(&self, key: &Key) -> Result<(Last, Timestamp, StoreClock)> {
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
        let at = StoreClock { now: now.unwrap_or_else(|| second(from)), tick: tick(from) };
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
}

/// The document of a key as the last event left it, if it is there.
struct Last(Option<Document>);

impl Last {
    /// What an event makes of it.
    fn meet(&mut self, key: &Key, event: &Document) -> Result<RecordState> {
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
            _ => return Err(stream_end::closed()),
        }
        // What changes a record says when. What somebody else writes may not.
        let said = self.last_seen().filter(|said| seen.is_none_or(|seen| *said > seen));
        let now = said.or_else(|| time(event, "wallTime")).unwrap_or_else(|| second(logged));
        self.state(key, StoreClock { now, tick: tick(logged) })
    }

    fn last_seen(&self) -> Option<StoreTime> {
        time(self.0.as_ref()?, "last_seen")
    }

    /// The record that this is.
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
