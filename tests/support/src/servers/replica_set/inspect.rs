//! Inspects a set: what happened in it, as the servers report.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};

use super::ReplicaSet;
use crate::servers::runtime::run;

impl ReplicaSet {
    /// What the primary's oplog holds about the document `id` of the collection `ns`
    /// (`db.collection`), oldest first: its whole history. Without writes in transactions, which
    /// are recorded in another way.
    pub async fn oplog_entries(&self, ns: &str, id: &Bson) -> Vec<Document> {
        let inner = self.inner.clone();
        // An insert or delete has the id in `o`, an update in `o2`.
        let filter = doc! { "ns": ns, "$or": [{ "o._id": id }, { "o2._id": id }] };
        run(async move {
            let primary = inner.primary().await;
            let client = inner.admin_client(primary).await.expect("the URI of a member is valid");
            let oplog = client.database("local").collection::<Document>("oplog.rs");
            let entries = oplog.find(filter).sort(doc! { "$natural": 1 }).await.expect("the oplog can be read");
            entries.try_collect().await.expect("the oplog can be read")
        })
        .await
    }
}
