//! The states of the record of a key, or of the records of a prefix: a snapshot, and the changes after it.
//!
//! Purpose: a caller that follows records gets each of their states, with memory for those that matter only.
//!
//! Mechanism: a change stream is opened. Then the documents are read in pages, all as of one cluster time, and the changes
//! after that time are applied to them. A prefix has a stream of its own; keys share one: `follow/shared_stream.rs`. The
//! server logs an update of a larger document as its difference. `update_description.rs` applies the difference to the
//! document before it. The server can look up the whole document, but may return a later one, so states would be left out.
//!
//! Of a prefix, a document without holders and without a history is dropped. If it changes, its difference is applied to an
//! idle record: a grant writes all of the holder, `version` and `last_seen`. A revocation writes the part of the history
//! that differs.
//!
//! Invariants: states come in their order, and none is left out until following fails. A document of a prefix that is not
//! kept has no holders and no history.

mod shared_stream;
mod streams;
pub(super) mod subscribers;

use std::{collections::HashMap, sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, DateTime, Document, Timestamp, doc},
    error::Error as DriverError,
};
use tokio::sync::mpsc::Sender;
use tracing::debug;

use self::{streams::Streams, subscribers::Subscription};
use super::{
    context::MongoContext,
    document::{self, hybrid_time},
    error::{self, needs},
    limits::{deadline_after, server_limit},
    list,
    stream_error::{self, StreamEnd},
    update_description,
};
use crate::{
    Error, Key, Result,
    record::{KeyFilter, StoreClock, StoreTime},
    store::{FollowedState, RecordState},
};

/// How long a snapshot may take.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Codes of a server that has no snapshot now: the collection was just created, or a majority lags behind.
const NO_SNAPSHOT_CODES: [i32; 2] = [239, 246];

/// How long to wait after a snapshot that was too old.
const SNAPSHOT_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How many documents one page of the snapshot has.
const PAGE_SIZE: i64 = 1_000;

/// Sends the states of the records that match until the receiver is dropped.
pub(super) async fn follow(
    store: &Arc<MongoContext>,
    filter: &KeyFilter,
    known: Vec<Key>,
    states: &Sender<FollowedState>,
) -> Result<()> {
    let into_error = |end: StreamEnd| end.into_error(store.database.name(), &store.collection);
    let mut changes = Changes::of(store, filter).map_err(into_error)?;
    let from = changes.begin(filter).await.map_err(into_error)?;
    let mut followed = FollowedDocuments { filter, documents: HashMap::new(), states };
    let Some(as_of) = store.send_snapshot(&mut followed, known, from).await? else { return Ok(()) };
    loop {
        let change = tokio::select! {
            change = changes.next() => change.map_err(into_error)?,
            () = states.closed() => return Ok(()),
        };
        // Changes in the snapshot are skipped.
        if change.get_timestamp("clusterTime").is_ok_and(|time| time > as_of) && !followed.apply(&change).await? {
            return Ok(());
        }
    }
}

/// Matches the `_id`s of these keys.
fn match_ids(filter: &KeyFilter) -> Document {
    match filter {
        KeyFilter::Key(key) => doc! { "$eq": key.as_str() },
        KeyFilter::Prefix(prefix) => list::match_prefix(prefix),
    }
}

/// Where the changes come from.
enum Changes {
    /// The change stream that the keys share.
    Shared(Subscription),
    /// A change stream of a prefix.
    Own(Box<Streams>),
}

impl Changes {
    fn of(store: &Arc<MongoContext>, filter: &KeyFilter) -> std::result::Result<Self, StreamEnd> {
        Ok(match filter {
            KeyFilter::Key(key) => Self::Shared(shared_stream::subscribe(store, key)),
            KeyFilter::Prefix(_) => Self::Own(Box::new(Streams::new(store)?)),
        })
    }

    /// Returns a time after which each change comes.
    async fn begin(&mut self, filter: &KeyFilter) -> std::result::Result<Timestamp, StreamEnd> {
        match self {
            Self::Shared(subscription) => subscription.begun().await.map_err(|end| end.unwrap_or(StreamEnd::Silent)),
            Self::Own(streams) => streams.open(match_ids(filter)).await,
        }
    }

    /// Waits for the next change. Dropping the future loses nothing.
    async fn next(&mut self) -> std::result::Result<Arc<Document>, StreamEnd> {
        match self {
            Self::Own(streams) => streams.next().await.map(Arc::new),
            Self::Shared(subscription) => match subscription.changes.recv().await {
                Some(change) => Ok(change),
                None => Err(subscription.end().unwrap_or(StreamEnd::LeftBehind)),
            },
        }
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
    /// Sends the records of the snapshot, those of the known keys, and that these are all. Returns the cluster time of the
    /// snapshot, which is not earlier than `from`. `None`: the receiver was dropped.
    async fn send_snapshot(
        &self,
        followed: &mut FollowedDocuments<'_>,
        mut known: Vec<Key>,
        from: Timestamp,
    ) -> Result<Option<Timestamp>> {
        let ids = match_ids(followed.filter);
        let is_key = matches!(followed.filter, KeyFilter::Key(_));
        let wanted = |ids: &Document| {
            let ids = doc! { "_id": ids.clone() };
            let matters = ["holders.0", "history.0"].map(|path| doc! { path: { "$exists": true } });
            if is_key {
                ids
            } else {
                doc! { "$and": [ids, { "$or": matters.to_vec() }] }
            }
        };
        let (mut page, as_of) = self.snapshot_after(wanted(&ids), from).await?;
        let mut at = StoreClock { now: second(as_of), tick: hybrid_time(as_of) };
        while let Some(last) = page.last().and_then(|last| last.get_str("_id").ok()).map(str::to_owned) {
            for found in page {
                at.now = time(&found, "now").unwrap_or(at.now);
                let Some(key) = list::key(&found) else { continue };
                if !is_key && !has_entries(Some(&found), "holders") {
                    followed.keep(key, Some(found));
                } else if !followed.begin(key, Some(found), at).await? {
                    return Ok(None);
                }
            }
            let mut behind = ids.clone();
            behind.insert("$gt", last);
            page = if is_key {
                Vec::new()
            } else {
                self.read_snapshot(wanted(&behind), PAGE_SIZE, Some(as_of)).await?.found
            };
        }
        if let KeyFilter::Key(key) = followed.filter {
            known.clear();
            if !followed.documents.contains_key(key) && !followed.begin(key.clone(), None, at).await? {
                return Ok(None);
            }
        }
        known.retain(|key| !has_entries(followed.documents.get(key), "holders"));
        for keys in known.chunks(usize::try_from(PAGE_SIZE).unwrap_or(usize::MAX)) {
            let names: Vec<&str> = keys.iter().map(Key::as_str).collect();
            let filter = doc! { "_id": { "$in": names } };
            let found = self.read_snapshot(filter, PAGE_SIZE, Some(as_of)).await?.found;
            let mut found: HashMap<String, Document> =
                found.into_iter().filter_map(|found| Some((found.get_str("_id").ok()?.to_owned(), found))).collect();
            for key in keys {
                let found = found.remove(key.as_str());
                at.now = found.as_ref().and_then(|found| time(found, "now")).unwrap_or(at.now);
                if !followed.begin(key.clone(), found, at).await? {
                    return Ok(None);
                }
            }
        }
        let is_sent = followed.states.send(FollowedState::Complete { at }).await.is_ok();
        Ok(is_sent.then_some(as_of))
    }

    /// Reads the first page of a snapshot that is not older than this time. A new primary may not know yet how far a
    /// majority has come.
    async fn snapshot_after(&self, filter: Document, time: Timestamp) -> Result<(Vec<Document>, Timestamp)> {
        let deadline = deadline_after(SNAPSHOT_TIMEOUT);
        loop {
            let (page, as_of) = self.first_snapshot(filter.clone()).await?;
            if as_of >= time {
                return Ok((page, as_of));
            }
            if deadline.has_passed() {
                return Err(Error::unavailable(
                    "no majority has the latest writes of the primary: check the other members of the replica set",
                ));
            }
            tokio::time::sleep(SNAPSHOT_RETRY_INTERVAL).await;
        }
    }

    /// The first documents that match, as a majority has them, and the cluster time of that state.
    async fn first_snapshot(&self, filter: Document) -> Result<(Vec<Document>, Timestamp)> {
        match self.read_snapshot(filter.clone(), PAGE_SIZE, None).await? {
            SnapshotReply { found, as_of: Some(from), .. } => Ok((found, from)),
            // A collection that does not exist has no snapshot. If it does not exist at a second read either, the
            // stream passes on each change after the time of the first answer.
            SnapshotReply { answered, .. } => match self.read_snapshot(filter, PAGE_SIZE, None).await? {
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

/// The followed documents: that of a key, or those of a prefix that have holders or a history. Each method that sends
/// returns whether there is a receiver.
struct FollowedDocuments<'a> {
    filter: &'a KeyFilter,
    documents: HashMap<Key, Document>,
    states: &'a Sender<FollowedState>,
}

impl FollowedDocuments<'_> {
    /// Keeps a document of the snapshot, and sends its record.
    async fn begin(&mut self, key: Key, found: Option<Document>, at: StoreClock) -> Result<bool> {
        let is_received = self.send(&key, found.as_ref(), at).await?;
        self.keep(key, found);
        Ok(is_received)
    }

    /// Applies an event, and sends the state after it.
    async fn apply(&mut self, event: &Document) -> Result<bool> {
        if matches!(event.get_str("operationType"), Ok("drop" | "rename")) {
            return self.end_all(event).await;
        }
        let id = event.get_document("documentKey").and_then(|key| key.get_str("_id"));
        let Some(key) = id.ok().and_then(|id| id.parse::<Key>().ok()) else { return Ok(true) };
        let before = self.documents.remove(&key);
        let is_known = before.is_some() || self.is_key();
        let had_holders = has_entries(before.as_ref(), "holders");
        let base = before.or_else(|| (!is_known && is_update_of_holders(event)).then(idle));
        let (mut after, at) = match update(base, event) {
            Ok(updated) => updated,
            // Not an update of a record: see the invariants of this file.
            Err(_misfit) if !is_known => return Ok(true),
            Err(error) => return Err(error),
        };
        if !self.is_key()
            && let Some(document) = after.as_mut().filter(|document| !document.contains_key("last_seen"))
        {
            document.insert("last_seen", DateTime::from_millis(at.now.millis()));
        }
        let is_sent = self.is_key() || had_holders || has_entries(after.as_ref(), "holders");
        let is_received = !is_sent || self.send(&key, after.as_ref(), at).await?;
        self.keep(key, after);
        Ok(is_received)
    }

    /// Ends all records, because their collection is gone.
    async fn end_all(&mut self, event: &Document) -> Result<bool> {
        for (key, document) in std::mem::take(&mut self.documents) {
            let had_holders = has_entries(Some(&document), "holders");
            let (after, at) = update(Some(document), event)?;
            if (self.is_key() || had_holders) && !self.send(&key, after.as_ref(), at).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_key(&self) -> bool {
        matches!(self.filter, KeyFilter::Key(_))
    }

    fn keep(&mut self, key: Key, document: Option<Document>) {
        let matters = |document: &Document| ["holders", "history"].iter().any(|name| has_entries(Some(document), name));
        if let Some(document) = document.filter(|document| self.is_key() || matters(document)) {
            self.documents.insert(key, document);
        }
    }

    /// Sends a state. A document that is not a record is an error of the follower of its key. The follower of a prefix
    /// leaves it out.
    async fn send(&self, key: &Key, document: Option<&Document>, at: StoreClock) -> Result<bool> {
        let record = match document.map(|document| decode(key, document)).transpose() {
            Ok(record) => record,
            Err(error) if self.is_key() => return Err(error),
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                debug!(%key, error, "a document is not a record: a watch of its prefix leaves it out");
                None
            }
        };
        let state = RecordState { record: record.map(Box::new), at };
        Ok(self.states.send(FollowedState::Record { key: key.clone(), state }).await.is_ok())
    }
}

/// The record of a document, without its queue.
fn decode(key: &Key, document: &Document) -> Result<crate::record::Record> {
    let mut document = document.clone();
    document.insert("queue", Vec::<Bson>::new());
    document::decode_record(key, &document)
}

/// Applies an event to the document before it. Returns the document after it and the time of the change.
fn update(before: Option<Document>, event: &Document) -> Result<(Option<Document>, StoreClock)> {
    let logged = event.get_timestamp("clusterTime").map_err(error::unreadable)?;
    let last_seen = |document: Option<&Document>| time(document?, "last_seen");
    let seen = last_seen(before.as_ref());
    let after = match event.get_str("operationType").map_err(error::unreadable)? {
        "insert" | "replace" => Some(event.get_document("fullDocument").map_err(error::unreadable)?.clone()),
        "update" => {
            let update = event.get_document("updateDescription").map_err(error::unreadable)?;
            let mut document = before;
            let applied = document.as_mut().and_then(|document| update_description::apply(document, update));
            applied.ok_or_else(|| {
                Error::unavailable("a change does not fit the record before it: the record is read again")
            })?;
            document
        }
        "delete" | "drop" | "rename" => None,
        // An event that ends the stream.
        _ => return Err(stream_error::closed()),
    };
    // A change by this store writes when it was made. A change by another program may not.
    let written = last_seen(after.as_ref()).filter(|written| seen.is_none_or(|seen| *written > seen));
    let now = written.or_else(|| time(event, "wallTime")).unwrap_or_else(|| second(logged));
    Ok((after, StoreClock { now, tick: hybrid_time(logged) }))
}

/// Whether an array of a document has entries. What is not an array counts as one that has.
fn has_entries(document: Option<&Document>, name: &str) -> bool {
    let entries = document.and_then(|document| document.get(name));
    entries.is_some_and(|entries| entries.as_array().is_none_or(|entries| !entries.is_empty()))
}

/// Whether an event changes the holders of a document by a difference.
fn is_update_of_holders(event: &Document) -> bool {
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    updated.is_ok_and(|fields| fields.keys().any(|path| path == "holders" || path.starts_with("holders.")))
}

/// A record without holders. The difference of a grant replaces the fields that matter.
fn idle() -> Document {
    doc! {
        "v": document::FORMAT, "version": 1_i64, "holders": Vec::<Bson>::new(), "handover": "",
        "expires_at": DateTime::from_millis(0), "history": Vec::<Bson>::new(),
    }
}

fn time(document: &Document, name: &str) -> Option<StoreTime> {
    document.get_datetime(name).ok().map(|time| StoreTime::from_millis(DateTime::timestamp_millis(*time)))
}

fn second(timestamp: Timestamp) -> StoreTime {
    StoreTime::from_millis(i64::from(timestamp.time).saturating_mul(1000))
}
