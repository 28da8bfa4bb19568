//! The states of the records of all keys with a prefix.
//!
//! Purpose: one change stream for many keys, and memory for the records that have holders only.
//!
//! Mechanism: a stream of all documents whose `_id`s are in the range is opened. Then the documents with holders are
//! read in pages, all as of one cluster time. The changes after that time are applied to these documents. A document
//! without holders is dropped. If it changes, its difference is applied to an idle record: a grant writes all of the
//! holder, `version` and `last_seen`.
//!
//! Invariant: a document that is not kept has no holders.

use std::{collections::HashMap, sync::Arc};

use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use tokio::sync::mpsc::Sender;
use tracing::debug;

use super::{
    super::{context::MongoContext, document, limits::deadline_after, list, stream_error},
    FollowedDocument, SNAPSHOT_RETRY_INTERVAL, SNAPSHOT_TIMEOUT, key_streams, second, time,
};
use crate::{
    Key, Result,
    record::StoreClock,
    store::{PrefixState, RecordState},
};

/// How many documents one page of the snapshot has.
const PAGE_SIZE: i64 = 1_000;

/// Sends the states of the records of all keys with a prefix until the receiver is dropped.
pub(in crate::store::mongo) async fn follow(
    store: &Arc<MongoContext>,
    prefix: &str,
    known: Vec<Key>,
    states: &Sender<PrefixState>,
) -> Result<()> {
    let into_error = |end: stream_error::StreamEnd| end.into_error(store.database.name(), &store.collection);
    let ids = list::match_prefix(prefix);
    let (mut changes, from) = key_streams::open(store, ids.clone()).await.map_err(into_error)?;
    let mut followed = FollowedPrefix { documents: HashMap::new(), states };
    let Some(as_of) = store.send_snapshot(&mut followed, ids, known, from).await? else { return Ok(()) };
    loop {
        let read = tokio::select! {
            read = changes.recv() => read,
            () = states.closed() => return Ok(()),
        };
        let Some((change, _token)) = read else { return Err(stream_error::ended_early()) };
        let Some(change) = change.map_err(into_error)? else { continue };
        // Changes in the snapshot are skipped.
        if change.get_timestamp("clusterTime").is_ok_and(|time| time > as_of) && !followed.apply(&change).await? {
            return Ok(());
        }
    }
}

impl MongoContext {
    /// Sends the records that have holders, those of the known keys, and that these are all. Returns the cluster time of
    /// the snapshot, which is not earlier than `from`. `None`: the receiver was dropped.
    async fn send_snapshot(
        &self,
        followed: &mut FollowedPrefix<'_>,
        ids: Document,
        mut known: Vec<Key>,
        from: Timestamp,
    ) -> Result<Option<Timestamp>> {
        let held = |ids: &Document| doc! { "_id": ids.clone(), "holders.0": { "$exists": true } };
        let deadline = deadline_after(SNAPSHOT_TIMEOUT);
        let (mut page, as_of) = loop {
            let (page, as_of) = self.first_snapshot(held(&ids), PAGE_SIZE).await?;
            if as_of >= from {
                break (page, as_of);
            }
            if deadline.has_passed() {
                return Err(super::no_majority());
            }
            tokio::time::sleep(SNAPSHOT_RETRY_INTERVAL).await;
        };
        let mut at = StoreClock { now: second(as_of), tick: document::hybrid_time(as_of) };
        while let Some(last) = page.last().and_then(|last| last.get_str("_id").ok()).map(str::to_owned) {
            for found in page {
                at.now = time(&found, "now").unwrap_or(at.now);
                if !followed.begin(found, at).await {
                    return Ok(None);
                }
            }
            let mut behind = ids.clone();
            behind.insert("$gt", last);
            page = self.read_snapshot(held(&behind), PAGE_SIZE, Some(as_of)).await?.found;
        }
        known.retain(|key| !followed.documents.contains_key(key));
        for keys in known.chunks(usize::try_from(PAGE_SIZE).unwrap_or(usize::MAX)) {
            let names: Vec<&str> = keys.iter().map(Key::as_str).collect();
            let filter = doc! { "_id": { "$in": names } };
            let found = self.read_snapshot(filter, PAGE_SIZE, Some(as_of)).await?.found;
            let mut found: HashMap<String, Document> =
                found.into_iter().filter_map(|found| Some((found.get_str("_id").ok()?.to_owned(), found))).collect();
            for key in keys {
                let found = found.remove(key.as_str());
                at.now = found.as_ref().and_then(|found| time(found, "now")).unwrap_or(at.now);
                if !followed.send(key.clone(), &FollowedDocument(found), at).await {
                    return Ok(None);
                }
            }
        }
        let is_sent = followed.states.send(PrefixState::Complete { at }).await.is_ok();
        Ok(is_sent.then_some(as_of))
    }
}

/// The documents of a prefix that have holders. Each method that sends returns whether there is a receiver.
struct FollowedPrefix<'a> {
    documents: HashMap<Key, Document>,
    states: &'a Sender<PrefixState>,
}

impl FollowedPrefix<'_> {
    /// Keeps a document of the snapshot, and sends its record.
    async fn begin(&mut self, found: Document, at: StoreClock) -> bool {
        let Some(key) = list::key(&found) else { return true };
        let followed = FollowedDocument(Some(found));
        let is_received = self.send(key.clone(), &followed, at).await;
        self.keep(key, followed);
        is_received
    }

    /// Applies an event, and sends the state after it.
    async fn apply(&mut self, event: &Document) -> Result<bool> {
        if matches!(event.get_str("operationType"), Ok("drop" | "rename")) {
            return self.end_all(event).await;
        }
        let id = event.get_document("documentKey").and_then(|key| key.get_str("_id"));
        let Some(key) = id.ok().and_then(|id| id.parse::<Key>().ok()) else { return Ok(true) };
        let kept = self.documents.remove(&key);
        let is_kept = kept.is_some();
        let mut followed = FollowedDocument(kept.or_else(|| is_update_of_holders(event).then(idle)));
        let at = match followed.update(event) {
            Ok(at) => at,
            // Not an update of a record: see the invariant of this file.
            Err(_misfit) if !is_kept => return Ok(true),
            Err(error) => return Err(error),
        };
        if let Some(document) = followed.0.as_mut().filter(|document| !document.contains_key("last_seen")) {
            document.insert("last_seen", DateTime::from_millis(at.now.millis()));
        }
        let is_received =
            if is_kept || has_holders(&followed) { self.send(key.clone(), &followed, at).await } else { true };
        self.keep(key, followed);
        Ok(is_received)
    }

    /// Ends all records, because their collection is gone.
    async fn end_all(&mut self, event: &Document) -> Result<bool> {
        for (key, document) in std::mem::take(&mut self.documents) {
            let mut followed = FollowedDocument(Some(document));
            let at = followed.update(event)?;
            if !self.send(key, &followed, at).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn keep(&mut self, key: Key, followed: FollowedDocument) {
        if has_holders(&followed)
            && let Some(document) = followed.0
        {
            self.documents.insert(key, document);
        }
    }

    async fn send(&self, key: Key, followed: &FollowedDocument, at: StoreClock) -> bool {
        let state = followed.state(&key, at).unwrap_or_else(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            debug!(%key, error, "a document is not a record: a watch of its prefix leaves it out");
            RecordState { record: None, at }
        });
        self.states.send(PrefixState::Record { key, state }).await.is_ok()
    }
}

fn has_holders(followed: &FollowedDocument) -> bool {
    let holders = followed.0.as_ref().and_then(|document| document.get("holders"));
    holders.is_some_and(|holders| holders.as_array().is_none_or(|holders| !holders.is_empty()))
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
