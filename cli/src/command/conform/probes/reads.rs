//! Probes of reads and change streams.

use std::time::Duration;

use super::{Lab, Probed, Unmet, ensure};
use crate::command::driver::{Document, Events, StreamStart, doc, first_batch};

/// How long an event may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The server has no snapshot now, because the collection was just created.
const NO_SNAPSHOT: [i32; 2] = [239, 246];
/// How often a snapshot is read if there is none.
const ATTEMPTS: u32 = 100;

/// A linearizable read, as a query and as an aggregation.
pub(super) async fn linearizable(lab: Lab<'_>) -> Probed {
    let collection = &lab.scratch.collection;
    lab.modify(lab.upsert(doc! { "_id": "read" }, vec![doc! { "$set": { "is_written": true } }])).await?;
    let find = doc! { "find": collection, "filter": { "_id": "read" }, "limit": 1, "singleBatch": true };
    let stages = vec![doc! { "$match": { "_id": "read" } }, doc! { "$set": { "now": "$$NOW" } }];
    let aggregate = doc! { "aggregate": collection, "pipeline": stages, "cursor": {} };
    for mut command in [find, aggregate] {
        command.insert("readConcern", doc! { "level": "linearizable" });
        command.insert("maxTimeMS", 10_000);
        let reply = lab.deployment.run(command).await?;
        let is_found = first_batch(&reply).next().is_some_and(|found| found.get_bool("is_written") == Ok(true));
        ensure(is_found, "a linearizable read did not return a confirmed write")?;
    }
    Ok("a query and an aggregation return a confirmed write".into())
}

/// A snapshot of what a majority has, with its cluster time.
pub(super) async fn snapshot(lab: Lab<'_>) -> Probed {
    let find = doc! {
        "find": &lab.scratch.collection,
        "filter": { "_id": "read" },
        "limit": 1,
        "singleBatch": true,
        "readConcern": { "level": "snapshot" },
        "maxTimeMS": 10_000,
    };
    let mut attempt = 1;
    let reply = loop {
        match lab.deployment.run(find.clone()).await {
            Err(refusal) if refusal.code().is_some_and(|code| NO_SNAPSHOT.contains(&code)) && attempt < ATTEMPTS => {}
            read => break read?,
        }
        attempt += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let as_of = reply.get_document("cursor").and_then(|cursor| cursor.get_timestamp("atClusterTime"));
    ensure(as_of.is_ok(), "a snapshot has no cluster time")?;
    Ok("a snapshot read has its cluster time".into())
}

/// A change stream has the events of one document from a time on, and no others.
pub(super) async fn change_stream(lab: Lab<'_>) -> Probed {
    let Events { events, .. } = stream_of_two(lab, "stream").await?;
    ensure(events.len() == 2, format!("{} of 2 events came within {PATIENCE:?}", events.len()))?;
    ensure(are_of(&events, "stream"), "the stream has an event that its filter excludes")?;
    Ok("the events of one document come, filtered by the server".into())
}

/// A change stream that begins after an event has the next one.
pub(super) async fn resumed(lab: Lab<'_>) -> Probed {
    let first = stream_of_two(lab, "resumed").await?;
    let Some(token) = first.token else { return Err(Unmet::Differs("an event has no resume token".into())) };
    write(lab, "resumed", 3).await?;
    let Events { events, .. } = read(lab, "resumed", StreamStart::After(token), 1).await?;
    let next = events.first().and_then(state_of);
    ensure(next == Some(3), format!("after the second event came the state {next:?}, and not the third"))?;
    Ok("a stream continues after the event whose token it is given".into())
}

/// Returns the state after an event: the server sends the document, or its changed fields.
fn state_of(event: &Document) -> Option<i32> {
    let changed = || event.get_document("updateDescription").ok()?.get_document("updatedFields").ok();
    event.get_document("fullDocument").ok().or_else(changed)?.get_i32("state").ok()
}

/// Writes two states of a document, and reads their events.
async fn stream_of_two(lab: Lab<'_>, id: &str) -> Result<Events, Unmet> {
    let ping = lab.deployment.run(doc! { "ping": 1 }).await?;
    let Ok(now) = ping.get_timestamp("operationTime") else {
        return Err(Unmet::Differs("the server reports no operation time".into()));
    };
    // From this time on, so that the stream need not be open before the writes.
    let writes = async {
        for state in 1..=2 {
            write(lab, "neighbour", state).await?;
            write(lab, id, state).await?;
        }
        Ok(())
    };
    let (events, written): (_, Result<(), Unmet>) = tokio::join!(read(lab, id, StreamStart::At(now), 2), writes);
    written.and(events)
}

async fn write(lab: Lab<'_>, id: &str, state: i32) -> Result<(), Unmet> {
    lab.modify(lab.upsert(doc! { "_id": id }, vec![doc! { "$set": { "state": state } }])).await?;
    Ok(())
}

async fn read(lab: Lab<'_>, id: &str, start: StreamStart, count: usize) -> Result<Events, Unmet> {
    let filter =
        doc! { "$match": { "documentKey._id": id, "operationType": { "$in": ["insert", "replace", "update"] } } };
    Ok(lab.deployment.events(&lab.scratch.collection, vec![filter], start, count, PATIENCE).await?)
}

fn are_of(events: &[Document], id: &str) -> bool {
    events.iter().all(|event| event.get_document("documentKey").is_ok_and(|key| key.get_str("_id") == Ok(id)))
}
