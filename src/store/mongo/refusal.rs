//! Who asks again for a key that was held is refused by a read.
//!
//! What must be true: a read refuses only whom the request itself would have refused at the same server and time,
//! and nobody reads who was not refused before. A request that is refused changes nothing, and a read costs
//! the server a third of it. So what is read is what the request would have met: the primary's state of now, with what
//! it may not have told a majority yet. An older one would not know of a grant whose answer was lost. Whatever the
//! state machine would do but refuse, the request does.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::bson::{Bson, doc};

use super::{Inner, document, fault, fault::needs, server_limit, verb::literal};
use crate::{
    Key, Result,
    record::{self, Acquire, Outcome, Request},
    store::Applied,
};

/// The most keys that are kept in mind. Above that all are forgotten, and nothing is read first.
const MOST: usize = 1_000;

/// The keys that somebody else held when they were last asked for.
#[derive(Default)]
pub(super) struct Held(Mutex<HashSet<Key>>);

impl Held {
    fn keys(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether somebody else held a key that was asked for.
    pub(super) fn note(&self, key: &Key, held: bool) {
        let mut keys = self.keys();
        if !held {
            keys.remove(key);
            return;
        }
        if keys.len() >= MOST {
            keys.clear();
        }
        keys.insert(key.clone());
    }
}

impl Inner {
    /// The refusal that an acquire would meet which does not wait, as far as a read can tell.
    pub(super) async fn refusal(&self, key: &Key, request: &Request, within: Duration) -> Result<Option<Applied>> {
        let Request::Acquire(Acquire { terms, patience: None }) = request else { return Ok(None) };
        if !self.held.keys().contains(key) {
            return Ok(None);
        }
        // Of those who wait the one who asks is enough: only a request can take it off the queue.
        let is_theirs = doc! { "$eq": ["$$this.lease", literal(document::lease(terms.lease))] };
        let mut projection = document::all();
        let theirs = doc! { "$filter": { "input": "$queue", "cond": is_theirs } };
        projection.insert("queue", doc! { "$cond": [{ "$isArray": "$queue" }, theirs, "$queue"] });
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": projection,
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "local" },
            "maxTimeMS": server_limit(within),
        };
        let reply = self.command(find, needs::HOLD).await?;
        let found = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let Some(Bson::Document(found)) = found.map_err(fault::unreadable)?.first() else { return Ok(None) };
        // The request says what is wrong with a document that is not ours.
        let Ok((record, at)) = document::decode(key, found) else { return Ok(None) };
        let is_theirs = record.holders.iter().any(|holder| holder.terms.lease == terms.lease);
        if is_theirs || !record.queue.is_empty() {
            return Ok(None);
        }
        let (_unchanged, outcome) = record::apply(Some(&record), at, request);
        Ok(matches!(outcome, Outcome::Refused { .. }).then_some(Applied { outcome, at: Some(at) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_in_mind_until_it_was_had_and_with_it_no_more_than_a_thousand() {
        let held = Held::default();
        let key = |number: usize| number.to_string().parse().unwrap();
        for number in 0..MOST {
            held.note(&key(number), true);
        }
        assert_eq!(held.keys().len(), MOST);
        held.note(&key(0), false);
        assert!(!held.keys().contains(&key(0)) && held.keys().contains(&key(1)));
        held.note(&key(0), true);
        held.note(&key(MOST), true);
        assert_eq!(*held.keys(), HashSet::from([key(MOST)]));
    }
}
