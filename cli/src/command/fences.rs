//! `mongoseal fences`: compares the tokens in fenced documents with the replica set's clock.

use std::time::Duration;

use mongoseal::{FencingToken, inspect::StoreTime};
use serde_json::{Value, json};

use super::driver::{Answer, Bson, Deployment, Document, Refusal, doc, first_batch, number};
use crate::{
    arguments::Fences,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::escape,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Fences) -> Result<Status, Failure> {
    let field = &options.field;
    if field.is_empty() || field == "_id" || field.contains(['$', '.', '\0']) {
        return Err(Failure::invalid(format!(
            "{field:?} cannot be the field of the tokens: pass a top-level field, without `$` and `.`"
        )));
    }
    connection.require_mongodb(
        "fences",
        "because it reads documents of MongoDB: pass the connection string of their database",
    )?;
    // The library's error explains an unusable deployment better than the driver's.
    connection.with_handle(async |_| ()).await?;
    let (uri, _) = connection.target()?;
    let deployment =
        Deployment::open(&uri, connection, "fences").await.map_err(|refusal| refused(&refusal, &options))?;
    let found = examine(&deployment, &options, connection.timeout).await;
    let namespace = format!("{}.{}", deployment.database(), options.fenced);
    deployment.close().await;
    let found = found.map_err(|refusal| refused(&refusal, &options))?;
    let Some(found) = found else {
        return Err(Failure::invalid(format!(
            "there is no collection {namespace}: check its name, and the database (--db)"
        )));
    };
    if options.json {
        output::json(&view(&found, &namespace, field))?;
    } else {
        output::lines(&text(&found, &namespace, field))?;
    }
    if found.largest.is_none() && !found.is_empty {
        return Err(Failure::invalid(format!(
            "no document of {namespace} has a token in the field {field:?}: check --field, and whether writes of this collection are fenced"
        )));
    }
    Ok(if found.ahead == 0 { Status::DONE } else { Status::NO })
}

fn refused(refusal: &Refusal, options: &Fences) -> Failure {
    let Fences { fenced, field, .. } = options;
    match refusal {
        Refusal::Unauthorized => {
            Failure::invalid(format!("the user has no permission to read {fenced}: grant find on this collection"))
        }
        Refusal::TooSlow => Failure::new(
            Status::UNAVAILABLE,
            format!("a read of {fenced} exceeded --timeout: create an index on {field:?}, or pass a longer --timeout"),
        ),
        other => Failure::new(Status::UNAVAILABLE, format!("cannot read {fenced} ({other}): retry")),
    }
}

/// The tokens in the documents, and the clock.
struct Found {
    /// The largest token in a document.
    largest: Option<FencingToken>,
    /// The token of the clock's current time.
    clock: FencingToken,
    /// Whether the collection has no document.
    is_empty: bool,
    /// The number of documents with a larger token than `clock`.
    ahead: i64,
    /// The number of documents whose field has a value that is no possible token of this set. `None` if the count
    /// exceeded the time limit.
    foreign: Option<i64>,
}

/// Returns `None` if the collection does not exist.
async fn examine(deployment: &Deployment, options: &Fences, within: Duration) -> Answer<Option<Found>> {
    let Fences { fenced, field, .. } = options;
    // Also of a collection that does not exist, so that a missing privilege is reported as such.
    let any = doc! { "find": fenced, "projection": { "_id": 1 }, "limit": 1, "singleBatch": true };
    let is_empty = first_batch(&deployment.read(any, within).await?).next().is_none();
    // A user who may read the collection may list its name.
    let list =
        doc! { "listCollections": 1, "filter": { "name": fenced }, "nameOnly": true, "authorizedCollections": true };
    if is_empty && first_batch(&deployment.run(list).await?).next().is_none() {
        return Ok(None);
    }
    // The largest possible token of a set, to which a key can still be raised: 365 days ahead of the clock.
    let farthest = clock_of(deployment).await?.clock_seconds().saturating_add(365 * 24 * 3_600);
    let possible = FencingToken::at_clock(farthest, u64::MAX);
    let find = doc! {
        "find": fenced,
        "filter": carries(field, &doc! { "$gte": FencingToken::MIN, "$lte": possible }),
        "sort": { field: -1 },
        "projection": { "_id": 0, field: 1 },
        "limit": 1,
        "singleBatch": true,
    };
    let found = deployment.read(find, within).await?;
    let largest =
        first_batch(&found).next().and_then(|document| FencingToken::try_from(document.get_i64(field).ok()?).ok());
    // Read after the documents, so that the clock is past every token that it has issued and that was found.
    let clock = clock_of(deployment).await?;
    let count = async |filter: Document| -> Answer<i64> {
        let pipeline = vec![doc! { "$match": filter }, doc! { "$count": "documents" }];
        let counted = deployment.read(doc! { "aggregate": fenced, "pipeline": pipeline, "cursor": {} }, within).await?;
        let number = first_batch(&counted).next().and_then(|counted| number(counted.get("documents")?));
        Ok(number.unwrap_or_default())
    };
    let ahead = match largest.filter(|largest| *largest > clock) {
        // Larger tokens than `largest` were written after the clock was read, so they do not count.
        Some(largest) => count(carries(field, &doc! { "$gt": clock, "$lte": largest })).await?,
        None => 0,
    };
    let any = carries(field, &doc! { "$lte": possible });
    let foreign = match count(doc! { "$nor": [{ field: Bson::Null }, any] }).await {
        Ok(count) => Some(count),
        Err(Refusal::TooSlow) => None,
        Err(refusal) => return Err(refusal),
    };
    Ok(Some(Found { largest, clock, is_empty, ahead, foreign }))
}

/// Matches documents whose token satisfies a condition, as fenced writes match them. A token is a long. Arrays are
/// excluded, because a condition on an array matches its elements.
fn carries(field: &str, holds: &Document) -> Document {
    doc! { "$and": [
        { field: holds.clone() },
        { field: { "$type": "long", "$not": { "$type": "array" } } },
    ] }
}

/// Returns the token of the set's current cluster time.
async fn clock_of(deployment: &Deployment) -> Answer<FencingToken> {
    let hello = deployment.run_admin(doc! { "hello": 1 }).await?;
    let time = hello.get_document("$clusterTime").and_then(|clock| clock.get_timestamp("clusterTime"));
    time.map(|time| FencingToken::at_clock(time.time.into(), time.increment.into()))
        .map_err(|_| Refusal::Other("the server reports no cluster time".into()))
}

/// Returns the time in a token.
fn of(token: FencingToken) -> StoreTime {
    StoreTime::from_millis(i64::try_from(token.clock_seconds().saturating_mul(1_000)).unwrap_or(i64::MAX))
}

impl Found {
    /// Returns the largest token if it is ahead of the clock: the token to raise keys to.
    fn to(&self) -> Option<FencingToken> {
        self.largest.filter(|_| self.ahead > 0)
    }
}

/// Describes what was found as JSON.
fn view(found: &Found, collection: &str, field: &str) -> Value {
    json!({
        "collection": collection,
        "field": field,
        "largest": found.largest.map(FencingToken::get),
        "largest_at": found.largest.map(|token| of(token).to_string()),
        "clock": found.clock.get(),
        "clock_at": of(found.clock).to_string(),
        "ahead": found.ahead,
        "refused_until": found.to().map(|to| passed(to).to_string()),
        "raise_to": found.to().map(FencingToken::get),
        "foreign": found.foreign,
    })
}

/// Returns the time from which the clock is past a token: the end of its second.
fn passed(token: FencingToken) -> StoreTime {
    of(token).after(1_000)
}

fn text(found: &Found, namespace: &str, field: &str) -> Vec<String> {
    let described = |token: FencingToken| format!("{token} ({})", of(token));
    let none = if found.is_empty { "none, because the collection is empty" } else { "none" };
    let documents = |count: i64| if count == 1 { "1 document".to_owned() } else { format!("{count} documents") };
    let mut lines = vec![
        format!("Collection     {}, tokens in field {}", escape::visible(namespace), escape::visible(field)),
        format!("Largest token  {}", found.largest.map_or_else(|| none.into(), described)),
        format!("Clock          {}", described(found.clock)),
        format!("Ahead          {}", documents(found.ahead)),
        match found.foreign {
            Some(count) => format!("No token       {}", documents(count)),
            None => "No token       not counted within --timeout: pass a longer one".into(),
        },
    ];
    if let Some(to) = found.to() {
        lines.extend([
            String::new(),
            format!("Writers with smaller tokens are refused until the clock has passed {}.", passed(to)),
            "To allow their writes now, raise the keys whose leases protect these documents:".into(),
            format!("  mongoseal raise --to {to} KEY..."),
            "Keys that were raised already need nothing: mongoseal show KEY prints the version.".into(),
        ]);
    }
    lines
}
