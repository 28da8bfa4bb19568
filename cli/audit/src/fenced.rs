//! Judges the writes of the documents of a fenced collection: each carries a token, which is the newest of its key.

use std::collections::HashMap;

use mongoseal::mongodb::bson::{Bson, Document};
use serde::Serialize;

use super::{
    entry::Change,
    finding::Finding,
    keys::{Keys, Standing},
};

/// The documents of a fenced collection.
pub(super) struct Fenced {
    /// The name of the collection, without that of the database.
    name: String,
    field: String,
    /// The token that each document has, as far as the entries have shown it. A document that was deleted keeps its token.
    documents: HashMap<String, Token>,
    summary: OfCollection,
}

/// What is known of the token of a document.
#[derive(Clone, Copy, PartialEq)]
enum Token {
    /// No entry has shown whether it has one.
    Unknown,
    None,
    Is(i64),
    /// It was there when the document was deleted. `None`: the document had none, or it is not known.
    Was(Option<i64>),
}

/// The writes of a fenced collection.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct OfCollection {
    /// The name, with that of the database.
    pub collection: String,
    /// How many documents were written.
    pub documents: usize,
    /// How many writes there were.
    pub writes: u64,
    /// Writes without a token.
    pub without_token: u64,
    /// Writes after a later grant that were not refused, because the later holder had not claimed the document.
    pub exposed: u64,
    /// Writes after the lease had ended, and before the next grant.
    pub late: u64,
    /// Writes whose token is not known, or was granted before the first entry.
    pub unplaced: u64,
    /// Documents that were inserted without a token: no holder had claimed them yet.
    pub unclaimed: u64,
}

impl Fenced {
    pub(super) fn new(name: &str, field: &str) -> Self {
        let summary = OfCollection { collection: name.to_owned(), ..OfCollection::default() };
        let name = name.split_once('.').map_or(name, |(_, name)| name).to_owned();
        Self { name, field: field.to_owned(), documents: HashMap::new(), summary }
    }

    pub(super) fn summary(&self) -> OfCollection {
        OfCollection { documents: self.documents.len(), ..self.summary.clone() }
    }

    /// The documents were dropped.
    pub(super) fn drop_all(&mut self) {
        for token in self.documents.values_mut() {
            *token = token.deleted();
        }
    }

    /// Entries are missing.
    pub(super) fn skip(&mut self) {
        self.documents.values_mut().for_each(|token| *token = Token::Unknown);
    }

    /// `under_lease`: the write is in one transaction with a write of a record, so the lease was held. `at`: the time of the
    /// server, in milliseconds since the Unix epoch.
    pub(super) fn judge(
        &mut self,
        id: &Bson,
        change: &Change,
        (under_lease, at): (bool, i64),
        keys: &Keys,
        findings: &mut Vec<Finding>,
    ) {
        let named = id.to_string();
        let before = self.documents.get(&named).copied().unwrap_or(Token::Unknown);
        let counts = &mut self.summary;
        counts.writes += 1;
        let written = match change {
            Change::Delete => before.deleted(),
            Change::Insert(document) | Change::Replace(document) => token(document, &self.field),
            // A writer that leaves the token as it is counts as the holder of it.
            Change::Delta(diff) => changed_token(diff, &self.field).unwrap_or(before),
        };
        let name = &self.name;
        match (before, written) {
            (Token::Is(before), Token::Is(token)) if token < before => {
                findings.push(Finding::older_token(name, &named, before, token));
            }
            (Token::Was(Some(before)), Token::Is(token)) if token < before => {
                counts.exposed += 1;
                findings.push(Finding::inserted_again(name, &named, before, token));
            }
            (Token::Is(before), Token::None) => {
                counts.without_token += 1;
                findings.push(Finding::token_lost(name, &named, before));
            }
            (_, Token::None) if matches!(change, Change::Insert(_)) => counts.unclaimed += 1,
            _ if under_lease => {}
            (_, Token::None) => {
                counts.without_token += 1;
                findings.push(Finding::no_token(name, &named));
            }
            (_, Token::Is(token)) => match keys.standing(token, at) {
                Standing::Held => {}
                Standing::Unknown => counts.unplaced += 1,
                Standing::Ended => {
                    counts.late += 1;
                    findings.push(Finding::late(name, &named, token));
                }
                Standing::Outdated(newer) => {
                    counts.exposed += 1;
                    findings.push(Finding::exposed(name, &named, token, newer));
                }
            },
            (_, Token::Unknown) => counts.unplaced += 1,
            (_, Token::Was(_)) => {}
        }
        self.documents.insert(named, written);
    }
}

impl Token {
    fn deleted(self) -> Self {
        match self {
            Self::Is(token) => Self::Was(Some(token)),
            Self::Was(token) => Self::Was(token),
            Self::None | Self::Unknown => Self::Was(None),
        }
    }
}

fn token(document: &Document, field: &str) -> Token {
    document.get_i64(field).map_or(Token::None, Token::Is)
}

/// The token after a delta that changes its field.
fn changed_token(diff: &Document, field: &str) -> Option<Token> {
    let part = |name: &str| diff.get_document(name).ok().filter(|part| part.contains_key(field));
    if part("d").is_some() {
        return Some(Token::None);
    }
    ["u", "i"].iter().find_map(|name| part(name)).map(|fields| token(fields, field))
}
