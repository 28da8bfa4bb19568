//! Checks of the collection: its TTL index, and documents that are not lease records.

use std::time::Duration;

use mongoseal::{Key, store::MongoStore};

use super::{
    Finding,
    records::{self, Unreadable},
};
use crate::{
    command::driver::{Bson, Deployment, Document, Refusal, doc, first_batch, number},
    time,
};

const INDEX: &str = "index";

pub(super) async fn index(deployment: &Deployment, retention: Duration) -> Finding {
    let wanted = retention.as_millis().div_ceil(1000);
    let create = format!(
        "an operator can run db.getCollection({:?}).createIndex({{ expires_at: 1 }}, {{ expireAfterSeconds: {wanted} }})",
        deployment.collection
    );
    match deployment.run(doc! { "listIndexes": &deployment.collection }).await {
        Ok(reply) => {
            let on_expiry =
                |index: &&Document| index.get_document("key").is_ok_and(|key| key.keys().eq(["expires_at"]));
            match first_batch(&reply).find(on_expiry) {
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

/// Checks whether an index on `expires_at` deletes all idle records after the retention.
fn judge(index: &Document, wanted: u128) -> Finding {
    let name = index.get_str("name").unwrap_or("on expires_at");
    let after = match index.get("expireAfterSeconds") {
        // Rounded to whole seconds.
        Some(Bson::Double(after)) => format!("{after:.0}").parse().ok(),
        other => other.and_then(number).map(i128::from),
    };
    let Some(after) = after else {
        let advice = format!("drop it, and create it with expireAfterSeconds: {wanted}");
        return Finding::fail(INDEX, format!("{name} has no expireAfterSeconds, so it deletes nothing"), advice);
    };
    if index.contains_key("partialFilterExpression") {
        let advice = "drop it, and create it without partialFilterExpression";
        return Finding::fail(INDEX, format!("{name} covers only some of the records"), advice);
    }
    let kept = u128::try_from(after).map_or_else(|_| format!("{after} s"), span);
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
    if time::parse(&shown) == Ok(exact) { shown } else { format!("{seconds} s") }
}

/// Looks for documents in the collection that the library cannot read.
pub(super) async fn foreign(deployment: &Deployment) -> Finding {
    match deployment.scan(records::MAX, check).await {
        Ok(scan) => {
            records::judged(&scan, "document", "inspect them with a MongoDB shell, and move them to another collection")
        }
        Err(refusal) => records::unread(&refusal, "grant find"),
    }
}

/// Checks a document as the library does.
fn check(document: &Document) -> Option<Unreadable> {
    let id = || document.get("_id").map(ToString::to_string).unwrap_or_default();
    let Some(key) = document.get_str("_id").ok().and_then(|id| id.parse::<Key>().ok()) else {
        return Some(Unreadable::Foreign(id()));
    };
    Unreadable::of(MongoStore::check_document(&key, document), id)
}
