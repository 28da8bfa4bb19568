//! Many leases at once: one update of many documents instead of one command for each.

use std::{pin::pin, time::Duration};

use super::{
    Inner, MongoStore,
    fault::{self, needs},
    pipeline, server_limit,
    verb::{self, Verb},
    write_concern,
};
use crate::{
    Error, FencingToken, Key, Result,
    record::{Joint, Named},
};
use mongodb::{
    ClientSession,
    bson::{Bson, Document, doc},
};

/// The most keys that are written by one command.
const MOST: usize = 5_000;

/// The most bytes of keys in one command, which names each three times and has 16 MiB at most.
const MOST_BYTES: usize = 4 << 20;

/// The most keys that are written by one update of a command: each record is looked up among them, and
/// the pipeline is parsed for each update. With 50 to 100 of them 10,000 leases took 0.2 to 0.3 s.
const AT_ONCE: usize = 64;

/// The same where the order counts: the server writes those of one update in an order of its own.
const IN_ORDER: usize = 25;

impl Inner {
    pub(super) async fn apply_jointly(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        match joint {
            Joint::Refresh { .. } => self.all_or_none(leases, joint, within).await,
            Joint::Release | Joint::Revoke { .. } | Joint::Keep { .. } => {
                let mut all = true;
                for leases in commands(leases) {
                    let mut update = self.joint_update(leases, joint, within);
                    update.insert("writeConcern", write_concern(within));
                    all &= match is_done(&self.command(update, needs::CHANGE).await?, leases) {
                        // One of the records is none; the others can be kept without it.
                        Err(Error::Invalid { .. }) if matches!(joint, Joint::Keep { .. }) => false,
                        done => done?,
                    };
                }
                Ok(all)
            }
        }
    }

    /// In a transaction, which is given up if one of them is over.
    ///
    /// While it is open, other requests of this handle for its keys wait in `gate.rs`, but no longer than anybody waits
    /// for the transaction: on a dead connection, the transaction may end much later.
    async fn all_or_none(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        let closed = self.traffic.here().gates.close(leases.iter().map(|(key, _)| key)).await?;
        let mut transaction = pin!(self.transaction(leases, joint, within));
        if let Ok(done) = tokio::time::timeout(within, &mut transaction).await {
            return done;
        }
        drop(closed);
        transaction.await
    }

    async fn transaction(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        let mut session =
            self.database.client().start_session().await.map_err(|error| self.meaning(error, needs::CHANGE))?;
        MongoStore::begin(&mut session, within).await.map_err(|error| self.meaning(error, needs::CHANGE))?;
        let done = self.all(&mut session, leases, joint, within).await;
        if matches!(done, Ok(true)) {
            session.commit_transaction().await.map_err(|error| self.meaning(error, needs::CHANGE))?;
        } else {
            // What is not given up now is by the server, when its time is over.
            drop(session.abort_transaction().await);
        }
        done
    }

    async fn all(&self, session: &mut ClientSession, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        for leases in commands(leases) {
            let update = self.joint_update(leases, joint, within);
            let reply = self.database.run_command(update).session(&mut *session).await;
            if !is_done(&reply.map_err(|error| self.meaning(error, needs::CHANGE))?, leases)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn joint_update(&self, leases: &[(Key, Vec<FencingToken>)], joint: &Joint, within: Duration) -> Document {
        let update = |leases: &[(Key, Vec<FencingToken>)]| {
            let keys: Bson = leases.iter().map(|(key, _)| key.as_str()).collect();
            let tokens: Bson = leases.iter().map(|(_, tokens)| tokens.clone()).collect();
            doc! {
                "q": pipeline::holding(&keys, &tokens),
                "u": pipeline::update(Verb::of_joint(joint)),
                "c": { "keys": keys, "tokens": tokens },
                "multi": true,
                "hint": { "_id": 1 },
            }
        };
        let at_once = if matches!(joint, Joint::Refresh { .. }) { IN_ORDER } else { AT_ONCE };
        doc! {
            "update": &self.collection,
            "updates": leases.chunks(at_once).map(update).collect::<Vec<_>>(),
            "let": verb::joint_variables(joint),
            "maxTimeMS": server_limit(within),
        }
    }
}

/// The leases, as many at a time as one command can name.
fn commands(leases: &[(Key, Vec<FencingToken>)]) -> impl Iterator<Item = &[(Key, Vec<FencingToken>)]> {
    let mut bytes = 0_usize;
    leases
        .chunk_by(move |(key, _), _| {
            bytes = bytes.saturating_add(key.as_str().len());
            let fits = bytes < MOST_BYTES;
            bytes = if fits { bytes } else { 0 };
            fits
        })
        .flat_map(|leases| leases.chunks(MOST))
}

/// Whether an update changed the records of all these keys.
fn is_done(reply: &Document, leases: &[(Key, Vec<FencingToken>)]) -> Result<bool> {
    fault::written(reply)?;
    let changed = reply.get_i32("nModified").map_err(fault::unreadable)?;
    Ok(usize::try_from(changed).is_ok_and(|changed| changed == leases.len()))
}
