//! Inspects a set: what happened in it, as the servers report.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};

use super::ReplicaSet;
use crate::servers::runtime::run;

impl ReplicaSet {
    /// How often a member ran the command `name` since it started, such as `findAndModify`.
    pub async fn command_count(&self, member: usize, name: &str) -> u64 {
        let status = self.admin(member, doc! { "serverStatus": 1 }).await.expect("serverStatus answers");
        let commands = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
        let counts = commands.expect("serverStatus counts commands").get_document(name);
        // A command never run may have no entry.
        let total = counts.ok().and_then(|counts| counts.get("total")).and_then(Bson::as_i64).unwrap_or(0);
        u64::try_from(total).expect("counts are not negative")
    }

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
