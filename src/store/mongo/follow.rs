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

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use tokio::sync::mpsc::{Receiver, Sender};
use tracing::debug;

use self::streams::Streams;
use super::{
    context::{MongoContext, first_batch},
    document::{self, hybrid_time},
    error::{self, needs},
    limits::{deadline_after, server_limit},
    list,
    state::subscribers::Change,
    stream_error::{self, StreamEnd},
    update_description,
};
use crate::{
    record::{KeyFilter, StoreClock, StoreTime},
    store::answers::{FollowedState, RecordState},
    types::{
        error::{Error, Result},
        key::Key,
    },
};

/// How long a snapshot may take.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

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
    let mut followed = FollowedDocuments { filter, documents: HashMap::new(), states };
    let ended = send_all(store, &mut followed, known).await;
    if states.is_closed() { Ok(()) } else { ended }
}

/// Sends a snapshot, and the changes after it, until an error. A receiver that was dropped is one.
async fn send_all(store: &Arc<MongoContext>, followed: &mut FollowedDocuments<'_>, known: Vec<Key>) -> Result<()> {
    let into_error = |end: StreamEnd| end.into_error(store.database.name(), &store.collection);
    let (mut changes, from) = Changes::begin(store, followed.filter).await.map_err(into_error)?;
    let as_of = store.send_snapshot(followed, known, from).await?;
    loop {
        let change = tokio::select! {
            change = changes.next() => change.map_err(into_error)?,
            () = followed.states.closed() => return Ok(()),
        };
        // Changes in the snapshot are skipped.
        if let Some(change) = change
            && change.get_timestamp("clusterTime").is_ok_and(|time| time > as_of)
        {
            followed.apply(&change).await?;
        }
    }
}

/// Matches the documents of the snapshot whose `_id` is behind this one. A document that does not matter to a follower of
/// a prefix is left out.
fn match_snapshot(filter: &KeyFilter, behind: Option<String>) -> Document {
    match filter {
        KeyFilter::Key(key) => doc! { "_id": key.as_str() },
        KeyFilter::Prefix(prefix) => {
            let mut ids = list::match_prefix(prefix);
            ids.extend(behind.map(|behind| ("$gt".to_owned(), Bson::String(behind))));
            let matters = ["holders.0", "history.0"].map(|path| doc! { path: { "$exists": true } });
            doc! { "$and": [{ "_id": ids }, { "$or": matters.to_vec() }] }
        }
    }
}

/// Where the changes come from.
enum Changes {
    /// The change stream that the keys share.
    Shared(Receiver<Change>),
    /// A change stream of a prefix. It is not read while the receiver is slow.
    Own(Box<Streams>),
}

impl Changes {
    /// Opens a stream of the changes. Also returns a time after which each change comes.
    async fn begin(store: &Arc<MongoContext>, filter: &KeyFilter) -> std::result::Result<(Self, Timestamp), StreamEnd> {
        Ok(match filter {
            KeyFilter::Key(key) => {
                let (begins, mut changes) = shared_stream::subscribe(store, key);
                match begins.await {
                    Ok(from) => (Self::Shared(changes), from),
                    Err(_ended) => return Err(changes.recv().await.and_then(Result::err).unwrap_or(StreamEnd::Silent)),
                }
            }
            KeyFilter::Prefix(prefix) => {
                let mut streams = Box::new(Streams::new(store)?);
                let from = streams.open(list::match_prefix(prefix)).await?;
                (Self::Own(streams), from)
            }
        })
    }

    /// Waits for the next change. `None`: there is none yet. Dropping the future loses nothing.
    async fn next(&mut self) -> std::result::Result<Option<Arc<Document>>, StreamEnd> {
        match self {
            Self::Shared(changes) => changes.recv().await.unwrap_or(Err(StreamEnd::LeftBehind)).map(Some),
            Self::Own(streams) => Ok(streams.next().await?.map(Arc::new)),
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
    /// snapshot, which is not earlier than `from`.
    async fn send_snapshot(
        &self,
        followed: &mut FollowedDocuments<'_>,
        known: Vec<Key>,
        from: Timestamp,
    ) -> Result<Timestamp> {
        let mut known: HashSet<Key> = match followed.filter {
            KeyFilter::Key(key) => [key.clone()].into(),
            KeyFilter::Prefix(_) => known.into_iter().collect(),
        };
        let (mut page, as_of) = self.first_page(match_snapshot(followed.filter, None), from).await?;
        let mut at = StoreClock { now: second(as_of), hlc: hybrid_time(as_of) };
        while let Some(last) = page.last().and_then(|last| last.get_str("_id").ok()).map(str::to_owned) {
            for found in page {
                at.now = time(&found, "now").unwrap_or(at.now);
                let Some(key) = list::key(&found) else { continue };
                if known.remove(&key) || has_entries(Some(&found), "holders") {
                    followed.send(&key, Some(&found), at).await?;
                }
                followed.keep(key, Some(found));
            }
            if followed.filter.is_key() {
                break;
            }
            page = self.read_snapshot(match_snapshot(followed.filter, Some(last)), Some(as_of)).await?.found;
        }
        // Those that have neither holders nor a history, or no document.
        let known: Vec<Key> = known.into_iter().collect();
        for keys in known.chunks(usize::try_from(PAGE_SIZE).unwrap_or(usize::MAX)) {
            let mut found = HashMap::new();
            if !followed.filter.is_key() {
                let names: Vec<&str> = keys.iter().map(Key::as_str).collect();
                let reply = self.read_snapshot(doc! { "_id": { "$in": names } }, Some(as_of)).await?;
                found.extend(reply.found.into_iter().filter_map(|found| Some((list::key(&found)?, found))));
            }
            for key in keys {
                let found = found.remove(key);
                at.now = found.as_ref().and_then(|found| time(found, "now")).unwrap_or(at.now);
                followed.send(key, found.as_ref(), at).await?;
                followed.keep(key.clone(), found);
            }
        }
        followed.tell(FollowedState::Complete { at }).await?;
        Ok(as_of)
    }

    /// Reads the first documents that match, as a majority has them, and the cluster time of that state, which is not
    /// earlier than `from`. A new primary may not know yet how far a majority has come.
    async fn first_page(&self, filter: Document, from: Timestamp) -> Result<(Vec<Document>, Timestamp)> {
        let deadline = deadline_after(SNAPSHOT_TIMEOUT);
        let mut absent_at = None;
        loop {
            let SnapshotReply { found, as_of, answered } = self.read_snapshot(filter.clone(), None).await?;
            // A collection that does not exist has no snapshot. If it does not exist at a second read either, the
            // stream passes on each change after the time of the first answer.
            let was_absent_at = mem::replace(&mut absent_at, as_of.is_none().then_some(answered));
            if let Some(as_of) = as_of.or(was_absent_at).filter(|as_of| *as_of >= from) {
                return Ok((found, as_of));
            }
            if deadline.has_passed() {
                return Err(Error::unavailable(
                    "no majority has the latest writes of the primary: check the other members of the replica set",
                ));
            }
            tokio::time::sleep(SNAPSHOT_RETRY_INTERVAL).await;
        }
    }

    /// Reads the first documents that match, in the order of `_id`s, as of this cluster time or of the latest. If they
    /// do not fit in a reply, there are fewer.
    async fn read_snapshot(&self, filter: Document, as_of: Option<Timestamp>) -> Result<SnapshotReply> {
        let mut level = doc! { "level": "snapshot" };
        level.extend(as_of.map(|as_of| ("atClusterTime".to_owned(), Bson::Timestamp(as_of))));
        let mut projection = document::record_projection(&["done"]);
        projection.insert("queue", doc! { "$slice": 0 });
        let command = doc! {
            "find": &self.collection,
            "filter": filter,
            "projection": projection,
            "sort": { "_id": 1 },
            "limit": PAGE_SIZE,
            "batchSize": PAGE_SIZE,
            "singleBatch": true,
            "readConcern": level,
            "maxTimeMS": server_limit(deadline_after(SNAPSHOT_TIMEOUT)),
        };
        let reply = self.command(command, needs::READ).await?;
        let as_of = reply.get_document("cursor").and_then(|cursor| cursor.get_timestamp("atClusterTime")).ok();
        let answered = reply.get_timestamp("operationTime").map_err(error::unreadable)?;
        Ok(SnapshotReply { found: first_batch(reply)?, as_of, answered })
    }
}

/// The followed documents: that of a key, or those of a prefix that have holders or a history.
struct FollowedDocuments<'a> {
    filter: &'a KeyFilter,
    documents: HashMap<Key, Document>,
    states: &'a Sender<FollowedState>,
}

impl FollowedDocuments<'_> {
    /// Applies an event, and sends the states after it.
    async fn apply(&mut self, event: &Document) -> Result<()> {
        let is_end_of_all = matches!(event.get_str("operationType"), Ok("drop" | "rename"));
        let changed: Vec<Key> = if is_end_of_all {
            self.documents.keys().cloned().collect()
        } else {
            event.get_document("documentKey").ok().and_then(list::key).into_iter().collect()
        };
        for key in changed {
            let before = self.documents.remove(&key);
            let is_known = before.is_some() || self.filter.is_key();
            let had_holders = has_entries(before.as_ref(), "holders");
            let base = before.or_else(|| (!is_known).then(idle));
            let (mut after, at) = match update(base, event) {
                Ok(updated) => updated,
                // Not an update of a record: see the invariants of this file.
                Err(_misfit) if !is_known => continue,
                Err(error) => return Err(error),
            };
            if !self.filter.is_key()
                && let Some(document) = after.as_mut().filter(|document| !document.contains_key("last_seen"))
            {
                document.insert("last_seen", DateTime::from_millis(at.now.millis()));
            }
            if self.filter.is_key() || had_holders || has_entries(after.as_ref(), "holders") {
                self.send(&key, after.as_ref(), at).await?;
            }
            self.keep(key, after);
        }
        Ok(())
    }

    fn keep(&mut self, key: Key, document: Option<Document>) {
        let matters = |document: &Document| ["holders", "history"].iter().any(|name| has_entries(Some(document), name));
        if let Some(document) = document.filter(|document| self.filter.is_key() || matters(document)) {
            self.documents.insert(key, document);
        }
    }

    /// Sends a state. A document that is not a record is an error of the follower of its key. The follower of a prefix
    /// leaves it out.
    async fn send(&self, key: &Key, document: Option<&Document>, at: StoreClock) -> Result<()> {
        let decode = |mut document: Document| {
            document.insert("queue", Vec::<Bson>::new());
            document::decode_record(key, &document)
        };
        let record = match document.cloned().map(decode).transpose() {
            Ok(record) => record,
            Err(error) if self.filter.is_key() => return Err(error),
            Err(error) => {
                debug!(%key, %error, "a document is not a record: a watch of its prefix leaves it out");
                None
            }
        };
        let state = RecordState { record: record.map(Box::new), at };
        self.tell(FollowedState::Record { key: key.clone(), state }).await
    }

    async fn tell(&self, state: FollowedState) -> Result<()> {
        self.states.send(state).await.map_err(|_dropped| Error::unavailable("nobody follows the records"))
    }
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
            let applied = before.and_then(|before| update_description::apply(before, update));
            Some(applied.ok_or_else(|| {
                Error::unavailable("a change does not fit the record before it: the record is read again")
            })?)
        }
        "delete" | "drop" | "rename" => None,
        // An event that ends the stream.
        _ => return Err(stream_error::closed()),
    };
    // A change by this store writes when it was made. A change by another program may not.
    let written = last_seen(after.as_ref()).filter(|written| seen.is_none_or(|seen| *written > seen));
    let now = written.or_else(|| time(event, "wallTime")).unwrap_or_else(|| second(logged));
    Ok((after, StoreClock { now, hlc: hybrid_time(logged) }))
}

/// Whether an array of a document has entries. What is not an array counts as one that has.
fn has_entries(document: Option<&Document>, name: &str) -> bool {
    let entries = document.and_then(|document| document.get(name));
    entries.is_some_and(|entries| entries.as_array().is_none_or(|entries| !entries.is_empty()))
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
