//! Probes of writes.

use super::{Lab, Probed, Unmet, ensure};
use crate::command::driver::{Document, Refusal, doc, first_batch, number};

const DUPLICATE_KEY: i32 = 11000;
const WRITE_CONFLICT: i32 = 112;
/// Not enough members for a write concern, and a write that they did not confirm in time.
const UNCONFIRMED: [i32; 2] = [100, 64];

/// An upsert inserts the fields of its query, and then the pipeline runs.
pub(super) async fn pipeline(lab: Lab<'_>) -> Probed {
    let command = lab.upsert(
        doc! { "_id": "pipeline", "v": 1, "version": { "$gte": 1 } },
        vec![
            doc! { "$replaceWith": { "r": "$$ROOT" } },
            doc! { "$replaceWith": { "$mergeObjects": [
                "$r", { "version": { "$add": [{ "$ifNull": ["$r.version", 0] }, 1] } },
            ] } },
        ],
    );
    for (expected, has_existed) in [(1, false), (2, true)] {
        let reply = lab.deployment.run(command.clone()).await?;
        let existed =
            reply.get_document("lastErrorObject").and_then(|last| last.get_bool("updatedExisting")).unwrap_or_default();
        let found = reply.get_document("value").cloned().unwrap_or_default();
        let is_right = found.get_i32("v").ok() == Some(1) && found.get_i32("version").ok() == Some(expected);
        ensure(is_right && existed == has_existed, format!("upsert {expected} returned {found}"))?;
    }
    Ok("findAndModify inserts and updates by a pipeline".into())
}

/// A pipeline of an upsert reads both clocks, and the hybrid clock grows with each write.
pub(super) async fn clocks(lab: Lab<'_>) -> Probed {
    let update = vec![doc! { "$set": {
        "now": "$$NOW", "hlc": "$$CLUSTER_TIME", "of_hlc": { "$toDate": "$$CLUSTER_TIME" },
        "second": { "$tsSecond": "$$CLUSTER_TIME" }, "ordinal": { "$tsIncrement": "$$CLUSTER_TIME" },
    } }];
    let command = lab.upsert(doc! { "_id": "clocks" }, update);
    let mut last = None;
    for _ in 0..2 {
        let found = lab.modify(command.clone()).await?;
        let differs = || format!("the clocks of an update are {found}");
        let (Ok(_), Ok(hlc)) = (found.get_datetime("now"), found.get_timestamp("hlc")) else {
            return Err(Unmet::Differs(differs()));
        };
        let parts = (found.get_i64("second").ok(), found.get_i64("ordinal").ok());
        let has_parts = parts == (Some(hlc.time.into()), Some(hlc.increment.into()));
        let of_hlc = found.get_datetime("of_hlc").map(|date| date.timestamp_millis()).ok();
        ensure(has_parts && of_hlc == Some(i64::from(hlc.time) * 1_000), differs())?;
        ensure(last < Some(hlc), "the hybrid clock did not grow between two writes")?;
        last = Some(hlc);
    }
    Ok("pipelines read $$NOW, $$CLUSTER_TIME and $tsSecond, and the hybrid clock grows".into())
}

/// The projection of a reply has the clocks of its write.
pub(super) async fn projection(lab: Lab<'_>) -> Probed {
    let mut command = lab.upsert(doc! { "_id": "projection" }, vec![doc! { "$set": { "last_seen": "$$NOW" } }]);
    command.insert("fields", doc! { "last_seen": 1, "now": "$$NOW", "hlc": "$$CLUSTER_TIME" });
    let found = lab.modify(command).await?;
    let (last_seen, now) = (found.get_datetime("last_seen"), found.get_datetime("now"));
    let is_same = last_seen.is_ok() && last_seen.ok() == now.ok();
    ensure(is_same && found.get_timestamp("hlc").is_ok(), format!("the projection returned {found}"))?;
    Ok("the reply to a write has its clocks".into())
}

/// A pipeline takes the values of `let` as they are.
pub(super) async fn constants(lab: Lab<'_>) -> Probed {
    let mut command = lab.upsert(doc! { "_id": "constants" }, vec![doc! { "$set": { "text": "$$constant" } }]);
    command.insert("let", doc! { "constant": { "$literal": "$$NOW" } });
    let found = lab.modify(command).await?;
    ensure(found.get_str("text") == Ok("$$NOW"), format!("a constant was stored as {found}"))?;
    Ok("let passes a text to a pipeline unchanged".into())
}

/// An upsert whose query does not match the document with its `_id` fails.
pub(super) async fn duplicate_key(lab: Lab<'_>) -> Probed {
    let upsert = |v: i32| lab.upsert(doc! { "_id": "duplicate", "v": v }, vec![doc! { "$set": { "found": v } }]);
    lab.modify(upsert(1)).await?;
    match lab.deployment.run(upsert(2)).await {
        Err(Refusal::Server(DUPLICATE_KEY, _)) => Ok("an upsert of another document is refused".into()),
        Err(refusal) => Err(refusal.into()),
        Ok(reply) => Err(Unmet::Differs(format!("an upsert of another document returned {reply}"))),
    }
}

/// The server confirms a write with the write concern of the library.
pub(super) async fn majority(lab: Lab<'_>) -> Probed {
    lab.modify(lab.upsert(doc! { "_id": "majority" }, vec![doc! { "$set": { "at": "$$NOW" } }])).await?;
    Ok("a write is confirmed with w: majority and j: true".into())
}

/// A write that cannot be confirmed is reported as such.
pub(super) async fn concern_error(lab: Lab<'_>) -> Probed {
    let mut command = lab.upsert(doc! { "_id": "concern" }, vec![doc! { "$set": { "at": "$$NOW" } }]);
    // As many members as a replica set can have at most. Only seven of them vote.
    command.insert("writeConcern", doc! { "w": 50, "wtimeout": 500 });
    match lab.deployment.run(command).await {
        Err(Refusal::Transient(code, _)) if UNCONFIRMED.contains(&code) => {
            Ok(format!("a write that too few members confirm is reported with code {code}"))
        }
        Err(refusal) => Err(refusal.into()),
        Ok(_) => Err(Unmet::Differs("a write that 50 members must confirm was confirmed".into())),
    }
}

/// The reply to an update counts the documents that it changed.
pub(super) async fn change_count(lab: Lab<'_>) -> Probed {
    let insert = |name: &str| lab.upsert(doc! { "_id": name }, vec![doc! { "$set": { "to_count": name } }]);
    lab.modify(insert("count/a")).await?;
    lab.modify(insert("count/b")).await?;
    let update = doc! {
        "update": &lab.scratch.collection,
        "updates": [{
            "q": { "_id": { "$in": ["count/a", "count/b"] } }, "u": [{ "$set": { "to_count": "count/a" } }], "multi": true,
        }],
        "writeConcern": { "w": "majority", "j": true, "wtimeout": 10_000 },
    };
    let reply = lab.deployment.run(update).await?;
    let (matched, changed) = (reply.get("n").and_then(number), reply.get("nModified").and_then(number));
    let differs = format!("an update of one of two documents counted {matched:?} matched and {changed:?} changed");
    ensure((matched, changed) == (Some(2), Some(1)), differs)?;
    Ok("an update of many documents counts those that it changed".into())
}

/// A transaction is committed.
pub(super) async fn transaction(lab: Lab<'_>) -> Probed {
    lab.deployment.commit(in_transaction(lab, "transaction")).await?;
    let find = doc! { "find": &lab.scratch.collection, "filter": { "_id": "transaction" } };
    let found = first_batch(&lab.deployment.run(find).await?).next().and_then(|found| found.get_i32("writes").ok());
    ensure(found == Some(1), format!("after its commit a document has {found:?} writes of 1"))?;
    Ok("a transaction is committed".into())
}

/// Of two transactions that write the same document, one fails.
pub(super) async fn conflict(lab: Lab<'_>) -> Probed {
    lab.modify(lab.upsert(doc! { "_id": "conflict" }, vec![doc! { "$set": { "writes": 0 } }])).await?;
    match lab.deployment.provoke_conflict(in_transaction(lab, "conflict")).await? {
        None => Err(Unmet::Differs("two transactions wrote the same document at the same time".into())),
        Some((refusal, true)) if refusal.code() == Some(WRITE_CONFLICT) => {
            Ok("of two transactions that write a document, one is refused and may be repeated".into())
        }
        Some((refusal, _)) => Err(Unmet::Differs(format!("the second of two transactions failed with {refusal}"))),
    }
}

/// Counts a write of a document, in a transaction.
fn in_transaction(lab: Lab<'_>, id: &str) -> Document {
    doc! {
        "findAndModify": &lab.scratch.collection,
        "query": { "_id": id },
        "update": { "$inc": { "writes": 1 } },
        "upsert": true,
    }
}
