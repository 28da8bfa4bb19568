//! What is checked before the first request: in each finding, what to do.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use tracing::{debug, warn};

use super::{Inner, fault, server_limit};
use crate::{Error, Result};

/// The wire version of MongoDB 6.0, the first with all that the pipeline uses.
const WIRE_VERSION_6_0: i32 = 17;
const INDEX_CONFLICTS: [i32; 2] = [85, 86];
/// By how much the cluster time may be ahead of the primary's clock. The server reads one after the other, and may
/// stall in between.
const STALL: Duration = Duration::from_secs(1);

/// Checks the deployment and sees to the TTL index. Three commands where all is well.
pub(super) async fn run(store: &Inner, within: Duration) -> Result<()> {
    let hello = store.command(doc! { "hello": 1 }, "hello").await?;
    deployment(&hello)?;
    if let Some(ahead) = cluster_time_ahead(&hello) {
        warn!(
            ?ahead,
            "the cluster time is ahead of the primary's clock, so the clock of a member that was primary is or was ahead by at least that: run NTP on each member, or set a grace above the difference"
        );
    }
    // Together: so the client has two connections when the first request comes, and to open one takes several round trips.
    let (journal, index) = tokio::join!(journal(store), index(store, within));
    journal.and(index)
}

/// Refuses a deployment that cannot keep the promises.
fn deployment(hello: &Document) -> Result<()> {
    let wire_version = hello.get_i32("maxWireVersion").unwrap_or(0);
    if wire_version < WIRE_VERSION_6_0 {
        return Err(Error::invalid(format!(
            "this MongoDB server speaks wire version {wire_version} and mongoseal needs {WIRE_VERSION_6_0}: upgrade to MongoDB 6.0 or later"
        )));
    }
    if hello.get_str("msg").is_ok_and(|router| router == "isdbgrid") {
        warn!(
            "this is a sharded cluster: leases are timed by its routers' clocks, so keep those together and the retention of idle records far above any lag"
        );
    } else if !hello.contains_key("setName") {
        return Err(Error::invalid(
            "this MongoDB server is a standalone, which cannot confirm a write by a majority: start it with --replSet and run rs.initiate(), one member is enough",
        ));
    }
    if hello.get_array("arbiters").is_ok_and(|arbiters| !arbiters.is_empty()) {
        warn!(
            "this replica set has an arbiter: with one data-bearing member down, no majority can confirm a write and leases are lost; replace the arbiter by a data-bearing member"
        );
    }
    Ok(())
}

/// By how much the cluster time is ahead of the clock of the server that answered, if it did not only stall. The
/// cluster time is the latest second that the clock of a primary has shown.
fn cluster_time_ahead(hello: &Document) -> Option<Duration> {
    let latest = hello.get_document("$clusterTime").and_then(|time| time.get_timestamp("clusterTime")).ok()?;
    let now = hello.get_datetime("localTime").ok()?.timestamp_millis();
    let ahead = i64::from(latest.time).saturating_mul(1_000).saturating_sub(now);
    u64::try_from(ahead).ok().map(Duration::from_millis).filter(|ahead| *ahead > STALL)
}

/// Refuses a set whose majority does not mean the journal, as far as the user may look.
async fn journal(store: &Inner) -> Result<()> {
    let admin = store.database.client().database("admin");
    let reply = match store.raw_command(&admin, doc! { "replSetGetConfig": 1 }).await {
        Ok(reply) => reply,
        // The user may not look, or the command is not served: by a router, a hosted deployment, or
        // to a client that keeps to the stable API.
        Err(error) if fault::is_refusal(&error) => {
            debug!(%error, "cannot see whether a majority means the journal");
            return Ok(());
        }
        Err(error) => return Err(fault::meaning(error, "admin", "$cmd", "replSetGetConfig")),
    };
    let config = reply.get_document("config").map_err(fault::unreadable)?;
    if config.get_bool("writeConcernMajorityJournalDefault").is_ok_and(|journaled| !journaled) {
        return Err(Error::invalid(
            "this replica set confirms majority writes before they are in the journal, so a confirmed lease can be lost in a crash: set writeConcernMajorityJournalDefault to true with rs.reconfig()",
        ));
    }
    Ok(())
}

/// Sees to the TTL index that collects idle records.
async fn index(store: &Inner, within: Duration) -> Result<()> {
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
    let conflict = code.is_some_and(|code| INDEX_CONFLICTS.contains(&code));
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
pub(super) fn retention_seconds(retention: Duration) -> i64 {
    let seconds = retention.as_millis().div_ceil(1000);
    i64::try_from(seconds).unwrap_or(i64::MAX).min(i32::MAX.into())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, Timestamp};

    use super::*;

    #[test]
    fn a_server_below_6_0_is_refused() {
        let error = deployment(&doc! { "setName": "rs0", "maxWireVersion": 13 }).unwrap_err();
        assert!(error.to_string().contains("upgrade to MongoDB 6.0"), "{error}");
        assert!(deployment(&doc! { "setName": "rs0", "maxWireVersion": 17 }).is_ok());
        assert!(deployment(&doc! { "msg": "isdbgrid", "maxWireVersion": 17 }).is_ok());
    }

    #[test]
    fn a_cluster_time_ahead_of_the_primary_s_clock_is_seen() {
        let hello = |seconds, millis| {
            doc! {
                "$clusterTime": { "clusterTime": Timestamp { time: seconds, increment: 7 } },
                "localTime": DateTime::from_millis(millis),
            }
        };
        assert_eq!(cluster_time_ahead(&hello(1_700_000_005, 1_700_000_000_250)), Some(Duration::from_millis(4_750)));
        assert_eq!(cluster_time_ahead(&hello(1_700_000_002, 1_700_000_000_999)), Some(Duration::from_millis(1_001)));
        // A stall, no difference, and a primary whose clock is ahead of all that were primary before.
        assert_eq!(cluster_time_ahead(&hello(1_700_000_002, 1_700_000_001_000)), None);
        assert_eq!(cluster_time_ahead(&hello(1_700_000_000, 1_700_000_000_999)), None);
        assert_eq!(cluster_time_ahead(&hello(1_700_000_000, 1_700_000_060_000)), None);
        // Not said.
        assert_eq!(cluster_time_ahead(&doc! { "localTime": DateTime::from_millis(0) }), None);
        assert_eq!(cluster_time_ahead(&doc! {}), None);
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
