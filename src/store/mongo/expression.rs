//! Expressions that several pipelines and filters have.

use mongodb::bson::{Bson, Document, doc};

use super::document::{FORMAT, long};
use crate::{record::Record, types::token::HybridTime};

/// Whether a document has this format, with a version as in [`version_range`]. `at` ends with the path of the document.
/// The expression is true or false and never fails.
pub(super) fn is_of_format(at: &str) -> Document {
    let (v, version) = (format!("{at}v"), format!("{at}version"));
    doc! { "$and": [
        { "$eq": [v, FORMAT] }, { "$gte": [&version, 1_i64] }, { "$lte": [&version, long(Record::MAX_VERSION)] },
    ] }
}

/// Whether a document of this format is a record, except for its holders and waiters. The expression is true or false
/// and never fails.
pub(super) fn is_record_beside_entries() -> Document {
    // The server may evaluate the history of a document whose fields have other types.
    let history = doc! { "$cond": [{ "$isArray": "$history" }, "$history", []] };
    doc! { "$and": [has_fields_of_a_record("$"), has_revocations(history)] }
}

/// Whether the fields of a document have the types of a record's. `at` ends with the path of the document. The
/// expression is true or false and never fails.
pub(super) fn has_fields_of_a_record(at: &str) -> Document {
    let fields = [
        ("v", "int"),
        ("version", "long"),
        ("holders", "array"),
        ("queue", "array"),
        ("handover", "string"),
        ("history", "array"),
        ("last_seen", "date"),
        ("expires_at", "date"),
    ];
    has_types(at, &fields)
}

/// Whether [`decode`] can read each entry of a history.
pub(super) fn has_revocations(history: impl Into<Bson>) -> Document {
    let fields = [("by", "string"), ("reason", "string"), ("at", "date"), ("tokens", "array")];
    doc! { "$allElementsTrue": { "$map": { "input": history.into(), "in": has_types("$$this.", &fields) } } }
}

/// Whether the document has no completed tick or one that [`decode`] can read.
pub(super) fn has_completion() -> Document {
    let fields = [("tick", "long"), ("token", "long"), ("by", "string"), ("at", "date")];
    doc! { "$or": [{ "$eq": [{ "$type": "$done" }, "missing"] }, has_types("$done.", &fields)] }
}

/// Whether the document has no value or one that [`decode`] can read.
pub(super) fn has_value() -> Document {
    let fields = [("token", "long"), ("write", "long"), ("at", "date")];
    doc! { "$or": [{ "$eq": [{ "$type": "$value" }, "missing"] }, has_types("$value.", &fields)] }
}

fn has_types(at: &str, fields: &[(&str, &str)]) -> Document {
    let (actual, wanted): (Vec<Document>, Vec<&str>) =
        fields.iter().map(|(name, kind)| (doc! { "$type": format!("{at}{name}") }, *kind)).unzip();
    doc! { "$eq": [actual, { "$literal": wanted }] }
}

/// The first token that a grant can have after this version, with this many tokens in reserve.
pub(super) fn next_version(version: &str, reserved: Option<Document>) -> Document {
    // The clock's second and increment as a token, counted from the epoch of tokens.
    let second = long(1 << HybridTime::ORDINAL_BITS);
    let epoch = HybridTime::EPOCH_SECONDS << HybridTime::ORDINAL_BITS;
    let mut clock = doc! { "$add": [
        { "$multiply": [{ "$tsSecond": "$$CLUSTER_TIME" }, second] },
        { "$min": [{ "$tsIncrement": "$$CLUSTER_TIME" }, long(HybridTime::MAX_ORDINAL)] },
        i64::try_from(epoch).unwrap_or(i64::MAX).saturating_neg(),
    ] };
    if let Some(reserved) = reserved {
        clock = doc! { "$subtract": [clock, reserved] };
    }
    doc! { "$max": [{ "$add": [version, 1] }, clock] }
}

/// This time, or the second of the hybrid clock if that is later.
pub(super) fn no_earlier_than_hybrid_clock(time: Document) -> Document {
    doc! { "$max": [time, { "$toDate": "$$CLUSTER_TIME" }] }
}
