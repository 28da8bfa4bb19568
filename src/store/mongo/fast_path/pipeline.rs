//! The pipelines of the fast path.
//!
//! Purpose: the server parses a pipeline for each command, so these have no step that a free key does not need.
//!
//! Mechanism: one condition says whether the record is as the fast path needs it. If it is not, the document stays as
//! it is.
//!
//! Invariant: what they write is what `mongo/pipeline.rs` writes for the same record.

use mongodb::bson::{Bson, Document, doc};

use super::super::{
    document::{self, long},
    expression,
    operation::{self, literal},
};
use crate::{
    record::{Acquire, Release},
    types::ttl::Ttl,
};

/// Grants a free key without waiters. `is_upsert`: the query is that of
/// [`record_query`](super::super::document::record_query), and the command inserts a missing record. Otherwise the
/// query has only the key, and the condition checks the rest.
pub(in crate::store::mongo) fn acquire(is_upsert: bool) -> Vec<Document> {
    let (actual, free) = fields_without("$r.", &["holders", "queue", "history"]);
    let is_free = doc! { "$eq": [actual, literal(free)] };
    let is_free = if is_upsert {
        // The query demands a `version` of each document that it matches.
        doc! { "$or": [{ "$not": "$r.version" }, is_free] }
    } else {
        doc! { "$and": [expression::is_of_format("$r."), is_free] }
    };
    let holder = doc! { "$mergeObjects": ["$$entry", {
        "version": "$t", "since": "$$NOW", "last_seen": "$$NOW", "expires_at": "$end",
    }] };
    let expires_at = doc! { "$cond": [
        { "$gte": ["$r.expires_at", "$end"] }, "$r.expires_at", { "$add": ["$$NOW", "$$farther"] },
    ] };
    let granted = doc! {
        "version": "$t",
        "holders": [holder],
        "queue": [],
        "handover": "",
        "history": [],
        "last_seen": "$$NOW",
        "expires_at": expression::no_earlier_than_hybrid_clock(expires_at),
    };
    vec![
        // The fields of the document are apart, so that no field of a foreign document is lost.
        doc! { "$replaceWith": {
            "r": "$$ROOT",
            "t": expression::next_version("$version", None),
            "end": { "$add": ["$$NOW", "$$validity"] },
        } },
        doc! { "$replaceWith": { "$cond": [is_free, { "$mergeObjects": ["$r", granted] }, "$r"] } },
    ]
}

/// The constants of [`acquire`].
pub(super) fn constants_of_acquire(acquire: &Acquire) -> Document {
    let validity = acquire.terms.ttl.saturating_add(acquire.terms.grace);
    let farther = validity.saturating_add(validity.min(Ttl::MAX.millis()));
    operation::literals(doc! {
        "entry": operation::entry(acquire), "validity": long(validity), "farther": long(farther),
    })
}

/// Ends the lease that is the only holder of a key without waiters.
pub(in crate::store::mongo) fn release() -> Vec<Document> {
    let holders = doc! { "$map": {
        "input": "$holders",
        "in": [
            "$$this.lease", "$$this.version", { "$type": "$$this.limit" }, { "$type": "$$this.expires_at" },
            // Null if it is missing. The whole pipeline keeps the entry of a lease with a minimum hold.
            "$$this.min_hold",
        ],
    } };
    let (mut actual, _) = fields_without("$", &["queue", "history"]);
    actual.push(holders.into());
    let has_it_alone = doc! { "$and": [
        expression::is_of_format("$"),
        { "$eq": [actual, "$$alone"] },
        { "$gt": [{ "$max": "$holders.expires_at" }, "$$NOW"] },
    ] };
    let released = doc! {
        "holders": [],
        "handover": "",
        "last_seen": "$$NOW",
        "expires_at": expression::no_earlier_than_hybrid_clock(doc! { "$max": ["$expires_at", "$$NOW"] }),
    };
    vec![doc! { "$replaceWith": { "$cond": [has_it_alone, { "$mergeObjects": ["$$ROOT", released] }, "$$ROOT"] } }]
}

/// The constants of [`release`].
pub(super) fn constants_of_release(release: &Release) -> Document {
    let holder: Vec<Bson> =
        vec![document::encode_lease(release.lease), release.token.into(), "int".into(), "date".into(), Bson::Null];
    let (_, mut alone) = fields_without("$", &["queue", "history"]);
    alone.push(vec![Bson::from(holder)].into());
    operation::literals(doc! { "alone": alone })
}

/// What a record whose fields `empty` are empty arrays is compared by: the types of its other fields besides holders,
/// and these arrays. And what each must be. `at` ends with the path of the document.
fn fields_without(at: &str, empty: &[&str]) -> (Vec<Bson>, Vec<Bson>) {
    let types =
        [("v", "int"), ("version", "long"), ("handover", "string"), ("last_seen", "date"), ("expires_at", "date")];
    let types = types.map(|(name, kind)| (Bson::from(doc! { "$type": format!("{at}{name}") }), Bson::from(kind)));
    let empty = empty.iter().map(|name| (Bson::from(format!("{at}{name}")), Bson::Array(vec![])));
    types.into_iter().chain(empty).unzip()
}
