//! Many fenced writes in few commands.

use mongodb::{
    bson::{Bson, Document, doc},
    options::{FindOneOptions, ReadPreference, SelectionCriteria, UpdateModifications},
    results::SummaryBulkWriteResult,
};

use super::{
    Fenced, MAX_UPSERT_ATTEMPTS, Target, error,
    token_field::{TokenField, not_an_update, pinned_id},
};
use crate::{
    store::mongo::{
        error::{self as store_error, needs},
        server_limit,
    },
    types::error::{Error, Result},
};

/// The most changes of one command. The server takes 100,000, but replies only after the last one.
const MAX_STATEMENTS: usize = 1_000;

impl<T: Send + Sync> Fenced<'_, T> {
    /// Makes many changes in their order. Each run of up to 1,000 changes of one kind is one command. Updates and
    /// replacements are of one kind; deletions and insertions are of others.
    ///
    /// Each change is a fenced write of its own; together they are not atomic. If some changes of a command found
    /// nothing, one query with the filters of all of them looks for fenced documents. So name the `_id` in filters: if
    /// a filter matches two documents and one of them is fenced, the change may be refused.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one), for the first change that was refused. The changes before it are made, and
    /// each of those behind it may be made. If `update_one` would not send one of the changes, nothing is sent.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one), for the changes that are left.
    pub async fn bulk_write(&self, changes: impl IntoIterator<Item = Change>) -> Result<SummaryBulkWriteResult> {
        let write = |to: Target| {
            let changes = changes.into_iter().map(|change| change.into_statement(&to.token_field));
            let changes = changes.collect::<Result<Vec<_>>>()?;
            Ok(async move { to.bulk(&changes).await })
        };
        self.run(needs::HOLD, write).await
    }
}

/// One change of a [`bulk_write`](Fenced::bulk_write).
#[derive(Clone, Debug)]
pub struct Change {
    filter: Document,
    kind: Kind,
    upsert: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Update(UpdateModifications),
    Replace(Document),
    Delete,
    Insert(Document),
}

impl Change {
    /// Updates a document that the filter matches.
    #[must_use]
    pub fn update_one(filter: Document, update: impl Into<UpdateModifications>) -> Self {
        Self::of(filter, Kind::Update(update.into()))
    }

    /// Replaces a document that the filter matches.
    #[must_use]
    pub fn replace_one(filter: Document, replacement: Document) -> Self {
        Self::of(filter, Kind::Replace(replacement))
    }

    /// Deletes a document that the filter matches.
    #[must_use]
    pub fn delete_one(filter: Document) -> Self {
        Self::of(filter, Kind::Delete)
    }

    /// Inserts a document.
    #[must_use]
    pub fn insert_one(document: Document) -> Self {
        Self::of(doc! {}, Kind::Insert(document))
    }

    /// Sets whether an update or a replacement inserts the document if its filter matches none. The filter must name
    /// the `_id`.
    #[must_use]
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.upsert = upsert;
        self
    }

    fn of(filter: Document, kind: Kind) -> Self {
        Self { filter, kind, upsert: false }
    }

    fn into_statement(self, token: &TokenField) -> Result<Statement> {
        let Self { filter, kind, upsert } = self;
        if upsert && matches!(kind, Kind::Delete | Kind::Insert(_)) {
            return Err(Error::invalid("only an update or a replacement can upsert: leave out `upsert`"));
        }
        let q = token.passing_filter(&filter);
        let (command, document) = match kind {
            Kind::Update(update) => {
                let update: Bson = match token.on_update(update)? {
                    UpdateModifications::Document(operators) => operators.into(),
                    UpdateModifications::Pipeline(stages) => stages.into(),
                    _ => return Err(not_an_update()),
                };
                (BulkCommand::Update, doc! { "q": q, "u": update, "upsert": upsert })
            }
            Kind::Replace(document) => {
                (BulkCommand::Update, doc! { "q": q, "u": token.on_document(document)?, "upsert": upsert })
            }
            Kind::Delete => (BulkCommand::Delete, doc! { "q": q, "limit": 1 }),
            Kind::Insert(document) => (BulkCommand::Insert, token.on_document(document)?),
        };
        let id = match command {
            BulkCommand::Insert => document.get("_id").cloned(),
            _ if upsert => Some(pinned_id(&filter)?),
            _ => None,
        };
        Ok(Statement { command, filter, id, document })
    }
}

/// A change as a statement of its command.
#[derive(Clone, Debug)]
struct Statement {
    command: BulkCommand,
    /// The caller's filter, without the fence.
    filter: Document,
    /// The `_id` that an upsert or an insert would have.
    id: Option<Bson>,
    document: Document,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkCommand {
    Update,
    Delete,
    Insert,
}

impl BulkCommand {
    /// The name of the command, of its statements, and the actions that its user needs.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Update => ("update", "updates", needs::HOLD),
            Self::Delete => ("delete", "deletes", needs::REMOVE),
            Self::Insert => ("insert", "documents", needs::INSERT),
        }
    }
}

impl Target {
    async fn bulk(&self, statements: &[Statement]) -> Result<SummaryBulkWriteResult> {
        let mut all = SummaryBulkWriteResult::default();
        for same in statements.chunk_by(|one, other| one.command == other.command) {
            for mut left in same.chunks(MAX_STATEMENTS) {
                let mut attempts = 0_u32;
                while !left.is_empty() {
                    attempts = attempts.saturating_add(1);
                    let done = self.send_statements(left, attempts, &mut all).await?;
                    if done > 0 {
                        attempts = 0;
                    }
                    left = left.get(done..).unwrap_or_default();
                }
            }
        }
        Ok(all)
    }

    /// Sends statements of one command. Returns how many are made: all, or those before an upsert that conflicted with
    /// another first write of its document. That one is sent again, until so many attempts have made nothing.
    async fn send_statements(
        &self,
        statements: &[Statement],
        attempts: u32,
        all: &mut SummaryBulkWriteResult,
    ) -> Result<usize> {
        let Some(first) = statements.first() else { return Ok(0) };
        let (command, plural, needs) = first.command.names();
        let documents: Vec<&Document> = statements.iter().map(|statement| &statement.document).collect();
        let limit = server_limit(self.deadline());
        let command = doc! {
            command: self.documents.name(),
            plural: documents,
            "ordered": true,
            "writeConcern": { "w": "majority", "j": true, "wtimeout": limit },
            "maxTimeMS": limit,
        };
        let reply = self
            .documents
            .client()
            .database(&self.documents.namespace().db)
            .run_command(command)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
            .map_err(|error| Self { needs, ..self.clone() }.translate(error))?;
        if let Some(error) = reply.get("writeConcernError") {
            return Err(error::unconfirmed(store_error::unconfirmed(error)));
        }
        let failure = reply.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document());
        let at = |failure: &Document| failure.get("index").and_then(as_i64).and_then(|at| usize::try_from(at).ok());
        let made =
            failure.map_or(Some(statements.len()), at).and_then(|made| statements.get(..made)).unwrap_or_default();
        let found = count(&reply, "n");
        let upserted =
            reply.get_array("upserted").map_or(0, |upserted| i64::try_from(upserted.len()).unwrap_or(i64::MAX));
        match first.command {
            BulkCommand::Update => {
                add(&mut all.upserted_count, upserted);
                add(&mut all.modified_count, count(&reply, "nModified"));
                add(&mut all.matched_count, found.saturating_sub(upserted));
            }
            BulkCommand::Delete => add(&mut all.deleted_count, found),
            BulkCommand::Insert => add(&mut all.inserted_count, found),
        }
        if first.command != BulkCommand::Insert && usize::try_from(found).is_ok_and(|found| found < made.len()) {
            let blocked = made.iter().map(|statement| self.token_field.blocked_filter(&statement.filter));
            self.ensure_not_blocked(doc! { "$or": blocked.collect::<Vec<_>>() }, FindOneOptions::default()).await?;
        }
        let Some(failure) = failure else { return Ok(statements.len()) };
        let code = failure.get("code").and_then(as_i64).and_then(|code| i32::try_from(code).ok()).unwrap_or_default();
        let refused = || error::not_written(code, failure.get_str("errmsg").unwrap_or_default());
        let next = statements.get(made.len()).filter(|_| error::says_duplicate(code)).ok_or_else(refused)?;
        let Some(id) = &next.id else { return Err(refused()) };
        self.ensure_id_not_blocked(id).await?;
        if next.command == BulkCommand::Insert || attempts >= MAX_UPSERT_ATTEMPTS {
            return Err(refused());
        }
        Ok(made.len())
    }
}

fn add(total: &mut i64, more: i64) {
    *total = total.saturating_add(more);
}

fn count(reply: &Document, name: &str) -> i64 {
    reply.get(name).and_then(as_i64).unwrap_or_default()
}

fn as_i64(number: &Bson) -> Option<i64> {
    match number {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_counts_in_numbers_of_32_or_64_bits() {
        assert_eq!(count(&doc! { "n": 3_i32 }, "n"), 3);
        assert_eq!(count(&doc! { "n": 3_000_000_000_i64 }, "n"), 3_000_000_000);
        assert_eq!(count(&doc! {}, "n"), 0);
    }
}
