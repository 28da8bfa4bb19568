//! Sending a command and reading its answer.
//!
//! Each answer of a write comes from the write itself. If it is not that of a record, the document of the key is read, so
//! that the error names what is wrong with it.

use std::{slice, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, Document, RawDocumentBuf, doc},
    options::{ReadPreference, SelectionCriteria},
};

use super::{
    Inner, LEAST,
    document::{self, Seen},
    fault::{self, needs},
    server_limit, template,
    verb::Verb,
    write_concern,
};
use crate::{
    Clock, Error, Key, Result,
    record::{Outcome, Request, StoreTime},
    store::{Applied, Snapshot},
};

/// The member that commands and change streams go to.
pub(super) const PRIMARY: SelectionCriteria = SelectionCriteria::ReadPreference(ReadPreference::Primary);

impl Inner {
    pub(super) async fn apply(&self, key: &Key, request: &Request, within: Duration) -> Result<Applied> {
        let until = Clock::Boot.now().saturating_add(within);
        if let Some(refused) = self.refusal(key, request, within.mul_f64(0.5)).await? {
            return Ok(refused);
        }
        let left = worthwhile(until, within)?;
        let command = template::command(self.head(key, left), request)?;
        let mut applied = self.update(key, command, slice::from_ref(request), left).await?;
        applied.pop().ok_or_else(|| Error::invalid("a request was sent for nobody: report this bug of mongoseal"))
    }

    /// What the command begins with that applies something to the record of a key.
    pub(super) fn head(&self, key: &Key, within: Duration) -> Document {
        doc! {
            "findAndModify": &self.collection,
            "query": document::of(key),
            "writeConcern": write_concern(within),
            "maxTimeMS": server_limit(within),
        }
    }

    /// Sends such a command; gives what came of these requests, which it applies.
    pub(super) async fn update(
        &self,
        key: &Key,
        command: RawDocumentBuf,
        requests: &[Request],
        within: Duration,
    ) -> Result<Vec<Applied>> {
        let asks = requests.iter().any(|request| matches!(request, Request::Acquire(_)));
        let upserts = requests.first().is_some_and(|request| Verb::of(request).upserts());
        let reply = self.database.run_raw_command(command).selection_criteria(PRIMARY).await;
        let reply = match reply {
            Ok(reply) => {
                self.index.note(&reply);
                reply
            }
            Err(error) => {
                if upserts {
                    self.index.note_doubt();
                }
                // A document that is not ours can make the update fail, which then wrote nothing. An upsert fails with
                // a duplicate key where the query does not match the document of the key. If the read finds a record
                // that can be read, or none, another first insert came before this one, and a retry meets its record.
                let is_taken = fault::code(&error) == Some(fault::DUPLICATE_KEY);
                let is_refused = fault::is_refusal(&error) && fault::code(&error) != Some(fault::UNAUTHORIZED);
                if is_taken || is_refused {
                    self.read(key, within).await?;
                }
                return Err(self.meaning(error, if upserts { needs::HOLD } else { needs::CHANGE }));
            }
        };
        if let Some(error) = reply.get("writeConcernError") {
            return Err(fault::unconfirmed(error));
        }
        // There was no record of this format, so nothing was done and no time was told. The engine reads what is there
        // before it tells that to anybody.
        let Some(Bson::Document(value)) = reply.get("value") else {
            let nothing = |request: &Request| request.outcome(None, StoreTime::default());
            return Ok(requests
                .iter()
                .map(|request| Applied { outcome: nothing(request), at: None, changed: false, sent: None })
                .collect());
        };
        let Seen { mut view, places, at, written } = document::decode_view(key, value)?;
        let mut applied = Vec::new();
        for (asker, request) in requests.iter().enumerate() {
            view.position = places.get(asker).copied().flatten();
            let outcome = request.outcome(Some(&view), at.now);
            if !is_plausible(request, &outcome, written, at.now) {
                // What was not looked at in the view makes it a document that is not ours.
                self.read(key, within).await?;
                return Err(Error::unavailable("the answer of MongoDB does not match what it wrote: retry"));
            }
            applied.push(Applied { outcome, at: Some(at), changed: written, sent: None });
        }
        if asks {
            let is_held = |Applied { outcome, .. }: &Applied| {
                matches!(outcome, Outcome::Refused { .. } | Outcome::Queued { .. } | Outcome::Full { .. })
            };
            self.held.note(key, applied.iter().any(is_held));
        }
        Ok(applied)
    }

    pub(super) async fn read(&self, key: &Key, within: Duration) -> Result<Option<Snapshot>> {
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": document::all(),
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "linearizable" },
            "maxTimeMS": server_limit(within),
        };
        let reply = self.command(find, needs::READ).await?;
        let found = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .map_err(fault::unreadable)?
            .first();
        let Some(Bson::Document(found)) = found else {
            return Ok(None);
        };
        let (record, at) = document::decode(key, found)?;
        Ok(Some(Snapshot { record: Box::new(record), at }))
    }

    /// Sends a command to the primary, for which the user needs these actions. The driver adds no concern
    /// and no retry of its own.
    pub(super) async fn command(&self, command: Document, needs: &str) -> Result<Document> {
        self.raw_command(&self.database, command).await.map_err(|error| self.meaning(error, needs))
    }

    pub(super) fn meaning(&self, error: mongodb::error::Error, needs: &str) -> Error {
        fault::meaning(error, self.database.name(), &self.collection, needs)
    }

    pub(super) async fn raw_command(&self, database: &Database, command: Document) -> mongodb::error::Result<Document> {
        database.run_command(command).selection_criteria(PRIMARY).await
    }
}

/// What is left of the time that a request was given, where it is worth sending.
pub(super) fn worthwhile(until: Duration, within: Duration) -> Result<Duration> {
    let left = until.saturating_sub(Clock::Boot.now());
    // A lease of a short ttl is given little time from the beginning.
    if left < LEAST.min(within.mul_f64(0.5)) {
        return Err(Error::unavailable("earlier requests left this one no time: retry"));
    }
    Ok(left)
}

/// Whether the pipeline can have come to this. It leaves a document as it is that is not ours.
fn is_plausible(request: &Request, outcome: &Outcome, written: bool, now: StoreTime) -> bool {
    let room = match request {
        Request::Acquire(acquire) => acquire.wait.map(|wait| wait.queue_limit),
        _ => None,
    };
    let is_full = |length: usize| room.is_none_or(|room| u32::try_from(length).is_ok_and(|length| length >= room));
    match outcome {
        // An acquire of a free key is granted, unless an entry before it in the queue is not one of a waiter. A raise
        // makes a record.
        Outcome::Absent => !matches!(request, Request::Acquire(_) | Request::Raise(_)),
        _ if written => true,
        Outcome::Granted { .. } | Outcome::Queued { .. } | Outcome::Refreshed { .. } | Outcome::Transferred { .. } => {
            false
        }
        Outcome::Refused { holder } => holder.expires_at > now,
        Outcome::Full { length } => is_full(*length),
        Outcome::Raised { version } => matches!(request, Request::Raise(raise) if *version >= raise.to),
        Outcome::Released | Outcome::Revoked { .. } | Outcome::Pruned { .. } => true,
    }
}
