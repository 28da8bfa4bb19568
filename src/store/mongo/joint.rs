//! Many leases at once: one update of many documents instead of one command for each.

use std::time::Duration;

use mongodb::{
    ClientSession,
    bson::{Document, doc},
    options::{ReadPreference, SelectionCriteria, WriteConcern},
};

use super::{
    Inner, fault, pipeline, server_limit,
    verb::{self, Verb},
};
use crate::{
    FencingToken, Key, Result,
    record::{Joint, Named},
};

/// The most keys that are written by one command: each record is looked up among them.
const MOST: usize = 1_000;

impl Inner {
    pub(super) async fn apply_jointly(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        match joint {
            Joint::Refresh { .. } => self.all_or_none(leases, joint, within).await,
            Joint::Release | Joint::Revoke { .. } => {
                let mut all = true;
                for leases in parts(leases) {
                    let mut update = self.joint_update(&leases, joint, within);
                    let concern = doc! { "w": "majority", "wtimeout": server_limit(within) };
                    update.insert("writeConcern", concern);
                    all &= is_done(&self.command(update).await?, &leases)?;
                }
                Ok(all)
            }
        }
    }

    /// In a transaction, which is given up where one of them is over.
    async fn all_or_none(&self, leases: &Named, joint: &Joint, within: Duration) -> Result<bool> {
        let mut session = self.database.client().start_session().await.map_err(|error| self.meaning(error))?;
        session
            .start_transaction()
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_commit_time(within)
            .await
            .map_err(|error| self.meaning(error))?;
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
        for leases in parts(leases) {
            let update = self.joint_update(&leases, joint, within);
            let reply = self.database.run_command(update).session(&mut *session).await;
            if !is_done(&reply.map_err(|error| self.meaning(error))?, &leases)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn joint_update(&self, leases: &[(&Key, &Vec<FencingToken>)], joint: &Joint, within: Duration) -> Document {
        let keys: Vec<&str> = leases.iter().map(|(key, _)| key.as_str()).collect();
        doc! {
            "update": &self.collection,
            "updates": [{
                "q": { "_id": { "$in": keys }, "$expr": pipeline::holds_named() },
                "u": pipeline::update(Verb::of_joint(joint)),
                "multi": true,
            }],
            "let": verb::joint_variables(leases, joint),
            "maxTimeMS": server_limit(within),
        }
    }
}

/// The leases in as many parts as it takes.
fn parts(leases: &Named) -> Vec<Vec<(&Key, &Vec<FencingToken>)>> {
    let leases: Vec<_> = leases.iter().collect();
    leases.chunks(MOST).map(<[_]>::to_vec).collect()
}

/// Whether an update changed the records of all these keys.
fn is_done(reply: &Document, leases: &[(&Key, &Vec<FencingToken>)]) -> Result<bool> {
    fault::written(reply)?;
    let changed = reply.get_i32("nModified").map_err(fault::unreadable)?;
    Ok(usize::try_from(changed).is_ok_and(|changed| changed == leases.len()))
}
