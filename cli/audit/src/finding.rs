//! What an audit finds.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// A promise was broken.
    Violation,
    /// A writer carried no token.
    Unfenced,
    /// A write came after a later grant, and was not refused.
    Exposed,
    /// A write came after its lease had ended, before a later grant.
    Late,
}

/// What an entry shows.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub kind: Kind,
    /// The key, or the collection and the id of the document.
    pub of: String,
    /// What happened, in words.
    pub what: String,
}

impl Finding {
    pub(super) fn of_key(key: &str, what: String) -> Self {
        Self { kind: Kind::Violation, of: format!("key {key:?}"), what }
    }

    pub(super) fn version_fell(key: &str, before: i64, after: i64) -> Self {
        Self::of_key(key, format!("its version fell from {before} to {after}: an older copy was put back"))
    }

    pub(super) fn token_did_not_grow(key: &str, newest: i64, token: i64) -> Self {
        Self::of_key(key, format!("token {token} was granted after {newest}"))
    }

    pub(super) fn held_twice(key: &str, tokens: impl Iterator<Item = i64>) -> Self {
        let tokens = tokens.map(|token| token.to_string()).collect::<Vec<_>>().join(", ");
        Self::of_key(key, format!("the tokens {tokens} hold it at once, and one of them allows fewer"))
    }

    fn of_document(kind: Kind, collection: &str, id: &str, what: String) -> Self {
        Self { kind, of: format!("{collection} {id}"), what }
    }

    pub(super) fn older_token(collection: &str, id: &str, before: i64, token: i64) -> Self {
        let what = format!("token {token} wrote after {before}");
        Self::of_document(Kind::Violation, collection, id, what)
    }

    pub(super) fn inserted_again(collection: &str, id: &str, before: i64, token: i64) -> Self {
        let what = format!("token {token} inserted it again, after a holder with {before} had deleted it");
        Self::of_document(Kind::Exposed, collection, id, what)
    }

    pub(super) fn token_lost(collection: &str, id: &str, before: i64) -> Self {
        let what = format!("a write removed token {before}");
        Self::of_document(Kind::Violation, collection, id, what)
    }

    pub(super) fn no_token(collection: &str, id: &str) -> Self {
        Self::of_document(Kind::Unfenced, collection, id, "a writer carried no token".into())
    }

    pub(super) fn exposed(collection: &str, id: &str, token: i64, newer: i64) -> Self {
        let what = format!("token {token} wrote after the grant of {newer}, which had not claimed the document");
        Self::of_document(Kind::Exposed, collection, id, what)
    }

    pub(super) fn late(collection: &str, id: &str, token: i64) -> Self {
        let what = format!("it was written after the lease with token {token} had ended, before the next grant");
        Self::of_document(Kind::Late, collection, id, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.what)
    }
}
