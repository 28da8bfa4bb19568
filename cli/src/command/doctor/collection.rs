//! The collection of the leases: its index, and what else is in it.

use std::time::Duration;

use mongoseal::{Error, Key, Mongoseal};

use super::Finding;
use crate::{
    command::driver::{Answer, Bson, Deployment, Document, Refusal, doc},
    time,
};

const INDEX: &str = "index";

pub(super) async fn index(deployment: &Deployment, retention: Duration) -> Finding {
    let wanted = retention.as_millis().div_ceil(1000);
    let create = format!(
        "have an operator run db.getCollection({:?}).createIndex({{ expires_at: 1 }}, {{ expireAfterSeconds: {wanted} }})",
        deployment.collection
    );
    match indexes(deployment).await {
        Ok(indexes) => {
            let on_expiry =
                |index: &&Document| index.get_document("key").is_ok_and(|key| key.keys().eq(["expires_at"]));
            match indexes.iter().find(on_expiry) {
                Some(index) => judge(index, wanted),
                None => Finding::warn(INDEX, "there is none that collects idle records, so they stay", create),
            }
        }
        Err(Refusal::NothingThere) => {
            Finding::warn(INDEX, format!("there is no collection {:?} yet", deployment.collection), create)
        }
        Err(Refusal::Unauthorized) => Finding::warn(
            INDEX,
            "whether there is one that collects idle records could not be seen, for which the user needs listIndexes",
            create,
        ),
        Err(refusal) => Finding::warn(INDEX, format!("it could not be looked for, {refusal}"), "retry"),
    }
}

async fn indexes(deployment: &Deployment) -> Answer<Vec<Document>> {
    let reply = deployment.ask(doc! { "listIndexes": &deployment.collection }).await?;
    Ok(first_batch(&reply))
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    batch.into_iter().flatten().filter_map(Bson::as_document).cloned().collect()
}

/// Whether an index on `expires_at` does what it is for.
fn judge(index: &Document, wanted: u128) -> Finding {
    let name = index.get_str("name").unwrap_or("on expires_at");
    let after = match index.get("expireAfterSeconds") {
        Some(Bson::Int32(after)) => Some(i128::from(*after)),
        Some(Bson::Int64(after)) => Some(i128::from(*after)),
        // Whole in all but the strangest, and read to the second.
        Some(Bson::Double(after)) => format!("{after:.0}").parse().ok(),
        _ => None,
    };
    let Some(after) = after else {
        let advice = format!("drop it, and make it with expireAfterSeconds: {wanted}");
        return Finding::fail(INDEX, format!("{name} collects nothing: it has no expireAfterSeconds"), advice);
    };
    if index.contains_key("partialFilterExpression") {
        let advice = "drop it, and make it without partialFilterExpression";
        return Finding::fail(INDEX, format!("{name} collects some records only"), advice);
    }
    let lasts = u64::try_from(after).map(|seconds| time::brief(Duration::from_secs(seconds)));
    let lasts = lasts.unwrap_or_else(|_| format!("{after} seconds"));
    if u128::try_from(after) != Ok(wanted) {
        return Finding::fail(
            INDEX,
            format!("{name} keeps idle records for {lasts}, and {} are asked for", span(wanted)),
            format!(
                "say --retention {after}s here and to all programs that use the collection, or change it with collMod"
            ),
        );
    }
    Finding::pass(INDEX, format!("{name} keeps idle records for {lasts}"))
}

fn span(seconds: u128) -> String {
    time::brief(Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX)))
}

const RECORDS: &str = "records";
/// The most documents that are looked at.
const MOST: usize = 1_000;
/// The most that are named.
const NAMED: usize = 3;

/// Documents in the collection that the library cannot read.
pub(super) async fn foreign(deployment: &Deployment, seal: &Mongoseal) -> Finding {
    let find = doc! {
        "find": &deployment.collection,
        "projection": { "_id": 1 },
        "limit": i64::try_from(MOST + 1).unwrap_or(i64::MAX),
        "singleBatch": true,
        "batchSize": i64::try_from(MOST + 1).unwrap_or(i64::MAX),
    };
    let found = match deployment.ask(find).await {
        Ok(reply) => first_batch(&reply),
        Err(refusal) => return Finding::warn(RECORDS, format!("they could not be read, {refusal}"), "grant find"),
    };
    let more = found.len() > MOST;
    let (mut foreign, mut newer) = (Vec::new(), Vec::new());
    for document in found.iter().take(MOST) {
        let key = match document.get("_id") {
            Some(Bson::String(key)) => key.parse::<Key>().ok(),
            _ => None,
        };
        let id = || document.get("_id").map(ToString::to_string).unwrap_or_default();
        let Some(key) = key else {
            foreign.push(id());
            continue;
        };
        match seal.inspect(key).await {
            Err(Error::Corrupt { .. }) => foreign.push(id()),
            // The user may read, as the look above shows: so it is the format that is refused.
            Err(Error::Invalid { .. }) => newer.push(id()),
            _ => {}
        }
    }
    let looked = match (more, found.len()) {
        (true, _) => format!("of the first {MOST} documents"),
        (false, 1) => "of 1 document".into(),
        (false, count) => format!("of {count} documents"),
    };
    if !foreign.is_empty() {
        return Finding::warn(
            RECORDS,
            format!(
                "{looked} {} cannot be read, and whoever asks for that key gets an error: {}",
                foreign.len(),
                some(&foreign)
            ),
            "look at them with a MongoDB shell and move them away",
        );
    }
    if !newer.is_empty() {
        return Finding::warn(
            RECORDS,
            format!("{looked} a newer mongoseal wrote {}, which this one refuses: {}", newer.len(), some(&newer)),
            "upgrade this mongoseal",
        );
    }
    Finding::pass(RECORDS, format!("{looked} none is of foreign shape"))
}

/// The first of them, and how many more there are.
fn some(ids: &[String]) -> String {
    let named = ids.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(NAMED) {
        0 => named,
        others => format!("{named} and {others} more"),
    }
}
