//! Who was refused a key looks before it asks for it again: a look costs less than half of an attempt.
//!
//! What must be true: a look stands for an attempt that would be refused and change nothing, and for no other. So it
//! is the machine that says what the attempt would come to, on the whole record that was read.
//! That may be stale, as a refusal may be that the server wrote nothing for.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use mongodb::bson::{Bson, doc};

use super::{
    Inner, document,
    fault::{self, needs},
    server_limit,
    verb::Verb,
};
use crate::{
    Clock, Key, Result,
    record::{self, Outcome, Request},
    store::Applied,
};

/// How many keys are remembered. Of more all are forgotten.
const MOST: usize = 1_000;

/// The keys that were refused, and until when, on the clock, they were held.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<Key, Duration>>);

impl Refusals {
    fn is_held(&self, key: &Key) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(key).is_some_and(|until| *until > Clock::Boot.now())
    }

    /// Notes what became of an attempt.
    pub(super) fn note(&self, key: &Key, applied: &Applied) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Applied { outcome: Outcome::Refused { holder }, at: Some(at) } = applied else {
            held.remove(key);
            return;
        };
        if held.len() >= MOST {
            held.clear();
        }
        held.insert(key.clone(), Clock::Boot.now().saturating_add(holder.expires_at.since(at.now)));
    }
}

impl Inner {
    /// That an attempt would be refused, where that can be seen by a look.
    pub(super) async fn still_refused(
        &self,
        key: &Key,
        request: &Request,
        within: Duration,
    ) -> Result<Option<Applied>> {
        if Verb::of(request) != Verb::Acquire || !self.refusals.is_held(key) {
            return Ok(None);
        }
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": document::all(),
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "majority" },
            "maxTimeMS": server_limit(within),
        };
        let reply = self.command(find, needs::READ).await?;
        let found = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let Some(Bson::Document(found)) = found.map_err(fault::unreadable)?.first() else {
            return Ok(None);
        };
        let (before, at) = document::decode(key, found)?;
        let (after, outcome) = record::apply(Some(&before), at, request);
        // An attempt can be refused and change the record: whoever waited and does not any more gives up its place.
        let is_refused = matches!(outcome, Outcome::Refused { .. }) && after.as_ref() == Some(&before);
        Ok(is_refused.then_some(Applied { outcome, at: Some(at) }))
    }
}
