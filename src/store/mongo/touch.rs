//! How a transaction makes sure of its lease: it writes the lease's record.
//!
//! Whoever takes the key away writes the record, too, so the two conflict and only one of them commits.
//! If the other one came first, after the transaction's snapshot, this write conflicts and the transaction
//! is aborted; if it comes between this write and the commit, it has to wait for the commit, and so comes
//! after it. So it is enough that the lease holds, on the server's clock, when this is written.

use std::time::Duration;

use mongodb::{
    ClientSession,
    bson::{Bson, Document, doc, oid::ObjectId},
    options::{Acknowledgment, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};

use super::{Inner, MongoStore, document, fault::needs, server_time};
use crate::{Error, FencingToken, Key, LeaseId, Result};

impl MongoStore {
    /// A session of the client that the records are read and written with.
    pub(crate) async fn session(&self) -> mongodb::error::Result<ClientSession> {
        self.inner.database.client().start_session().await
    }

    /// Begins a transaction that counts: of what a majority has, to be confirmed by one. The commit waits
    /// for that so long.
    pub(crate) async fn begin(session: &mut ClientSession, within: Duration) -> mongodb::error::Result<()> {
        let limit = server_time(within);
        let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).w_timeout(limit).build();
        session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(concern)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_commit_time(limit)
            .await
    }

    /// Writes the record of a lease in a transaction, if the lease holds: gives whether it did.
    pub(crate) async fn touch(
        &self,
        session: &mut ClientSession,
        key: &Key,
        lease: LeaseId,
        token: FencingToken,
    ) -> mongodb::error::Result<bool> {
        self.inner.touch(session, key, lease, token).await
    }

    /// The id of the election that made the primary what it is now. A router gives none.
    pub(crate) async fn election(&self) -> Result<Option<ObjectId>> {
        let hello = self.inner.command(doc! { "hello": 1 }, "hello").await?;
        Ok(hello.get_object_id("electionId").ok())
    }

    /// What an error means that came of the record.
    pub(crate) fn meaning(&self, error: mongodb::error::Error) -> Error {
        self.inner.meaning(error, needs::CHANGE)
    }
}

impl Inner {
    /// Counts one more write that kept the lease alive, as a refresh does, and leaves its times alone.
    async fn touch(
        &self,
        session: &mut ClientSession,
        key: &Key,
        lease: LeaseId,
        token: FencingToken,
    ) -> mongodb::error::Result<bool> {
        let reply = self
            .database
            .run_command(doc! {
                "findAndModify": &self.collection,
                "query": held(key, lease, token),
                "update": {
                    "$inc": { "holders.$.refreshes": 1_i64 },
                    // This change hands the key to nobody.
                    "$set": { "handover": "" },
                    "$currentDate": { "last_seen": true },
                },
                "fields": { "_id": 1 },
            })
            .session(session)
            .await?;
        Ok(matches!(reply.get("value"), Some(Bson::Document(_))))
    }
}

/// The record, if it is one and the lease holds.
fn held(key: &Key, lease: LeaseId, token: FencingToken) -> Document {
    let lease = document::lease(lease);
    let theirs = doc! { "$eq": [["$$this.lease", "$$this.version"], { "$literal": [&lease, token] }] };
    let alive = doc! { "$and": [theirs, { "$gt": ["$$this.expires_at", "$$NOW"] }] };
    let mut query = document::of(key);
    query.extend(doc! {
        "holders": { "$elemMatch": { "lease": lease, "version": token, "expires_at": { "$type": "date" } } },
        "$expr": { "$and": [
            document::is_record_beside_entries(),
            { "$anyElementTrue": [{ "$map": {
                "input": { "$cond": [{ "$isArray": "$holders" }, "$holders", []] }, "in": alive,
            } }] },
        ] },
    });
    query
}
