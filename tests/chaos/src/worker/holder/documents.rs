//! Writes the document of a holder's key, which later holders of the key write, too.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongoseal::{Error, Fence, FencingToken, Lease, Result, fence::FencedWriter};
use tokio::time::timeout;

use super::{OPERATION_TIMEOUT, Plan, Worker, said, say};
use crate::words::{Entry, Event, Micros, micros, now};

/// How long the work of a transaction may take.
const WORK: Duration = Duration::from_secs(1);

/// What a document says: how many writes there were, and the token of the last.
pub(crate) fn contents(document: &Document) -> Option<(i64, u64)> {
    let token = match document.get("fence") {
        Some(Bson::Int64(token)) => u64::try_from(*token).ok()?,
        _ => 0,
    };
    Some((document.get_i64("count").ok()?, token))
}

/// Who writes the document of a key, be it the holder or one who was and does not know.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) worker: &'a Worker,
    pub(super) plan: &'a Plan,
    pub(super) number: u64,
    pub(super) token: FencingToken,
}

impl Writer<'_> {
    /// Writes at the fence.
    pub(super) async fn write(self, by: impl Into<FencedWriter<'_>>) {
        let begin = now();
        let Some(documents) = &self.worker.handles.documents else { return };
        let fenced = documents.fenced(by).operation_timeout(OPERATION_TIMEOUT);
        let one_more = fenced.find_one_and_update(doc! { "_id": &self.plan.key }, doc! { "$inc": { "count": 1_i64 } });
        let before = one_more.await.map(|found| found.as_ref().and_then(contents));
        self.say(begin, OPERATION_TIMEOUT, before);
    }

    /// Reads and writes the document, without a fence but the transaction.
    pub(super) async fn transact(self, lease: &Lease) {
        // Its own, or the compiler cannot tell that this can be spawned.
        let Some(documents) = self.worker.handles.documents.clone() else { return };
        let filter = doc! { "_id": &self.plan.key };
        let token = i64::from(self.token);
        let begin = now();
        let done = lease.transaction(async move |session| -> Result<Option<(i64, u64)>> {
            let work = async {
                let found = documents.find_one(filter.clone()).session(&mut *session).await?;
                let update = doc! { "$inc": { "count": 1_i64 }, "$set": { "fence": token } };
                documents.update_one(filter.clone(), update).session(session).await?;
                Ok::<_, Error>(found.as_ref().and_then(contents))
            };
            timeout(WORK, work).await.unwrap_or_else(|_| Err(Error::unavailable("the work took too long")))
        });
        let before = done.await;
        self.say(begin, 3 * OPERATION_TIMEOUT + WORK, before);
    }

    fn say(self, begin: Micros, within: Duration, before: Result<Option<(i64, u64)>>) {
        let outcome = match &before {
            Ok(None) => "the document is not there".into(),
            other => said(other.as_ref().err(), "ok"),
        };
        say(&Event::Entry(Entry {
            worker: self.worker.spec.worker,
            lease: self.number,
            key: self.plan.key.clone(),
            token: Some(self.token.get()),
            begin,
            end: now(),
            within: micros(within),
            outcome,
            before: before.ok().flatten(),
        }));
    }
}
