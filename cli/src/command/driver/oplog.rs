//! Reads of the oplog.

use std::time::Duration;

use mongoseal::mongodb::bson::Timestamp;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinSet,
};

use super::{Answer, Deployment, Document, ReadPreference, Refusal, SelectionCriteria, doc};

/// How many entries are passed on at once.
const BATCH: usize = 1_000;
/// How many batches wait for the reader.
const AHEAD: usize = 4;

impl Deployment {
    /// Returns the time of the oldest entry. Zero if there is none.
    pub(in crate::command) async fn oldest_entry(&self, within: Duration) -> Answer<Timestamp> {
        let find = doc! {
            "find": "oplog.rs",
            "sort": { "$natural": 1 },
            "projection": { "ts": 1 },
            "limit": 1,
            "singleBatch": true,
        };
        let reply = Self::read_in(&self.client.database("local"), find, within).await?;
        let oldest = super::first_batch(&reply).next().and_then(|entry| entry.get_timestamp("ts").ok());
        Ok(oldest.unwrap_or(Timestamp { time: 0, increment: 0 }))
    }

    /// Returns the time of the newest write that a majority has.
    pub(in crate::command) async fn majority_time(&self) -> Answer<Timestamp> {
        let hello = self.run_admin(doc! { "hello": 1 }).await?;
        let written = hello.get_document("lastWrite").and_then(|last| last.get_document("majorityOpTime"));
        let time = written.ok().and_then(|time| time.get_timestamp("ts").ok());
        time.ok_or_else(|| Refusal::Other("the server does not say what a majority has written".into()))
    }

    /// Reads the entries after one time, up to another, that can concern these namespaces, in their order. A task reads
    /// them. It ends with the entries, an error, or the receiver.
    pub(in crate::command) fn entries(
        &self,
        after: Timestamp,
        until: Timestamp,
        namespaces: &[String],
    ) -> Receiver<Answer<Vec<Document>>> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let oplog = self.client.database("local").collection::<Document>("oplog.rs");
        // A command, such as a transaction, has the namespaces in it.
        let filter = doc! {
            "ts": { "$gt": after, "$lte": until },
            "$or": [{ "ns": { "$in": namespaces } }, { "op": "c" }],
        };
        // It ends by itself.
        let mut task = super::DriverTask(JoinSet::new());
        task.0.spawn(async move {
            let read = async {
                let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
                let mut cursor = oplog
                    .find(filter)
                    .sort(doc! { "$natural": 1 })
                    .selection_criteria(primary)
                    .batch_size(5_000)
                    .await?;
                let mut batch = Vec::with_capacity(BATCH);
                while cursor.advance().await? {
                    batch.push(cursor.deserialize_current()?);
                    if batch.len() == BATCH && sender.send(Ok(std::mem::take(&mut batch))).await.is_err() {
                        return Ok(());
                    }
                }
                sender.send(Ok(batch)).await.unwrap_or_default();
                Ok::<_, super::Error>(())
            };
            if let Err(error) = read.await {
                sender.send(Err(error.into())).await.unwrap_or_default();
            }
        });
        receiver
    }
}
