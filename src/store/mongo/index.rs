//! The TTL index, which collects idle records.
//!
//! Purpose: each collection with records has the index, also one that was dropped while handles were open.
//!
//! Mechanism: `preflight.rs` makes the index before the first request. After a drop of the collection each record is
//! inserted anew, and the answer to an acquire says whether it inserted one. If it did, or if there is no answer,
//! `createIndexes` is sent once more in the background: after the next answer that comes [`LONGEST_INTERVAL`] after the last
//! time.
//!
//! Invariant: no request waits for the index, and a store that inserts nothing sends nothing.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::bson::{Bson, Document, doc};
use tracing::{debug, warn};

use super::{Inner, MongoStore, fault, server_limit};
use crate::{Clock, Error, Result};

const CONFLICTS: [i32; 2] = [85, 86];

/// How long after the last time the index is made again at the earliest. If the retention is shorter, after that, so that
/// a record is not kept for many times as long as it should be; but no sooner than after [`SHORTEST_INTERVAL`].
const LONGEST_INTERVAL: Duration = Duration::from_secs(600);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// How long the server may take to make it again.
const WITHIN: Duration = Duration::from_secs(5);

/// Whether the index may be missing.
#[derive(Default)]
pub(super) struct IndexState {
    /// Whether a record was, or may have been, inserted since the index was seen to.
    has_inserted: AtomicBool,
    last: Mutex<Last>,
}

/// The last time that the index was seen to.
#[derive(Clone, Copy, Default)]
struct Last {
    /// When, on the clock.
    at: Duration,
    /// Whether this user may not make it.
    is_forbidden: bool,
}

impl IndexState {
    /// Notes what the answer of an upsert says.
    pub(super) fn note(&self, reply: &Document) {
        if reply.get_document("lastErrorObject").is_ok_and(|last| last.contains_key("upserted")) {
            self.note_doubt();
        }
    }

    /// Notes an upsert without an answer.
    pub(super) fn note_doubt(&self) {
        self.has_inserted.store(true, Ordering::Relaxed);
    }

    fn begin(&self, now: Duration) {
        self.has_inserted.store(false, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Last { at: now, is_forbidden: false };
    }

    /// Begins to see to it, if it is time.
    fn begin_if_due(&self, now: Duration, retention: Duration) -> bool {
        let interval = retention.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        let is_due = |last: Last| !last.is_forbidden && now >= last.at.saturating_add(interval);
        if !self.has_inserted.load(Ordering::Relaxed) {
            return false;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Of several that come at once, one begins.
        if !is_due(*last) || !self.has_inserted.swap(false, Ordering::Relaxed) {
            return false;
        }
        last.at = now;
        true
    }

    fn forbid(&self) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).is_forbidden = true;
    }
}

/// Makes the index again in the background, if it is time. The task ends with the driver's own timeouts, and the end of the
/// store waits for it.
pub(super) fn renew(inner: &Arc<Inner>) {
    if inner.index.begin_if_due(Clock::Boot.now(), inner.retention) {
        let store = Arc::clone(inner);
        MongoStore::run_unwatched(inner.requests.track_future(async move {
            match make(&store, WITHIN).await {
                Ok(()) => {}
                Err(error @ Error::Unavailable { .. }) => {
                    store.index.note_doubt();
                    debug!(collection = store.collection, %error, "the TTL index is looked at again later");
                }
                Err(error) => {
                    let error: &(dyn std::error::Error + 'static) = &error;
                    warn!(
                        collection = store.collection,
                        error, "the TTL index cannot be made again, so idle records may stay"
                    );
                }
            }
        }));
    }
}

/// Sees to the index before the first request.
pub(super) async fn ensure(store: &Inner, within: Duration) -> Result<()> {
    store.index.begin(Clock::Boot.now());
    make(store, within).await
}

/// Makes the index, or checks the one that is there.
async fn make(store: &Inner, within: Duration) -> Result<()> {
    let seconds = retention_seconds(store.retention);
    let created = store
        .raw_command(
            &store.database,
            doc! {
                "createIndexes": &store.collection,
                "indexes": [{ "key": { "expires_at": 1 }, "name": "expires_at_1", "expireAfterSeconds": seconds }],
                // Not all of the voting members, which is the default: one may be down.
                "commitQuorum": "majority",
                "writeConcern": { "w": "majority", "wtimeout": server_limit(within) },
                "maxTimeMS": server_limit(within),
            },
        )
        .await;
    let error = match created {
        Ok(reply) => return reply.get("writeConcernError").map_or(Ok(()), |error| Err(fault::unconfirmed(error))),
        Err(error) => error,
    };
    let code = fault::code(&error);
    let conflict = code.is_some_and(|code| CONFLICTS.contains(&code));
    if !conflict && code != Some(fault::UNAUTHORIZED) {
        return Err(store.meaning(error, "createIndex"));
    }
    if !conflict {
        store.index.forbid();
    }
    // A conflict says that there is one; a missing privilege says nothing.
    match existing(store).await {
        Ok(Some(index)) if collects_after(&index, seconds) => Ok(()),
        Ok(Some(index)) if !conflict => Err(Error::invalid(format!(
            "the index {} of {} does not collect idle records after {seconds} seconds, and this user may not change it: have an operator do so, or set the retention of idle records to what it says",
            index.get_str("name").unwrap_or("on expires_at"),
            store.collection
        ))),
        Err(unavailable @ Error::Unavailable { .. }) => Err(unavailable),
        _ if conflict => Err(Error::invalid(format!(
            "{} has another index on expires_at or of its name: drop it, or set the retention of idle records to its expireAfterSeconds; {seconds} is wanted",
            store.collection
        ))
        .caused_by(fault::source(error))),
        found => {
            warn!(
                collection = store.collection,
                listed = found.is_ok(),
                "the TTL index cannot be created or seen by this user, so idle records may stay: have an operator run createIndex({{expires_at: 1}}, {{expireAfterSeconds: {seconds}}})"
            );
            Ok(())
        }
    }
}

/// The index on `expires_at` alone, if there is one.
async fn existing(store: &Inner) -> Result<Option<Document>> {
    let reply = match store.raw_command(&store.database, doc! { "listIndexes": &store.collection }).await {
        Ok(reply) => reply,
        Err(error) => return Err(store.meaning(error, "listIndexes")),
    };
    let batch =
        reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).map_err(fault::unreadable)?;
    let on_expiry = |index: &Document| index.get_document("key").is_ok_and(|key| key.keys().eq(["expires_at"]));
    Ok(batch.iter().filter_map(Bson::as_document).find(|index| on_expiry(index)).cloned())
}

/// Whether an index collects all idle records after so many seconds.
fn collects_after(index: &Document, seconds: i64) -> bool {
    let after = match index.get("expireAfterSeconds") {
        Some(Bson::Int32(after)) => i64::from(*after) == seconds,
        Some(Bson::Int64(after)) => *after == seconds,
        #[allow(
            clippy::float_cmp,
            clippy::cast_precision_loss,
            clippy::as_conversions,
            reason = "both are whole and small"
        )]
        Some(Bson::Double(after)) => *after == seconds as f64,
        _ => false,
    };
    after && !index.contains_key("partialFilterExpression")
}

/// A retention in whole seconds, never shorter than asked for.
pub(super) fn retention_seconds(retention: Duration) -> i64 {
    let seconds = retention.as_millis().div_ceil(1000);
    i64::try_from(seconds).unwrap_or(i64::MAX).min(i32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_made_again_after_an_insert_and_no_sooner_than_the_interval_allows() {
        let (state, retention) = (IndexState::default(), Duration::from_secs(3_600));
        let at = Duration::from_secs;
        let inserted = doc! { "lastErrorObject": { "n": 1, "updatedExisting": false, "upserted": "k" } };
        state.begin(at(1_000));
        state.note(&doc! { "lastErrorObject": { "n": 1, "updatedExisting": true } });
        assert!(!state.begin_if_due(at(9_000), retention), "nothing was inserted");
        state.note(&inserted);
        assert!(!state.begin_if_due(at(1_599), retention));
        assert!(state.begin_if_due(at(1_600), retention));
        assert!(!state.begin_if_due(at(9_000), retention), "once for each insert");
        state.note(&inserted);
        assert!(!state.begin_if_due(at(1_603), at(5)), "a short retention is a short interval");
        assert!(state.begin_if_due(at(1_605), at(5)));
        state.note(&inserted);
        state.forbid();
        assert!(!state.begin_if_due(at(9_000), retention), "this user may not");
    }

    #[test]
    fn retention_is_never_rounded_down() {
        assert_eq!(retention_seconds(Duration::from_millis(1_001)), 2);
        assert_eq!(retention_seconds(Duration::from_secs(86_400)), 86_400);
        assert_eq!(retention_seconds(Duration::MAX), i64::from(i32::MAX));
    }

    #[test]
    fn an_index_counts_by_what_it_does_and_not_by_its_name() {
        let index = doc! { "key": { "expires_at": 1 }, "name": "other", "expireAfterSeconds": 60 };
        assert!(collects_after(&index, 60));
        assert!(!collects_after(&index, 61));
        assert!(!collects_after(&doc! { "key": { "expires_at": 1 } }, 60));
        let mut partial = index;
        partial.insert("partialFilterExpression", doc! { "a": 1 });
        assert!(!collects_after(&partial, 60));
    }
}
