//! `mongoseal fences`: whether fenced documents carry tokens that the replica set's clock has not come to.

use std::time::Duration;

use mongoseal::{FencingToken, HybridTime, StoreTime};
use serde::Serialize;

use super::driver::{Answer, Bson, Deployment, Document, Refusal, doc};
use crate::{
    arguments::Fences,
    connection::Connection,
    escape,
    exit_status::{Failure, Status},
    output, time,
};

pub(crate) async fn perform(connection: &Connection, options: Fences) -> Result<Status, Failure> {
    let field = &options.field;
    if field.is_empty() || field == "_id" || field.contains(['$', '.', '\0']) {
        return Err(Failure::invalid(format!(
            "{field:?} cannot be the field of the tokens: name a field of the document itself, without `$` and `.`"
        )));
    }
    // Says better than the driver why a deployment cannot be used.
    connection.open().await?.shutdown().await;
    let uri = connection.uri()?;
    let deployment =
        Deployment::open(&uri, connection, "fences").await.map_err(|refusal| refused(&refusal, &options))?;
    let found = examine(&deployment, &options, connection.timeout()).await;
    let namespace = format!("{}.{}", deployment.database(), options.fenced);
    deployment.close().await;
    let found = found.map_err(|refusal| refused(&refusal, &options))?;
    if options.json {
        output::json(&FencesView::of(&found, &namespace, field))?;
    } else {
        output::lines(&in_words(&found, &namespace, field))?;
    }
    Ok(if found.ahead == 0 { Status::DONE } else { Status::NO })
}

fn refused(refusal: &Refusal, options: &Fences) -> Failure {
    let Fences { fenced, field, .. } = options;
    match refusal {
        Refusal::Unauthorized => {
            Failure::invalid(format!("the user may not read {fenced}: grant find on this collection"))
        }
        Refusal::TooSlow => Failure::new(
            Status::UNAVAILABLE,
            format!("to read {fenced} took too long: make an index on {field:?}, or pass a longer --timeout"),
        ),
        other => Failure::new(Status::UNAVAILABLE, format!("{fenced} could not be read, {other}: retry")),
    }
}

/// What the documents carry, and what the clock reads.
struct Found {
    /// The largest token in a document.
    largest: Option<FencingToken>,
    /// The token that the clock numbers.
    clock: FencingToken,
    /// How many documents carry a larger one.
    ahead: i64,
    /// How many documents have something in the field that is no token which this set can have numbered. `None`: they could not be counted in time.
    foreign: Option<i64>,
}

async fn examine(deployment: &Deployment, options: &Fences, within: Duration) -> Answer<Found> {
    let Fences { fenced, field, .. } = options;
    let possible = farthest(clock_of(deployment).await?);
    let find = doc! {
        "find": fenced,
        "filter": carries(field, &doc! { "$gte": FencingToken::MIN, "$lte": possible }),
        "sort": { field: -1 },
        "projection": { "_id": 0, field: 1 },
        "limit": 1,
        "singleBatch": true,
    };
    let found = first(&deployment.read(find, within).await?);
    let largest = found.and_then(|document| FencingToken::try_from(document.get_i64(field).ok()?).ok());
    // After that read: so the clock has passed each token that it has numbered and that was found.
    let clock = clock_of(deployment).await?;
    let count = async |filter: Document| -> Answer<i64> {
        let pipeline = vec![doc! { "$match": filter }, doc! { "$count": "documents" }];
        let counted = deployment.read(doc! { "aggregate": fenced, "pipeline": pipeline, "cursor": {} }, within).await?;
        let number = first(&counted).and_then(|counted| number(counted.get("documents")?));
        Ok(number.unwrap_or_default())
    };
    let ahead = match largest.filter(|largest| *largest > clock) {
        // No larger ones: those were written after the clock was read.
        Some(largest) => count(carries(field, &doc! { "$gt": clock, "$lte": largest })).await?,
        None => 0,
    };
    let any = carries(field, &doc! { "$lte": possible });
    let foreign = match count(doc! { "$nor": [{ field: Bson::Null }, any] }).await {
        Ok(count) => Some(count),
        Err(Refusal::TooSlow) => None,
        Err(refusal) => return Err(refusal),
    };
    Ok(Found { largest, clock, ahead, foreign })
}

/// The documents that carry a token for which this holds, as a fenced write looks at them: a token is a long, and a
/// condition on an array would be one on its elements.
fn carries(field: &str, holds: &Document) -> Document {
    doc! { "$and": [
        { field: holds.clone() },
        { field: { "$type": "long", "$not": { "$type": "array" } } },
    ] }
}

fn first(reply: &Document) -> Option<Document> {
    let batch = reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?;
    batch.first()?.as_document().cloned()
}

/// A count, which the server gives as an int or a long.
fn number(count: &Bson) -> Option<i64> {
    count.as_i64().or_else(|| count.as_i32().map(i64::from))
}

async fn clock_of(deployment: &Deployment) -> Answer<FencingToken> {
    let hello = deployment.admin(doc! { "hello": 1 }).await?;
    clock(&hello).ok_or_else(|| Refusal::Other("the server does not say its cluster time".into()))
}

/// The largest token that a set can have numbered, and to which a key can be raised: a year ahead of the clock.
fn farthest(clock: FencingToken) -> FencingToken {
    let year = (365 * 24 * 3_600) << HybridTime::ORDINAL_BITS;
    FencingToken::new(clock.get().saturating_add(year)).unwrap_or(FencingToken::MAX)
}

/// The token that the set's clock numbers.
fn clock(hello: &Document) -> Option<FencingToken> {
    let time = hello.get_document("$clusterTime").ok()?.get_timestamp("clusterTime").ok()?;
    let tick = HybridTime { seconds: time.time.into(), ordinal: time.increment.into() };
    Some(FencingToken::following(None, tick, 0))
}

/// The time that a token stands for.
fn of(token: FencingToken) -> StoreTime {
    StoreTime::from_millis(i64::try_from(HybridTime::from(token).seconds.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

impl Found {
    /// The largest token, if it is ahead of the clock.
    fn to(&self) -> Option<FencingToken> {
        self.largest.filter(|_| self.ahead > 0)
    }
}

#[derive(Serialize)]
struct FencesView<'a> {
    collection: &'a str,
    field: &'a str,
    largest: Option<u64>,
    largest_at: Option<String>,
    clock: u64,
    clock_at: String,
    ahead: i64,
    refused_until: Option<String>,
    raise_to: Option<u64>,
    foreign: Option<i64>,
}

impl<'a> FencesView<'a> {
    fn of(found: &Found, collection: &'a str, field: &'a str) -> Self {
        Self {
            collection,
            field,
            largest: found.largest.map(FencingToken::get),
            largest_at: found.largest.map(|token| time::of_store(of(token))),
            clock: found.clock.get(),
            clock_at: time::of_store(of(found.clock)),
            ahead: found.ahead,
            refused_until: found.to().map(|to| time::of_store(passed(to))),
            raise_to: found.to().map(FencingToken::get),
            foreign: found.foreign,
        }
    }
}

/// When the clock has passed a token: at the end of its second.
fn passed(token: FencingToken) -> StoreTime {
    of(token).after(1_000)
}

fn in_words(found: &Found, namespace: &str, field: &str) -> Vec<String> {
    let said = |token: FencingToken| format!("{token}, of {}", time::of_store(of(token)));
    let documents = |count: i64| if count == 1 { "1 document".to_owned() } else { format!("{count} documents") };
    let mut lines = vec![
        format!("Collection     {}, with tokens in {}", escape::visible(namespace), escape::visible(field)),
        format!("Largest token  {}", found.largest.map_or_else(|| "no document has one".into(), said)),
        format!("Clock          {}", said(found.clock)),
        format!("Ahead          {}", documents(found.ahead)),
        match found.foreign {
            Some(count) => format!("No token       {}", documents(count)),
            None => "No token       not counted, it took too long: pass a longer --timeout".into(),
        },
    ];
    if let Some(to) = found.to() {
        lines.extend([
            String::new(),
            format!(
                "Writers with smaller tokens are refused until the clock has passed {}.",
                time::of_store(passed(to))
            ),
            "To let them write now, raise the keys whose leases protect these documents:".into(),
            format!("  mongoseal raise --to {to} KEY..."),
            "A key that was raised has larger tokens already: mongoseal show KEY prints its version.".into(),
        ]);
    }
    lines
}
