//! The fast path: acquires of a free key, and releases of a key without waiters.
//!
//! Purpose: most acquires find a free key, and most releases no waiters. Most of the cost of such a request at the server is
//! to parse the whole pipeline.
//!
//! Mechanism: a request first sends a command with a short pipeline (`fast_path/pipeline.rs`). The short pipeline changes
//! the record only if it has the effect of the whole one. If the command has changed nothing, the request is sent again,
//! with the whole pipeline. An acquire that does not wait may be refused without a second command: the state machine runs
//! here on the record that the command returned, and if it refuses and changes nothing, the answer is that refusal. What
//! the last answers said of the key decides whether the fast path is tried (`state/known_keys.rs`).
//!
//! Invariants: the fast path has the effect of the whole pipeline, or none. A refusal is as good as one of the pipeline:
//! the command goes to the primary only, sees an own grant whose answer was lost, and is answered when a majority has
//! what it saw. A read would not do all of that.

pub(super) mod pipeline;

use std::sync::Arc;

use mongodb::{
    bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc},
    error::Result as DriverResult,
};

use super::{
    command::{EncodedOnce, encoded, join},
    context::MongoContext,
    document,
    error::{self, needs},
    limits::{server_limit, write_concern},
    state::{admission::ServerDeadline, known_keys::PathHint},
};
use crate::{
    record::{self, Acquire, Outcome, Release, Request},
    store::answers::Applied,
    types::{error::Result, key::Key},
};

/// The common fields of acquires: of those that insert a missing record, and of those of known keys.
static ACQUIRE: EncodedOnce<bool> = EncodedOnce::new();

/// The pipeline of a release.
static RELEASE: EncodedOnce<()> = EncodedOnce::new();

fn common_of_acquires(is_upsert: bool) -> Result<Arc<RawDocumentBuf>> {
    ACQUIRE.get(is_upsert, || {
        let mut fields = document::record_projection(&["value"]);
        // One waiter shows that there are some.
        fields.insert("queue", doc! { "$slice": 1 });
        doc! { "update": pipeline::acquire(is_upsert), "fields": fields, "upsert": is_upsert, "new": true }
    })
}

impl MongoContext {
    /// The answer of the fast path to a request. `None`: nothing was changed, and the request needs the whole pipeline.
    pub(super) async fn apply_fast(
        &self,
        key: &Key,
        request: &Request,
        deadline: ServerDeadline,
    ) -> Result<Option<Applied>> {
        match request {
            Request::Acquire(acquire) => self.acquire_fast(key, acquire, deadline).await,
            Request::Release(release) => self.release_fast(key, release, deadline).await,
            _ => Ok(None),
        }
    }

    async fn acquire_fast(&self, key: &Key, acquire: &Acquire, deadline: ServerDeadline) -> Result<Option<Applied>> {
        let seen = self.known_keys.get(key);
        // The whole pipeline queues a waiter, and may grant the key to a sharer beside others.
        let needs_whole = match seen {
            Some(PathHint::Whole) => true,
            Some(PathHint::Busy) => acquire.wait.is_some() || !acquire.terms.sharing.is_exclusive(),
            Some(PathHint::Free) | None => false,
        };
        // The fast path computes no end of a maximum hold.
        if needs_whole || acquire.terms.hold.max.is_some() {
            return Ok(None);
        }
        let is_upsert = seen.is_none();
        let (constants, common) = (pipeline::constants_of_acquire(acquire), common_of_acquires(is_upsert)?);
        let reply = match self.find_and_modify(key, is_upsert, constants, &common, deadline).await? {
            // The document is foreign or of a newer format, or another first insert came before this one.
            Err(error) if error::is_caused_by_document(&error) => return Ok(None),
            reply => self.answered(key, reply, needs::HOLD)?,
        };
        let Some(Bson::Document(found)) = reply.get("value") else { return Ok(None) };
        let Ok((record, at)) = document::decode(key, found) else { return Ok(None) };
        let applied = |outcome, changed| Some(Applied { outcome, at: Some(at), changed, sent: None });
        if let [holder] = record.holders.as_slice()
            && holder.terms == acquire.terms
            && holder.since == at.now
            && holder.expires_at == at.now.after(acquire.terms.ttl.saturating_add(acquire.terms.grace))
        {
            self.known_keys.record(key, PathHint::Free);
            let value = record.value.clone().map(Box::new);
            return Ok(applied(Outcome::Granted { token: holder.version, not_after: None, value }, true));
        }
        self.known_keys.record(key, if record.history.is_empty() { PathHint::Busy } else { PathHint::Whole });
        // The whole pipeline may queue this acquire, grant the key to a waiter, drop an expired one, or remove an entry
        // of this acquire from the queue.
        let has_queue = found.get_array("queue").is_ok_and(|queue| !queue.is_empty());
        if acquire.wait.is_some() || has_queue {
            return Ok(None);
        }
        let (after, outcome) = record::apply(Some(&record), at, &Request::Acquire(acquire.clone()));
        let is_refused = matches!(outcome, Outcome::Refused { .. }) && after.as_ref() == Some(&record);
        Ok(if is_refused { applied(outcome, false) } else { None })
    }

    async fn release_fast(&self, key: &Key, release: &Release, deadline: ServerDeadline) -> Result<Option<Applied>> {
        if matches!(self.known_keys.get(key), Some(PathHint::Busy | PathHint::Whole)) {
            return Ok(None);
        }
        let mut updates = RawArrayBuf::new();
        let pipeline = RELEASE.get((), || doc! { "u": pipeline::release() })?;
        updates.push(join(&rawdoc! { "q": { "_id": key.as_str() } }, &pipeline)?);
        let head = rawdoc! { "update": self.collection.as_str(), "updates": updates };
        let rest = doc! {
            "let": pipeline::constants_of_release(release),
            "writeConcern": write_concern(*deadline),
            "maxTimeMS": server_limit(*deadline),
        };
        let command = join(&head, &encoded(&rest)?)?;
        let reply = match self.send_write(command, false).await {
            Err(error) if error::is_caused_by_document(&error) => return Ok(None),
            // The pipeline failed on the document, which is foreign.
            Ok(reply) if error::is_write_refused(&reply) => return Ok(None),
            reply => self.answered(key, reply, needs::CHANGE)?,
        };
        if reply.get_i32("nModified").map_err(error::unreadable)? > 0 {
            // The reply of an update has no time.
            return Ok(Some(Applied { outcome: Outcome::Released, at: None, changed: true, sent: None }));
        }
        // The key has a waiter, another holder or a revocation, or the lease has ended.
        self.known_keys.record(key, PathHint::Busy);
        Ok(None)
    }

    /// The reply of the fast path, if the command was confirmed. If not, it may have changed the record, and the whole
    /// pipeline finds that.
    fn answered(&self, key: &Key, reply: DriverResult<Document>, needs: &str) -> Result<Document> {
        let reply = reply.map_err(|error| self.translate(error, needs)).and_then(|reply| {
            error::ensure_written(&reply)?;
            Ok(reply)
        });
        if reply.is_err() {
            self.known_keys.record(key, PathHint::Whole);
        }
        reply
    }
}
