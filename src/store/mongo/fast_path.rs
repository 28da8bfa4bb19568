//! The fast path: requests that find a free key, or release a key for which nobody waits.
//!
//! Purpose: most requests are such, and most of their cost at the server is to parse the whole pipeline.
//!
//! Mechanism: a request first sends a command whose short pipeline changes nothing unless the record is as it needs it
//! (`fast_path/pipeline.rs`). If nothing was changed, the request is sent with the whole pipeline. But an acquire that
//! does not wait may be refused without that: the state machine runs here on the record that the command returned. If
//! the state machine refuses and changes nothing, the answer is that refusal. What the last answers said of the key
//! decides whether the fast path is tried (`fast_path/known_keys.rs`).
//!
//! Invariants: the fast path has the effect of the whole pipeline, or none. A refusal is as good as one of the pipeline:
//! the command goes to the primary only, sees an own grant whose answer was lost, and is answered when a majority has
//! what it saw. A read would not do all of that.

pub(super) mod known_keys;
mod pipeline;

use std::sync::LazyLock;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};

use self::known_keys::Seen;
use super::{
    command::{append, encoded},
    context::MongoContext,
    document,
    error::{self, needs},
    limits::{server_limit, write_concern},
};
use crate::{
    Deadline, Key, Result,
    record::{self, Acquire, Outcome, Record, Request, StoreClock},
    store::Applied,
};

/// The encoded common fields of acquires of known keys, of other acquires, and of releases.
static ACQUIRE: LazyLock<RawDocumentBuf> = LazyLock::new(|| common(pipeline::acquire(false), false, true));
static ACQUIRE_OR_INSERT: LazyLock<RawDocumentBuf> = LazyLock::new(|| common(pipeline::acquire(true), true, true));
static RELEASE: LazyLock<RawDocumentBuf> = LazyLock::new(|| common(pipeline::release(), false, false));

fn common(update: Vec<Document>, is_upsert: bool, new: bool) -> RawDocumentBuf {
    let mut fields = document::record_projection();
    // One waiter shows that there are some.
    fields.insert("queue", doc! { "$slice": 1 });
    encoded(&doc! { "update": update, "fields": fields, "upsert": is_upsert, "new": new }).unwrap_or_default()
}

impl MongoContext {
    /// The answer of the fast path to a request. `None`: nothing was changed, and the request needs the whole pipeline.
    pub(super) async fn apply_fast(&self, key: &Key, request: &Request, deadline: Deadline) -> Result<Option<Applied>> {
        let seen = self.known_keys.get(key);
        let is_busy = seen == Some(Seen::Busy);
        // The server finds a document by its key alone in less time than by a longer query.
        let known = doc! { "_id": key.as_str() };
        let (query, constants, common) = match request {
            // The whole pipeline queues a waiter, and may grant the key to a sharer beside others.
            Request::Acquire(acquire) if is_busy && (acquire.wait.is_some() || acquire.terms.limit > 1) => {
                return Ok(None);
            }
            Request::Acquire(acquire) => {
                let constants = pipeline::constants_of_acquire(acquire);
                match seen {
                    Some(_) => (known, constants, &ACQUIRE),
                    None => (document::record_query(key), constants, &ACQUIRE_OR_INSERT),
                }
            }
            Request::Release(release) if !is_busy => (known, pipeline::constants_of_release(release), &RELEASE),
            _ => return Ok(None),
        };
        let mut command = encoded(&doc! {
            "findAndModify": &self.collection,
            "query": query,
            "let": constants,
            "writeConcern": write_concern(deadline),
            "maxTimeMS": server_limit(deadline),
        })?;
        append(&mut command, common)?;
        let is_acquire = matches!(request, Request::Acquire(_));
        let reply = match self.send_write(command, is_acquire && seen.is_none()).await {
            // The key is not free, or its document is foreign or of a newer format.
            Err(error) if error::is_caused_by_document(&error) => return Ok(None),
            reply => {
                reply.map_err(|error| self.translate(error, if is_acquire { needs::HOLD } else { needs::CHANGE }))?
            }
        };
        error::ensure_written(&reply)?;
        let Some(Bson::Document(found)) = reply.get("value") else { return Ok(None) };
        let Ok((record, at)) = document::decode(key, found) else { return Ok(None) };
        let applied = answer(request, &record, at);
        let is_free = applied.as_ref().is_some_and(|applied| applied.changed);
        self.known_keys.note(key, if is_free { Seen::Free } else { Seen::Busy });
        Ok(applied)
    }
}

/// Reads the answer from the record that the command returned: after the grant, before the release, or unchanged.
fn answer(request: &Request, record: &Record, at: StoreClock) -> Option<Applied> {
    let applied = |outcome, changed| Some(Applied { outcome, at: Some(at), changed, sent: None });
    match (request, record.holders.as_slice()) {
        (Request::Acquire(acquire), [holder]) if holder.terms == acquire.terms && holder.since == at.now => {
            return applied(Outcome::Granted { token: holder.version }, true);
        }
        // It waits for the key: the whole pipeline queues it.
        (Request::Acquire(Acquire { wait: Some(_), .. }), _) => return None,
        (Request::Release(release), [holder])
            if release.ends(holder) && record.queue.is_empty() && record.history.is_empty() =>
        {
            return applied(request.outcome(Some(&record.summarize(request)), at.now), true);
        }
        _ => {}
    }
    // The whole pipeline may grant the key to a waiter, drop an expired one, or remove an own entry from the queue.
    if !record.queue.is_empty() {
        return None;
    }
    let (after, outcome) = record::apply(Some(record), at, request);
    (after.as_ref() == Some(record)).then_some(()).and_then(|()| applied(outcome, false))
}
