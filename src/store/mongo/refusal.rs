//! Who asks again for a key that was held is refused by less.
//!
//! A request that is refused changes nothing, and what it costs the server is mostly to read what it might have to do.
//! So whoever was refused before sends one that does nothing first, and the state machine is run here on what that
//! met. Where it would change nothing and refuse, the request need not be sent; else it is. An update that does
//! nothing and not a read, because it goes to the primary only, sees the asker's own grant whose answer was lost, and is
//! answered when a majority has what it saw: it is as good as the refusal that it stands for.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::bson::{Bson, doc};

use super::{Inner, document, fault, fault::needs, server_limit, write_concern};
use crate::{
    Error, Key, Result,
    record::{self, Acquire, Outcome, Request},
    store::Applied,
};

/// The most keys that are kept in mind. Above that all are forgotten.
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
    /// The refusal that an acquire would meet which does not wait, as far as it can be told without sending it.
    pub(super) async fn refusal(&self, key: &Key, request: &Request, within: Duration) -> Result<Option<Applied>> {
        let Request::Acquire(Acquire { wait: None, .. }) = request else { return Ok(None) };
        if !self.held.keys().contains(key) {
            return Ok(None);
        }
        let mut fields = document::all();
        fields.insert("queue", doc! { "$size": "$queue" });
        let nothing = doc! {
            "findAndModify": &self.collection,
            "query": document::of(key),
            // Without an upsert there is no insert.
            "update": { "$setOnInsert": { "version": 0_i64 } },
            "upsert": false,
            "fields": fields,
            "writeConcern": write_concern(within),
            "maxTimeMS": server_limit(within),
        };
        let mut reply = match self.command(nothing, needs::HOLD).await {
            // As of a document that is not ours, of which the request says what is wrong.
            Err(Error::Invalid { .. }) => return Ok(None),
            reply => reply?,
        };
        if let Some(error) = reply.get("writeConcernError") {
            return Err(fault::unconfirmed(error));
        }
        let Some(Bson::Document(mut found)) = reply.remove("value") else { return Ok(None) };
        // Of those who wait some may be let in or be over, or this one takes itself off the queue.
        if found.insert("queue", Bson::Array(vec![])) != Some(Bson::Int32(0)) {
            return Ok(None);
        }
        let Ok((record, at)) = document::decode(key, &found) else { return Ok(None) };
        let (after, outcome) = record::apply(Some(&record), at, request);
        let refused = matches!(outcome, Outcome::Refused { .. }) && after.as_ref() == Some(&record);
        Ok(refused.then_some(Applied { outcome, at: Some(at), changed: false, sent: None }))
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
