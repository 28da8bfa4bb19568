//! Many leases at once: one update of many documents instead of one command for each.

use std::{pin::pin, time::Duration};

use mongodb::{
    ClientSession,
    bson::{Document, doc},
};
use tokio::sync::RwLockReadGuard;

use super::{
    Inner, MongoStore, fault, pipeline, server_limit,
    verb::{self, Verb},
};
use crate::{
    Error, FencingToken, Key, Result,
    record::{Joint, Named},
};

/// How long a transaction waits for the requests before it: as long those behind it wait, too.
const QUIET_WITHIN: Duration = Duration::from_secs(1);

/// The most keys that are written by one command: each record is looked up among them.
const MOST: usize = 1_000;

/// The most keys that are written by one update of a command. The server writes those of one in an order of
/// its own.
const IN_ORDER: usize = 25;

impl Inner {
    pub(super) async fn apply_jointly(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        match joint {
            Joint::Refresh { .. } => self.all_or_none(leases, joint, within).await,
            Joint::Release | Joint::Revoke { .. } => {
                let _no_transaction = self.no_transaction(within).await?;
                let mut all = true;
                for leases in leases.chunks(MOST) {
                    let mut update = self.joint_update(leases, joint, within);
                    let concern = doc! { "w": "majority", "wtimeout": server_limit(within) };
                    update.insert("writeConcern", concern);
                    all &= is_done(&self.command(update).await?, leases)?;
                }
                Ok(all)
            }
        }
    }

    /// In a transaction, which is given up where one of them is over.
    ///
    /// While it is open other writes of the same records wait for it at the server, each with a connection.
    /// Were there as many of ours as the client has connections, there would be none to commit with; so
    /// nothing else is applied meanwhile; but for no longer than anybody waits for the transaction, which on
    /// a dead connection may be at its end much later.
    async fn all_or_none(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        let quiet = tokio::time::timeout(QUIET_WITHIN, self.quiet.write()).await;
        let Ok(alone) = quiet else {
            return Err(Error::unavailable("other requests of this handle have not been answered: ask again"));
        };
        let mut transaction = pin!(self.transaction(leases, joint, within));
        if let Ok(done) = tokio::time::timeout(within, &mut transaction).await {
            return done;
        }
        drop(alone);
        transaction.await
    }

    /// Waits until no transaction is open, for as long as an answer is waited for: what would be sent after
    /// that nobody counts on.
    pub(super) async fn no_transaction(&self, within: Duration) -> Result<RwLockReadGuard<'_, ()>> {
        tokio::time::timeout(within, self.quiet.read())
            .await
            .map_err(|_elapsed| Error::unavailable("a group was refreshed meanwhile: ask again"))
    }

    async fn transaction(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        let mut session = self.database.client().start_session().await.map_err(|error| self.meaning(error))?;
        MongoStore::begin(&mut session, within).await.map_err(|error| self.meaning(error))?;
        let done = self.all(&mut session, leases, joint, within).await;
        if matches!(done, Ok(true)) {
            session.commit_transaction().await.map_err(|error| self.meaning(error))?;
        } else {
            // What is not given up now is by the server, when its time is over.
            drop(session.abort_transaction().await);
        }
        done
    }

    async fn all(&self, session: &mut ClientSession, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        for leases in leases.chunks(MOST) {
            let update = self.joint_update(leases, joint, within);
            let reply = self.database.run_command(update).session(&mut *session).await;
            if !is_done(&reply.map_err(|error| self.meaning(error))?, leases)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn joint_update(&self, leases: &[(Key, Vec<FencingToken>)], joint: &Joint, within: Duration) -> Document {
        let update = |leases: &[(Key, Vec<FencingToken>)]| {
            let keys: Vec<&str> = leases.iter().map(|(key, _)| key.as_str()).collect();
            doc! {
                "q": { "_id": { "$in": keys }, "$expr": pipeline::holds_named() },
                "u": pipeline::update(Verb::of_joint(joint)),
                "multi": true,
            }
        };
        let in_order = if matches!(joint, Joint::Refresh { .. }) { IN_ORDER } else { MOST };
        doc! {
            "update": &self.collection,
            "updates": leases.chunks(in_order).map(update).collect::<Vec<_>>(),
            "let": verb::joint_variables(leases, joint),
            "maxTimeMS": server_limit(within),
        }
    }
}

/// Whether an update changed the records of all these keys.
fn is_done(reply: &Document, leases: &[(Key, Vec<FencingToken>)]) -> Result<bool> {
    fault::written(reply)?;
    let changed = reply.get_i32("nModified").map_err(fault::unreadable)?;
    Ok(usize::try_from(changed).is_ok_and(|changed| changed == leases.len()))
}
