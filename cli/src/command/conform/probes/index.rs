//! Probes of the TTL index.

use std::time::Duration;

use mongoseal::store::Clock;

use super::{Lab, Probed, Unmet, ensure};
use crate::command::{
    driver::{Answer, DateTime, doc, first_batch},
    finding::Finding,
};

/// An index with this key or name has other options.
const CONFLICTS: [i32; 2] = [85, 86];
/// How long the server may take to delete an expired document. It looks for such documents once a minute.
const DELETION_TIME: Duration = Duration::from_secs(150);
/// A time before that of any retention: the year 1900.
const LONG_AGO: i64 = -2_208_988_800_000;
const DELETION: &str = "TTL deletion";

/// The index is created, once. An index with other options is refused.
pub(super) async fn ttl_index(lab: Lab<'_>) -> Probed {
    let retention = lab.connection.retention.as_millis().div_ceil(1_000);
    let retention = i32::try_from(retention).unwrap_or(i32::MAX);
    for _ in 0..2 {
        create(lab, retention).await?;
    }
    let another = retention ^ 1;
    match create(lab, another).await {
        Err(refusal) if refusal.code().is_some_and(|code| CONFLICTS.contains(&code)) => {
            Ok("the index is created, and one with other options is refused".into())
        }
        Err(refusal) => Err(refusal.into()),
        Ok(()) => Err(Unmet::Differs("an index with another retention was accepted beside the first".into())),
    }
}

/// Creates the index as the library does.
async fn create(lab: Lab<'_>, seconds: i32) -> Answer<()> {
    let create = doc! {
        "createIndexes": &lab.scratch.collection,
        "indexes": [{ "key": { "expires_at": 1 }, "name": "expires_at_1", "expireAfterSeconds": seconds }],
        "commitQuorum": "majority",
        "writeConcern": { "w": "majority", "wtimeout": 10_000 },
    };
    lab.deployment.run(create).await.map(drop)
}

/// Inserts a document that the index deletes. [`deletion`] waits for that.
pub(in super::super) async fn insert_expired(lab: Lab<'_>) -> Answer<()> {
    let document = doc! { "_id": "expired", "expires_at": DateTime::from_millis(LONG_AGO) };
    lab.deployment.run(doc! { "insert": &lab.scratch.collection, "documents": [document] }).await.map(drop)
}

/// Checks whether the server deletes the expired document.
pub(in super::super) async fn deletion(lab: Lab<'_>, inserted: Answer<()>) -> Finding {
    let find =
        doc! { "find": &lab.scratch.collection, "filter": { "_id": "expired" }, "limit": 1, "singleBatch": true };
    let deleted = async {
        inserted?;
        let until = Clock::Boot.now().after(DELETION_TIME);
        while first_batch(&lab.deployment.run(find.clone()).await?).next().is_some() {
            ensure(Clock::Boot.now() < until, "an expired document was not deleted within 150 s")?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok::<_, Unmet>(())
    };
    match deleted.await {
        Ok(()) => Finding::pass(DELETION, "the server deletes an expired document"),
        Err(Unmet::Refused(refusal)) => Finding::fail(DELETION, format!("cannot check it ({refusal})"), "retry"),
        Err(Unmet::Differs(found)) => Finding::fail(
            DELETION,
            format!("{found}, so idle records stay"),
            "check that the server runs with the parameter ttlMonitorEnabled",
        ),
    }
}

/// Reports that the deletion is not checked.
pub(in super::super) fn deletion_not_checked() -> Finding {
    Finding::skip(DELETION, "not checked, because the server deletes only once a minute", "pass --slow")
}
