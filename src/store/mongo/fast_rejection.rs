//! Fast rejection of repeated acquires: a no-op update shows whether the key is still held.
//!
//! Purpose: a refused acquire changes nothing, and most of its cost at the server is to parse and run the whole
//! pipeline.
//!
//! Mechanism: if the last acquire of a key was refused, the next one first sends an update that changes nothing. The
//! state machine runs here on the record that the update returns. If it refuses and changes nothing, the acquire is not
//! sent.
//!
//! Invariant: this refusal is as good as one of the pipeline. The update goes to the primary only, sees an own grant
//! whose answer was lost, and is answered when a majority has what it saw. A read would not do all of that.

pub(super) mod held_keys;

use mongodb::bson::{Bson, doc};

use super::{
    context::MongoContext,
    document,
    error::{self, needs},
    limits::{server_limit, write_concern},
};
use crate::{
    Deadline, Error, Key, Result,
    record::{self, Acquire, Outcome, Request},
    store::Applied,
};

impl MongoContext {
    /// The refusal of an acquire that does not wait, if a no-op update shows that the key is still held.
    pub(super) async fn reject_if_held(
        &self,
        key: &Key,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Option<Applied>> {
        let Request::Acquire(Acquire { wait: None, .. }) = request else { return Ok(None) };
        if !self.held_keys.contains(key) {
            return Ok(None);
        }
        let mut fields = document::record_projection();
        fields.insert("queue", doc! { "$size": "$queue" });
        let no_op = doc! {
            "findAndModify": &self.collection,
            "query": document::record_query(key),
            // Without an upsert there is no insert.
            "update": { "$setOnInsert": { "version": 0_i64 } },
            "upsert": false,
            "fields": fields,
            "writeConcern": write_concern(deadline),
            "maxTimeMS": server_limit(deadline),
        };
        let mut reply = match self.command(no_op, needs::HOLD).await {
            // The document is foreign or newer. The acquire itself reports what is wrong with it.
            Err(Error::Invalid { .. }) => return Ok(None),
            reply => reply?,
        };
        if let Some(error) = reply.get("writeConcernError") {
            return Err(error::unconfirmed(error));
        }
        let Some(Bson::Document(mut found)) = reply.remove("value") else { return Ok(None) };
        // The acquire may grant the key to a waiter, drop an expired one, or remove its own entry from the queue.
        if found.insert("queue", Bson::Array(vec![])) != Some(Bson::Int32(0)) {
            return Ok(None);
        }
        let Ok((record, at)) = document::decode(key, &found) else { return Ok(None) };
        let (after, outcome) = record::apply(Some(&record), at, request);
        let is_refused = matches!(outcome, Outcome::Refused { .. }) && after.as_ref() == Some(&record);
        Ok(is_refused.then_some(Applied { outcome, at: Some(at), changed: false, sent: None }))
    }
}
