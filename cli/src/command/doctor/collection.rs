//! Checks of the collection: its TTL index, and documents that are not lease records.

use std::time::Duration;

use mongoseal::{Error, Key, store::MongoStore};

use super::Finding;
use crate::{
    command::driver::{Answer, Bson, Deployment, Document, Refusal, doc},
    time,
};

const INDEX: &str = "index";

pub(super) async fn index(deployment: &Deployment, retention: Duration) -> Finding {
    let wanted = retention.as_millis().div_ceil(1000);
    let create = format!(
        "an operator can run db.getCollection({:?}).createIndex({{ expires_at: 1 }}, {{ expireAfterSeconds: {wanted} }})",
        deployment.collection
    );
    match indexes(deployment).await {
        Ok(indexes) => {
            let on_expiry =
                |index: &&Document| index.get_document("key").is_ok_and(|key| key.keys().eq(["expires_at"]));
            match indexes.iter().find(on_expiry) {
                Some(index) => judge(index, wanted),
                None => Finding::warn(INDEX, "no TTL index on expires_at, so idle records are never deleted", create),
            }
        }
        Err(Refusal::NoCollection) => {
            Finding::warn(INDEX, format!("the collection {:?} does not exist yet", deployment.collection), create)
        }
        Err(Refusal::Unauthorized) => Finding::warn(
            INDEX,
            "cannot check whether a TTL index deletes idle records (the user lacks listIndexes); if there is none",
            create,
        ),
        Err(refusal) => Finding::warn(INDEX, format!("cannot read the indexes ({refusal})"), "retry"),
    }
}

async fn indexes(deployment: &Deployment) -> Answer<Vec<Document>> {
    let reply = deployment.run(doc! { "listIndexes": &deployment.collection }).await?;
    Ok(first_batch(&reply))
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    batch.into_iter().flatten().filter_map(Bson::as_document).cloned().collect()
}

/// Checks whether an index on `expires_at` deletes all idle records after the retention.
fn judge(index: &Document, wanted: u128) -> Finding {
    let name = index.get_str("name").unwrap_or("on expires_at");
    let after = match index.get("expireAfterSeconds") {
        Some(Bson::Int32(after)) => Some(i128::from(*after)),
        Some(Bson::Int64(after)) => Some(i128::from(*after)),
        // Rounded to whole seconds.
        Some(Bson::Double(after)) => format!("{after:.0}").parse().ok(),
        _ => None,
    };
    let Some(after) = after else {
        let advice = format!("drop it, and create it with expireAfterSeconds: {wanted}");
        return Finding::fail(INDEX, format!("{name} has no expireAfterSeconds, so it deletes nothing"), advice);
    };
    if index.contains_key("partialFilterExpression") {
        let advice = "drop it, and create it without partialFilterExpression";
        return Finding::fail(INDEX, format!("{name} covers only some of the records"), advice);
    }
    let kept = u128::try_from(after).map_or_else(|_| format!("{after}s"), span);
    if u128::try_from(after) != Ok(wanted) {
        return Finding::fail(
            INDEX,
            format!("{name} keeps idle records for {kept}, but --retention is {}", span(wanted)),
            format!(
                "pass --retention {} here and in all programs that use the collection, or change the index with collMod",
                kept.replace(' ', "")
            ),
        );
    }
    Finding::pass(INDEX, format!("{name} keeps idle records for {kept}"))
}

/// Formats the retention of an index so that it can be passed to `--retention`.
fn span(seconds: u128) -> String {
    let exact = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
    let shown = time::format(exact);
    if time::parse(&shown) == Ok(exact) { shown } else { format!("{seconds}s") }
}

const RECORDS: &str = "records";
/// The largest number of documents that are checked.
const MAX_DOCUMENTS: usize = 100_000;
/// The largest number of ids in a finding.
const MAX_IDS: usize = 3;

/// A document that the library cannot read as a record, with its id.
enum Unreadable {
    Foreign(String),
    Newer(String),
}

/// Looks for documents in the collection that the library cannot read.
pub(super) async fn foreign(deployment: &Deployment) -> Finding {
    let scan = match deployment.scan(MAX_DOCUMENTS, check).await {
        Ok(scan) => scan,
        Err(refusal) => return Finding::warn(RECORDS, format!("cannot read them ({refusal})"), "grant find"),
    };
    let (mut foreign, mut newer) = (Vec::new(), Vec::new());
    for unreadable in scan.found {
        match unreadable {
            Unreadable::Foreign(id) => foreign.push(id),
            Unreadable::Newer(id) => newer.push(id),
        }
    }
    let checked = match (scan.has_more, scan.count) {
        (true, count) => format!("the first {count} documents"),
        (false, 1) => "1 document".into(),
        (false, count) => format!("{count} documents"),
    };
    if !foreign.is_empty() {
        return Finding::warn(
            RECORDS,
            format!(
                "{} of {checked} cannot be read as lease records ({}), so requests for these keys fail",
                foreign.len(),
                first_ids(&foreign)
            ),
            "inspect them with a MongoDB shell, and move them to another collection",
        );
    }
    if !newer.is_empty() {
        return Finding::warn(
            RECORDS,
            format!("a newer mongoseal wrote {} of {checked} ({})", newer.len(), first_ids(&newer)),
            "upgrade this mongoseal",
        );
    }
    Finding::pass(RECORDS, format!("{checked} checked, all are lease records"))
}

/// Checks a document as the library does.
fn check(document: &Document) -> Option<Unreadable> {
    let id = || document.get("_id").map(ToString::to_string).unwrap_or_default();
    let Some(key) = document.get_str("_id").ok().and_then(|id| id.parse::<Key>().ok()) else {
        return Some(Unreadable::Foreign(id()));
    };
    match MongoStore::check_document(&key, document) {
        Ok(()) => None,
        Err(Error::Invalid { .. }) => Some(Unreadable::Newer(id())),
        Err(_not_a_record) => Some(Unreadable::Foreign(id())),
    }
}

/// Lists the first ids, and the number of others.
fn first_ids(ids: &[String]) -> String {
    let named = ids.iter().take(MAX_IDS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(MAX_IDS) {
        0 => named,
        others => format!("{named} and {others} more"),
    }
}
