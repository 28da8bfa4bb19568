//! The TTL index, which deletes idle records.
//!
//! Purpose: each collection with records has the index, also after it was dropped while handles were open.
//!
//! Mechanism: `preflight.rs` creates the index before the first request. After a drop of the collection each record is
//! inserted again, and the answer to an acquire says whether it inserted one. If it did, or if there is no answer,
//! `createIndexes` is sent once more in the background. `state/index.rs` says when.
//!
//! Invariant: no request waits for the index, and a store that inserts nothing sends nothing.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Bson, Document, doc};
use tracing::{debug, warn};

use super::{
    context::{MongoContext, first_batch},
    error,
    limits::{deadline_after, server_limit},
    task,
};
use crate::types::{
    clock::Clock,
    deadline::Deadline,
    error::{Error, Result},
};

/// An index with this key or name has other options.
const INDEX_CONFLICT_CODES: [i32; 2] = [85, 86];

/// How long the server may take to create the index again.
const CREATE_INDEX_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the index again in the background, if that is due. The task ends with the driver's own timeouts, and `close`
/// waits for it.
pub(super) fn renew(context: &Arc<MongoContext>) {
    if context.index.begin_if_due(Clock::Boot.now(), context.retention) {
        let store = Arc::clone(context);
        task::spawn(context.runtime(), context.requests.track_future(async move {
            match create(&store, deadline_after(CREATE_INDEX_TIMEOUT)).await {
                Ok(()) => {}
                Err(error @ Error::Unavailable { .. }) => {
                    store.index.record_doubt();
                    debug!(collection = store.collection, %error, "the TTL index was not confirmed: it is checked again later");
                }
                Err(error) => {
                    warn!(
                        collection = store.collection,
                        error = error.as_std(),
                        "the TTL index cannot be created again, so idle records may stay: create it by hand"
                    );
                }
            }
        }));
    }
}

/// Creates or checks the index before the first request.
pub(super) async fn ensure(store: &MongoContext, deadline: Deadline) -> Result<()> {
    store.index.begin(Clock::Boot.now());
    create(store, deadline).await
}

/// Creates the index, or checks the existing one.
async fn create(store: &MongoContext, deadline: Deadline) -> Result<()> {
    let seconds = retention_seconds(store.retention);
    let created = store
        .raw_command(doc! {
            "createIndexes": &store.collection,
            "indexes": [{ "key": { "expires_at": 1 }, "name": "expires_at_1", "expireAfterSeconds": i64::from(seconds) }],
            // A majority, and not all voting members, which is the default: a member may be down.
            "commitQuorum": "majority",
            "writeConcern": { "w": "majority", "wtimeout": server_limit(deadline) },
            "maxTimeMS": server_limit(deadline),
        })
        .await;
    let error = match created {
        Ok(reply) => return error::ensure_written(&reply),
        Err(error) => error,
    };
    let conflict = error::is_refused_with(&error, &INDEX_CONFLICT_CODES);
    if !conflict && !error::is_refused_with(&error, &[error::UNAUTHORIZED]) {
        return Err(store.translate(error, "createIndex"));
    }
    if !conflict {
        store.index.forbid();
    }
    // After a conflict there is an index. After a missing privilege there may be one.
    let listed = store.command(doc! { "listIndexes": &store.collection }, "listIndexes").await.and_then(first_batch);
    let on_expiry = |index: &Document| index.get_document("key").is_ok_and(|key| key.keys().eq(["expires_at"]));
    match listed.map(|indexes| indexes.into_iter().find(on_expiry)) {
        Ok(Some(index)) if collects_after(&index, seconds) => Ok(()),
        Ok(Some(index)) if !conflict => Err(Error::invalid(format!(
            "the index {} of {} does not delete idle records after {seconds} seconds, and this user may not change it: have an operator change it, or set the retention of idle records to its expireAfterSeconds",
            index.get_str("name").unwrap_or("on expires_at"),
            store.collection
        ))),
        Err(unavailable @ Error::Unavailable { .. }) => Err(unavailable),
        _ if conflict => Err(Error::invalid(format!(
            "{} has an index on expires_at, or with its name, with other options than expireAfterSeconds {seconds}: drop it, or set the retention of idle records to its expireAfterSeconds",
            store.collection
        ))
        .caused_by(error::source(error))),
        found => {
            warn!(
                collection = store.collection,
                listed = found.is_ok(),
                "this user may neither create nor see the TTL index, so idle records may stay: have an operator run createIndex({{expires_at: 1}}, {{expireAfterSeconds: {seconds}}})"
            );
            Ok(())
        }
    }
}

/// Whether an index deletes all idle records after this many seconds.
fn collects_after(index: &Document, seconds: i32) -> bool {
    let same = [Bson::Int32(seconds), Bson::Int64(seconds.into()), Bson::Double(seconds.into())];
    index.get("expireAfterSeconds").is_some_and(|after| same.contains(after))
        && !index.contains_key("partialFilterExpression")
}

/// A retention in whole seconds, rounded up.
fn retention_seconds(retention: Duration) -> i32 {
    i32::try_from(retention.as_millis().div_ceil(1000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_never_rounded_down() {
        assert_eq!(retention_seconds(Duration::from_millis(1_001)), 2);
        assert_eq!(retention_seconds(Duration::from_secs(86_400)), 86_400);
        assert_eq!(retention_seconds(Duration::MAX), i32::MAX);
    }

    #[test]
    fn an_index_counts_by_what_it_does_and_not_by_its_name() {
        let index = doc! { "key": { "expires_at": 1 }, "name": "other", "expireAfterSeconds": 60 };
        for seconds in [Bson::Int32(60), Bson::Int64(60), Bson::Double(60.0)] {
            let index = doc! { "key": { "expires_at": 1 }, "expireAfterSeconds": seconds };
            assert!(collects_after(&index, 60) && !collects_after(&index, 61), "{index}");
        }
        assert!(!collects_after(&doc! { "key": { "expires_at": 1 } }, 60));
        // Later servers list the simple collation, too. An index deletes alike by each collation.
        for collation in [doc! { "locale": "simple" }, doc! { "locale": "en", "strength": 2 }] {
            let mut collated = index.clone();
            collated.insert("collation", collation);
            assert!(collects_after(&collated, 60));
        }
        let mut partial = index;
        partial.insert("partialFilterExpression", doc! { "a": 1 });
        assert!(!collects_after(&partial, 60));
    }
}
