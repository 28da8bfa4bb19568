//! Sending a request and reading its answer.
//!
//! Purpose: one request is one command, which the server applies atomically.
//!
//! Mechanism: `command.rs` encodes the command, and `document.rs` decodes the record in its reply. If the reply has no
//! record of this format, the document of the key is read, so that the error names what is wrong with it.
//!
//! Invariant: each answer of a write comes from the write itself.

use mongodb::{
    bson::{Bson, Document, RawDocument, RawDocumentBuf, doc},
    error::Result as DriverResult,
};

use super::{
    command::{self, encoded, join},
    context::{MongoContext, PRIMARY, first_batch},
    document,
    error::{self, needs},
    limits::{ensure_remaining, server_limit, write_concern},
    operation::{self, Operation, queue_limit},
    state::{admission::ServerDeadline, known_keys::PathHint},
};
use crate::{
    record::{self, Outcome, Record, RecordSummary, Request, StoreTime},
    store::{
        answers::{Applied, Snapshot},
        coalesce::min_remaining,
    },
    types::{
        clock::Clock,
        error::{Error, Result},
        key::Key,
    },
};

impl MongoContext {
    /// Applies requests of a key, which have one operation, as one command. Returns the answer to each.
    pub(super) async fn apply(
        &self,
        key: &Key,
        requests: &[Request],
        deadline: ServerDeadline,
    ) -> Result<Vec<Applied>> {
        let (sent, least) = (Clock::Boot.now(), min_remaining(*deadline));
        let fast = match requests {
            [request] => self.apply_fast(key, request, deadline).await?,
            _ => None,
        };
        let mut applied = if let Some(applied) = fast {
            vec![applied]
        } else {
            ensure_remaining(*deadline, least)?;
            self.update(key, requests, deadline).await?
        };
        if matches!(requests, [Request::Acquire(_), ..]) && applied.iter().all(|applied| applied.changed) {
            self.client.limits.requests.note_acquire(Clock::Boot.now().since(sent));
        }
        for applied in &mut applied {
            applied.sent = Some(sent);
        }
        Ok(applied)
    }

    /// Sends a command that writes one record, with these constants and the common fields of its operation.
    pub(super) async fn find_and_modify(
        &self,
        key: &Key,
        is_upsert: bool,
        constants: Document,
        common: &RawDocument,
        deadline: ServerDeadline,
    ) -> Result<DriverResult<Document>> {
        // An insert needs the whole query. Otherwise the pipeline checks the document: the server finds it by its key
        // alone in less time.
        let query = if is_upsert {
            document::record_query(key)
        } else {
            doc! { "_id": key.as_str() }
        };
        let head = encoded(&doc! {
            "findAndModify": &self.collection,
            "query": query,
            "let": constants,
            "writeConcern": write_concern(*deadline),
            "maxTimeMS": server_limit(*deadline),
        })?;
        Ok(self.send_write(join(&head, common)?, is_upsert).await)
    }

    /// Sends a command that writes one record.
    pub(super) async fn send_write(&self, command: RawDocumentBuf, is_upsert: bool) -> DriverResult<Document> {
        let reply = self.database.run_raw_command(command).selection_criteria(PRIMARY).await;
        match &reply {
            Ok(reply) => self.index.record(reply),
            Err(_) if is_upsert => self.index.record_doubt(),
            Err(_) => {}
        }
        reply
    }

    /// Sends the command that applies these requests with the whole pipeline. Returns the answer to each.
    async fn update(&self, key: &Key, requests: &[Request], deadline: ServerDeadline) -> Result<Vec<Applied>> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        let is_upsert = Operation::of(first).is_upsert();
        let constants = operation::literals(operation::constants(first, requests));
        let reply = match self.find_and_modify(key, is_upsert, constants, &command::common(first)?, deadline).await? {
            Ok(reply) => reply,
            Err(error) => {
                // A foreign document can make the update fail, which then has written nothing. An upsert fails with a
                // duplicate key if the query does not match the key's document. If the read finds a valid record or
                // none, another first insert came before this one, and a retry meets its record.
                if error::is_caused_by_document(&error) {
                    self.read(key, deadline).await?;
                }
                return Err(self.translate(error, if is_upsert { needs::HOLD } else { needs::CHANGE }));
            }
        };
        error::ensure_written(&reply)?;
        // There was no record of this format, so the server did nothing and returned no time. The engine reads the
        // document before it reports that.
        let Some(Bson::Document(found)) = reply.get("value") else {
            let nothing = |request: &Request| request.outcome(None, StoreTime::default());
            return Ok(requests
                .iter()
                .map(|request| Applied { outcome: nothing(request), at: None, changed: false, sent: None })
                .collect());
        };
        let (Record { version, holders, history, last_seen, done, value, .. }, at) = document::decode(key, found)?;
        let (places, waiting) = document::decode_places(found);
        let mut summary = RecordSummary { version, holders, position: None, waiting, done, value };
        // Each write stamps the record.
        let is_written = last_seen == at.now;
        let mut applied = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            summary.position = places.get(index).copied().flatten();
            let outcome = request.outcome(Some(&summary), at.now);
            if !is_plausible(request, &outcome, is_written, at.now) {
                // The fields that the summary does not have make it a foreign document, or a record that has the lease
                // id of the request under another acquire id.
                let found = self.read(key, deadline).await?;
                let is_right = |Snapshot { record, .. }| {
                    record::apply(Some(&record), at, request) == (Some((*record).clone()), outcome.clone())
                };
                if !found.is_some_and(is_right) {
                    return Err(Error::unavailable("the answer of MongoDB does not match what it wrote: retry"));
                }
            }
            applied.push(Applied { outcome, at: Some(at), changed: is_written, sent: None });
        }
        if Operation::of(first).is_acquire() {
            let is_granted = |applied: &Applied| matches!(applied.outcome, Outcome::Granted { .. });
            let is_busy = summary.holders.len() > 1 || !applied.iter().all(is_granted);
            let seen = match (history.is_empty(), is_busy) {
                (false, _) => PathHint::Whole,
                (true, true) => PathHint::Busy,
                (true, false) => PathHint::Free,
            };
            self.known_keys.record(key, seen);
        }
        Ok(applied)
    }

    pub(super) async fn read(&self, key: &Key, deadline: ServerDeadline) -> Result<Option<Snapshot>> {
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": document::record_projection(&["done", "runs", "value"]),
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "linearizable" },
            "maxTimeMS": server_limit(*deadline),
        };
        let reply = self.command(find, needs::READ).await?;
        let Some(found) = first_batch(reply)?.pop() else { return Ok(None) };
        let (record, at) = document::decode(key, &found)?;
        Ok(Some(Snapshot { record: Box::new(record), at }))
    }
}

/// Whether the queue is full for this request if the outcome says so. The server counts the free places before the grant, for
/// all requests of a command, so the grant may have freed places.
pub(super) fn has_no_room(request: &Request, outcome: &Outcome) -> bool {
    let Outcome::Full { length } = outcome else { return true };
    queue_limit(request).is_none_or(|limit| u32::try_from(*length).is_ok_and(|length| length >= limit))
}

/// Whether the pipeline can have this outcome. It does not change a foreign document.
fn is_plausible(request: &Request, outcome: &Outcome, is_written: bool, now: StoreTime) -> bool {
    match outcome {
        // An acquire of a free key is granted, unless an entry before it in the queue is no waiter. A raise creates a
        // record.
        Outcome::Absent => !matches!(request, Request::Acquire(_) | Request::Raise(_)),
        _ if is_written => true,
        Outcome::Granted { .. }
        | Outcome::Queued { .. }
        | Outcome::Refreshed { .. }
        | Outcome::Transferred { .. }
        | Outcome::Downgraded
        | Outcome::ValueOutdated { .. } => false,
        Outcome::Refused { holder } => holder.expires_at > now,
        Outcome::Full { .. } => has_no_room(request, outcome),
        Outcome::Raised { version } => matches!(request, Request::Raise(raise) if *version >= raise.to),
        // The engine reads the record if one of these proves nothing: see `is_proven`.
        Outcome::Completed
        | Outcome::ValuePut
        | Outcome::Reset { .. }
        | Outcome::Released
        | Outcome::Revoked { .. }
        | Outcome::Pruned { .. } => true,
    }
}
