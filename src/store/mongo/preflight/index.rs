//! The TTL index, which collects idle records.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use tracing::warn;

use super::super::{Inner, fault, server_limit};
use crate::{Error, Result};

/// The codes of an index that conflicts with another.
const CONFLICTS: [i32; 2] = [85, 86];

/// Creates the TTL index. If the user may not, or if there is another index, checks the one that is there.
pub(super) async fn ensure(store: &Inner, within: Duration) -> Result<()> {
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
pub(in crate::store::mongo) fn retention_seconds(retention: Duration) -> i64 {
    let seconds = retention.as_millis().div_ceil(1000);
    i64::try_from(seconds).unwrap_or(i64::MAX).min(i32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
