//! Writes a lease's record in a transaction of the caller.
//!
//! Purpose: the transaction commits only if the lease holds.
//!
//! Mechanism: the transaction writes the lease's record. A request that takes the key away writes the record, too. So
//! the two conflict, and only one commits. If the other write came after the transaction's snapshot, this write
//! conflicts and the server aborts the transaction. If the other write comes between this write and the commit, it
//! waits for the commit.
//!
//! The server keeps the documents of an open transaction locked for a minute. After a failed commit the driver does not
//! abort. So the next transaction of the session is begun, by which the server ends the one before.
//!
//! Invariant: it is enough that the lease holds, on the server's clock, at the time of this write.

use std::time::Duration;

use mongodb::{
    ClientSession,
    bson::{Bson, Document, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind, Result as DriverResult, TRANSIENT_TRANSACTION_ERROR},
    options::{Acknowledgment, ReadConcern, WriteConcern},
};

use super::{
    context::{MongoContext, PRIMARY},
    document,
    error::{Meaning, code, meaning},
    expression,
    limits::{deadline_after, server_time},
};
use crate::types::{
    backoff::Backoff, deadline::Deadline, error::Result, key::Key, lease_id::LeaseId, token::FencingToken,
};

/// The server does not know the transaction: it has aborted it, or has become primary since.
pub(crate) const NO_SUCH_TRANSACTION: i32 = 251;

/// How long the end of a transaction is retried: as long as an attempt of the engine takes.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Begins a transaction that reads what a majority has. Its commit waits for a majority until the deadline.
pub(crate) async fn begin(session: &mut ClientSession, deadline: Deadline) -> DriverResult<()> {
    let limit = server_time(deadline);
    let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).w_timeout(limit).build();
    session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .write_concern(concern)
        .selection_criteria(PRIMARY)
        .max_commit_time(limit)
        .await
}

/// Why a transaction is not known to be committed.
pub(crate) enum NotCommitted {
    /// The server has aborted it. It can be run again in its session.
    Aborted(Box<ClientSession>, DriverError),
    /// The transaction may have been committed or not.
    Unknown(DriverError),
    /// The server refuses the commit, or the driver, because there is no transaction.
    Refused(DriverError),
}

impl MongoContext {
    /// Commits. While the server cannot do it or the outcome is unknown, repeats that until the deadline. A transaction
    /// that may be open then is ended.
    pub(crate) async fn commit(&self, mut session: ClientSession, deadline: Deadline) -> Result<(), NotCommitted> {
        let (mut backoff, mut unknown) = (Backoff::new(), None);
        loop {
            let Err(error) = session.commit_transaction().await else { return Ok(()) };
            if error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                return Err(NotCommitted::Aborted(Box::new(session), error));
            }
            if matches!(*error.kind, ErrorKind::Transaction { .. }) {
                return Err(NotCommitted::Refused(error));
            }
            let is_transient = meaning(&error) == Meaning::Transient;
            let next = Deadline::after(deadline.clock(), backoff.next());
            if is_transient && next.instant() < deadline.instant() {
                unknown.get_or_insert(error);
                next.passed().await;
                continue;
            }
            self.supersede(session).await;
            // An earlier commit may have been made although this one is refused.
            return Err(match unknown {
                None if !is_transient => NotCommitted::Refused(error),
                earlier => NotCommitted::Unknown(earlier.unwrap_or(error)),
            });
        }
    }

    /// Aborts a transaction. While the server refuses that, repeats it.
    pub(crate) async fn abort(&self, session: &mut ClientSession) {
        // The driver returns an error of its own only: there is no transaction. So the command is sent again.
        if session.abort_transaction().await.is_err() {
            return;
        }
        let (admin, until, mut backoff) =
            (self.client().database("admin"), deadline_after(END_TIMEOUT), Backoff::new());
        while let Err(error) = admin.run_command(doc! { "abortTransaction": 1 }).session(&mut *session).await
            && wait_to_end_again(&error, until, &mut backoff).await
        {}
    }

    /// Ends a transaction whose commit failed, if it is still open, by the next one of its session.
    async fn supersede(&self, mut session: ClientSession) {
        let (until, mut backoff) = (deadline_after(END_TIMEOUT), Backoff::new());
        while let Err(error) = self.begin_and_abort(&mut session, until).await
            && wait_to_end_again(&error, until, &mut backoff).await
        {}
    }

    /// Begins a transaction at the server, and aborts it.
    async fn begin_and_abort(&self, session: &mut ClientSession, deadline: Deadline) -> DriverResult<()> {
        begin(session, deadline).await?;
        let nothing = doc! { "find": &self.collection, "filter": { "_id": "" }, "limit": 1, "singleBatch": true };
        let sent = self.database.run_command(nothing).session(&mut *session).await;
        session.abort_transaction().await?;
        sent.map(drop)
    }

    /// The id of the last election of the primary. A router has none.
    pub(crate) async fn read_election(&self) -> Result<Option<ObjectId>> {
        let hello = self.command(doc! { "hello": 1 }, "hello").await?;
        Ok(hello.get_object_id("electionId").ok())
    }

    /// Writes the record of a lease in a transaction, if the lease holds. Returns whether it did.
    ///
    /// This counts one more write that kept the lease alive, as a refresh does, and does not change its times.
    pub(crate) async fn touch(
        &self,
        session: &mut ClientSession,
        key: &Key,
        lease: LeaseId,
        token: FencingToken,
    ) -> DriverResult<bool> {
        let reply = self
            .database
            .run_command(doc! {
                "findAndModify": &self.collection,
                "query": held(key, lease, token),
                "update": {
                    "$inc": { "holders.$.refreshes": 1_i64 },
                    // This write grants the key to no waiter.
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

/// After this error, waits for the next attempt to end a transaction. Returns false if there is none: the transaction does not
/// exist, the server refuses to end it, or it takes too long. Then the server aborts it later.
async fn wait_to_end_again(error: &DriverError, until: Deadline, backoff: &mut Backoff) -> bool {
    let may_pass = meaning(error) == Meaning::Transient && code(error) != Some(NO_SUCH_TRANSACTION);
    let goes_on = may_pass && !until.has_passed();
    if goes_on {
        Deadline::after(until.clock(), backoff.next()).passed().await;
    }
    goes_on
}

/// Matches the record, if the lease holds.
fn held(key: &Key, lease: LeaseId, token: FencingToken) -> Document {
    let lease = document::encode_lease(lease);
    let theirs = doc! { "$eq": [["$$this.lease", "$$this.version"], { "$literal": [&lease, token] }] };
    let alive = doc! { "$and": [theirs, { "$gt": ["$$this.expires_at", "$$NOW"] }] };
    let mut query = document::record_query(key);
    query.extend(doc! {
        "holders": { "$elemMatch": { "lease": lease, "version": token, "expires_at": { "$type": "date" } } },
        "$expr": { "$and": [
            expression::is_record_beside_entries(),
            { "$anyElementTrue": [{ "$map": {
                "input": { "$cond": [{ "$isArray": "$holders" }, "$holders", []] }, "in": alive,
            } }] },
        ] },
    });
    query
}
