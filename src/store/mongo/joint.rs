//! Many leases at once: one update of many documents instead of one command for each.

use std::{pin::pin, time::Duration};

use mongodb::{
    ClientSession,
    bson::{Document, RawArrayBuf, RawDocumentBuf, rawdoc},
};

use super::{
    Inner, MongoStore, document,
    execute::PRIMARY,
    fault::{self, needs},
    pipeline, server_limit, template,
    verb::{self, Verb},
    write_concern,
};
use crate::{
    Error, FencingToken, Key, Result,
    record::{BatchRequest, LeaseRefs},
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
    pub(super) async fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, within: Duration) -> Result<bool> {
        match joint {
            BatchRequest::Refresh { .. } => self.all_or_none(leases, joint, within).await,
            BatchRequest::Release | BatchRequest::Revoke { .. } | BatchRequest::Keep { .. } => {
                let mut all = true;
                for leases in commands(leases) {
                    let update = self.joint_update(leases, joint, within)?;
                    let reply = self.database.run_raw_command(update).selection_criteria(PRIMARY).await;
                    let reply = reply.map_err(|error| self.meaning(error, needs::CHANGE))?;
                    all &= match is_done(&reply, leases) {
                        // One of the records is none; the others can be kept without it.
                        Err(Error::Invalid { .. }) if matches!(joint, BatchRequest::Keep { .. }) => false,
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
    async fn all_or_none(&self, leases: &LeaseRefs, joint: &BatchRequest, within: Duration) -> Result<bool> {
        let closed = self.traffic.here().gates.close(leases.iter().map(|(key, _)| key)).await?;
        let mut transaction = pin!(self.transaction(leases, joint, within));
        if let Ok(done) = tokio::time::timeout(within, &mut transaction).await {
            return done;
        }
        drop(closed);
        transaction.await
    }

    async fn transaction(&self, leases: &LeaseRefs, joint: &BatchRequest, within: Duration) -> Result<bool> {
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

    async fn all(
        &self,
        session: &mut ClientSession,
        leases: &LeaseRefs,
        joint: &BatchRequest,
        within: Duration,
    ) -> Result<bool> {
        for leases in commands(leases) {
            let update = self.joint_update(leases, joint, within)?;
            let reply = self.database.run_raw_command(update).session(&mut *session).await;
            if !is_done(&reply.map_err(|error| self.meaning(error, needs::CHANGE))?, leases)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn joint_update(
        &self,
        leases: &[(Key, Vec<FencingToken>)],
        joint: &BatchRequest,
        within: Duration,
    ) -> Result<RawDocumentBuf> {
        let template = Template::new(joint)?;
        let mut updates = RawArrayBuf::new();
        let at_once = if matches!(joint, BatchRequest::Refresh { .. }) { IN_ORDER } else { AT_ONCE };
        for leases in leases.chunks(at_once) {
            updates.push(template.update(leases));
        }
        let (collection, variables) = (self.collection.as_str(), encoded(&verb::joint_variables(joint))?);
        let limit = server_limit(within);
        Ok(if matches!(joint, BatchRequest::Refresh { .. }) {
            // A transaction confirms its writes when it is committed.
            rawdoc! { "update": collection, "updates": updates, "let": variables, "maxTimeMS": limit }
        } else {
            let concern = encoded(&write_concern(within))?;
            rawdoc! {
                "update": collection, "updates": updates, "let": variables, "maxTimeMS": limit, "writeConcern": concern,
            }
        })
    }
}

/// What the updates of a command have in common, encoded once: to build it for each took most of the client's time.
struct Template {
    pipeline: RawArrayBuf,
    is_record: RawDocumentBuf,
    lasting: RawDocumentBuf,
    of_this_format: RawDocumentBuf,
}

impl Template {
    fn new(joint: &BatchRequest) -> Result<Self> {
        let mut pipeline = RawArrayBuf::new();
        for stage in pipeline::update(Verb::of_joint(joint)) {
            pipeline.push(encoded(&stage)?);
        }
        Ok(Self {
            pipeline,
            is_record: encoded(&pipeline::is_record())?,
            lasting: encoded(&pipeline::lasting())?,
            of_this_format: encoded(&document::of_this_format())?,
        })
    }

    /// An update of the records of these keys where all named holders are there and have enough time left. The filter repeats
    /// the names, because the server does not show the constants of an update to its filter.
    fn update(&self, leases: &[(Key, Vec<FencingToken>)]) -> RawDocumentBuf {
        let (mut keys, mut tokens) = (RawArrayBuf::new(), RawArrayBuf::new());
        for (key, of_key) in leases {
            keys.push(key.as_str());
            let mut array = RawArrayBuf::new();
            for token in of_key {
                array.push(i64::from(*token));
            }
            tokens.push(array);
        }
        let index = rawdoc! { "$indexOfArray": [{ "$literal": keys.clone() }, "$_id"] };
        let named = rawdoc! { "$arrayElemAt": [{ "$literal": tokens.clone() }, index] };
        let holds_named = rawdoc! { "$setIsSubset": [named, self.lasting.clone()] };
        let is_record = self.is_record.clone();
        rawdoc! {
            "q": { "$and": [
                { "_id": { "$in": keys.clone() }, "$expr": { "$and": [is_record, holds_named] } },
                self.of_this_format.clone(),
            ] },
            "u": self.pipeline.clone(),
            "c": { "keys": keys, "tokens": tokens },
            "multi": true,
            "hint": { "_id": 1 },
        }
    }
}

fn encoded(document: &Document) -> Result<RawDocumentBuf> {
    RawDocumentBuf::from_bytes(template::encoded(document)?).map_err(fault::unreadable)
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
