//! Writes the document of a holder's key, which later holders of the key write, too.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongoseal::{Error, Fence, Lease, Result, fence::FencedWriter};
use tokio::time::timeout;

use super::{OPERATION_TIMEOUT, Who, said, say};
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

/// The holder writes, or one who was it and does not know.
impl Who<'_> {
    /// Writes at the fence.
    pub(super) async fn write(self, by: impl Into<FencedWriter<'_>>) {
        let begin = now();
        let Some(documents) = &self.worker.handles.documents else { return };
        let fenced = documents.fenced(by).operation_timeout(OPERATION_TIMEOUT);
        let one_more = fenced.find_one_and_update(doc! { "_id": &self.plan.key }, doc! { "$inc": { "count": 1_i64 } });
        let before = one_more.await.map(|found| found.as_ref().and_then(contents));
        self.say_entry(begin, OPERATION_TIMEOUT, before);
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
        self.say_entry(begin, 3 * OPERATION_TIMEOUT + WORK, before);
    }

    fn say_entry(self, begin: Micros, within: Duration, before: Result<Option<(i64, u64)>>) {
        let outcome = if matches!(before, Ok(None)) { "the document is not there".into() } else { said(&before) };
        let ((worker, lease, key, token), end, within) = (self.ids(), now(), micros(within));
        let (token, before) = (Some(token), before.ok().flatten());
        say(&Event::Entry(Entry { worker, lease, key, token, begin, end, within, outcome, before }));
    }
}
