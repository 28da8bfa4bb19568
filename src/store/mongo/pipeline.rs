//! The state machine as an update pipeline.
//!
//! Purpose: the server applies a request in one atomic update on its own clocks. The steps are those of
//! `record/state_machine.rs`: prune, apply, grant, stamp. A property test sends the same requests to both and compares
//! the records.
//!
//! Mechanism: the server parses the pipeline for each command, which costs more than running it. So each step has as
//! few expressions as possible. A step is a stage and not a nested `$let`, because the parser copies the variables of a
//! `$let`. The first stage moves the document to `r`, so that later stages set no field of a foreign document:
//!
//! | field | contents |
//! |---|---|
//! | `r` | the document before the request |
//! | `ours` | whether the request is for it: for a batch request, whether all that it names hold |
//! | `m` | the tokens that a batch request names |
//! | `h`, `q` | holders and queue, step by step; the next waiter is first in `q` |
//! | `n` | how many waited before the acquires of this command |
//! | `v`, `t` | the highest token so far, and the next one |
//! | `w.n` | how many waiters at the head of the queue are granted the key |
//! | `g` | these waiters, as holders |
//! | `done` | the last completed tick, for a completion and a reset |
//! | `value` | the value, for a write of it |
//! | `d` | the hand-over, but for the first waiter |
//! | `end` | the latest of the server's wall clock and each expiry of holders and waiters |
//!
//! In the document the next waiter is last. So a hand-over cuts off the end of an array, and the oplog has only the new
//! length. If it cut off the beginning, all waiters would be logged anew. They are logged anew when a waiter is queued,
//! which delays no hand-over.
//!
//! What differs between requests of an operation is in constants, so the rest is encoded once: see `command.rs`.
//!
//! Invariants: the values of constants are wrapped in `$literal`, so no text of a caller is evaluated as an expression.
//! If an expression fails on a foreign document, the command fails and writes nothing. The caller then reads the
//! document.

mod apply;

use mongodb::bson::{Bson, Document, doc};

use super::{
    document, expression,
    operation::{Operation, literal},
};
use crate::{record::Record, types::ttl::Ttl};

/// The update that applies a request of this operation, with its [`constants`](super::operation::constants), to the
/// record.
pub(super) fn update(operation: Operation) -> Vec<Document> {
    let mut first = doc! { "r": "$$ROOT", "ours": is_ours(operation) };
    if operation.is_batch() {
        first.insert("m", named_tokens());
    }
    if operation == Operation::RefreshNamed {
        return refresh_named(first);
    }
    vec![
        doc! { "$replaceWith": first },
        doc! { "$set": prune(operation) },
        doc! { "$set": apply::changes(operation) },
        doc! { "$set": { "t": next_version(count_others(operation)), "w": count_ready() } },
        doc! { "$set": { "g": grant(operation), "q": { "$slice": ["$q", "$w.n", i32::MAX] } } },
        doc! { "$set": finish(operation) },
        doc! { "$replaceWith": stamp(operation) },
    ]
}

/// Whether the request is for this document: a record, or one that is just being inserted. Any other document is left as it
/// is.
fn is_ours(operation: Operation) -> Document {
    if operation.is_upsert() {
        // The query demands a `version` of each document that it matches: see `document::record_query`.
        doc! { "$or": [{ "$not": "$version" }, is_record()] }
    } else if operation.writes_done() {
        doc! { "$and": [expression::is_of_format("$"), is_record(), expression::has_completion()] }
    } else if operation.writes_value() {
        doc! { "$and": [expression::is_of_format("$"), is_record(), expression::has_value()] }
    } else if operation.is_batch() {
        // The query demands the format. All of the named holders must hold.
        doc! { "$and": [is_record(), { "$setIsSubset": [named_tokens(), live_tokens(operation)] }] }
    } else {
        // The query demands only the key.
        doc! { "$and": [expression::is_of_format("$"), is_record()] }
    }
}

/// Whether a document that the query matched is a record. If `v` and `version` have the types of a record's, the query
/// has checked their values. Of a holder this checks what decides whether it is removed and whether another fits beside
/// it. Waiters are not checked: there may be a thousand.
fn is_record() -> Document {
    let fields =
        ["expires_at", "limit", "not_after"].map(|name| Bson::from(doc! { "$type": format!("$$this.{name}") }));
    let holders = doc! { "$map": { "input": "$holders", "in": fields.to_vec() } };
    let wanted = ["missing", "date"].map(|not_after| Bson::from(vec!["date", "int", not_after])).to_vec();
    doc! { "$and": [
        expression::has_fields_of_a_record("$"),
        { "$setIsSubset": [holders, literal(wanted)] },
        expression::has_revocations("$history"),
    ] }
}

/// Removes expired holders and waiters, and the place that an acquire had which no longer waits: it comes last, so that the
/// grant reaches the waiters behind it. The result for a foreign document does not matter: this or a later expression
/// fails on it, or the last stage restores it. To a batch request it looks empty, so nothing fails: that would keep the command
/// from the other records.
fn prune(operation: Operation) -> Document {
    let before = |field: &str, otherwise: Bson| {
        if operation.is_batch() {
            Bson::from(doc! { "$cond": ["$ours", field, otherwise] })
        } else {
            if_inserted(operation, field, otherwise)
        }
    };
    let filter = |array: &str, which: Document| {
        doc! { "$filter": { "input": before(array, Bson::Array(vec![])), "cond": which } }
    };
    let stays = match operation {
        Operation::Acquire => doc! { "$and": [is_alive(), { "$not": is_own(operation) }] },
        _ => is_alive(),
    };
    let version = before("$r.version", Bson::Int64(0));
    let queue = doc! { "$reverseArray": filter("$r.queue", stays) };
    doc! { "h": filter("$r.holders", is_alive()), "q": queue, "v": version }
}

/// A field of the document before the request, or this value if the operation inserts the document.
fn if_inserted(operation: Operation, field: &str, inserted: Bson) -> Bson {
    if operation.is_upsert() { doc! { "$ifNull": [field, inserted] }.into() } else { field.into() }
}

/// How many waiters at the head of `q` can hold the key together with `h`: as many as the smallest limit among them
/// allows. Exclusive is a limit of one. The first waiter that has to wait sets a limit that no later one passes. So if
/// the first waiter is exclusive, no other is considered.
fn count_ready() -> Document {
    let considered = doc! { "$slice": ["$q", { "$cond": [{ "$first": "$q.limit" }, i32::MAX, 1] }] };
    let limit = doc! { "$min": ["$$value.m", "$$this.limit"] };
    let room = doc! { "$lt": [{ "$add": ["$$value.n", { "$size": "$h" }] }, { "$max": [limit.clone(), 1] }] };
    doc! { "$reduce": {
        "input": considered,
        "initialValue": { "n": 0, "m": { "$min": "$h.limit" } },
        "in": { "$cond": [
            room,
            { "n": { "$add": ["$$value.n", 1] }, "m": limit },
            { "n": "$$value.n", "m": 0 },
        ] },
    } }
}

/// The waiters at the head of `q` as holders. The first has the token `max(version + 1, token(hybrid clock) - others)`,
/// and the tokens of the next ones count on from it. The acquires of this command get their ttl.
fn grant(operation: Operation) -> Document {
    let offered = doc! { "$min": ["$$this.ttl", "$$this.wait_ttl", "$$this.max_hold"] };
    let validity = if operation.is_acquire() {
        doc! { "$cond": [is_own(operation), { "$min": ["$$this.ttl", "$$this.max_hold"] }, offered] }
    } else {
        offered
    };
    // An entry that no request can have queued is removed when it is its turn.
    let waiter = [
        ("lease", "binData"),
        ("caller", "string"),
        ("limit", "int"),
        ("ttl", "long"),
        ("grace", "long"),
        ("wait_ttl", "long"),
        ("last_seen", "date"),
        ("expires_at", "date"),
    ];
    let (actual, wanted): (Vec<Document>, Vec<&str>) =
        waiter.iter().map(|(name, kind)| (doc! { "$type": format!("$$this.{name}") }, *kind)).unzip();
    let first = doc! { "$filter": {
        "input": { "$slice": ["$q", "$w.n"] }, "cond": { "$eq": [actual, literal(wanted)] },
    } };
    // A waiter counts from its last acquire, which can be later than the time at which this command was parsed.
    let begin = doc! { "$max": ["$$NOW", "$$this.last_seen"] };
    doc! { "$map": { "input": first, "in": { "$mergeObjects": ["$$this", {
        "version": { "$add": ["$t", { "$indexOfArray": ["$q.lease", "$$this.lease"] }] },
        "refreshes": 0_i64,
        "since": "$$NOW",
        "last_seen": "$$NOW",
        "expires_at": { "$add": [begin.clone(), validity, "$$this.grace"] },
        // The sum is null if there is no maximum hold.
        "not_after": { "$ifNull": [{ "$add": [begin, "$$this.max_hold", "$$this.grace"] }, "$$REMOVE"] },
    }] } } }
}

/// How many other waiters have tokens in reserve: see `FencingToken::following`.
fn count_others(operation: Operation) -> Document {
    let others = doc! { "$subtract": [{ "$size": "$q" }, 1] };
    if operation.is_acquire() {
        doc! { "$min": ["$n", others] }
    } else {
        others
    }
}

/// The first token that can be granted, with this many in reserve.
fn next_version(others: Document) -> Document {
    expression::next_version("$v", Some(others))
}

/// The fields of the record after the grant. In `d` the acquires that were granted the key, and those from which it was
/// taken. An acquire learns of its own grant from the answer. If it does not wait, it leaves the queue.
fn finish(operation: Operation) -> Document {
    let notified = doc! { "$concat": ["$$value", "$$this.caller", "=", { "$toString": "$$this.version" }, ";"] };
    let notified = if operation.is_acquire() {
        doc! { "$cond": [is_own(operation), "$$value", notified] }
    } else {
        notified
    };
    let taken: Bson = if operation.is_revoke() {
        let each = doc! { "$concat": ["$$value", "$$this.caller", "=0;"] };
        doc! { "$reduce": { "input": "$notified", "initialValue": "", "in": each } }.into()
    } else {
        "".into()
    };
    let queue = match operation {
        // In the queue the acquires alone have no time left.
        Operation::Acquire => doc! { "$filter": { "input": "$q", "cond": is_alive() } }.into(),
        _ => Bson::from("$q"),
    };
    doc! {
        "h": { "$concatArrays": ["$h", "$g"] },
        "q": { "$reverseArray": queue },
        "v": { "$max": ["$v", { "$max": "$g.version" }] },
        "d": { "$reduce": { "input": "$g", "initialValue": taken, "in": notified } },
        "end": { "$max": ["$$NOW", { "$max": "$h.expires_at" }, { "$max": "$q.expires_at" }, { "$max": "$g.expires_at" }] },
    }
}

/// The record afterwards: as it was before, or, if something has changed, with new times.
fn stamp(operation: Operation) -> Document {
    let mut history = if_inserted(operation, "$r.history", Bson::Array(vec![]));
    if operation.is_revoke() {
        let revocation = doc! { "by": "$$by", "reason": "$$reason", "at": "$$NOW", "tokens": "$notified.version" };
        let kept = i64::try_from(Record::MAX_HISTORY).unwrap_or(i64::MAX).saturating_neg();
        let added = doc! { "$cond": [{ "$size": "$notified" }, [revocation], []] };
        history = doc! { "$slice": [{ "$concatArrays": [history, added] }, kept] }.into();
    }
    let mut expires_at = expiry("$r.expires_at", "$end");
    match operation {
        Operation::Raise => expires_at = doc! { "$max": [expires_at, "$$until"] },
        Operation::Complete | Operation::PutValue | Operation::ReleaseWithValue => {
            expires_at = doc! { "$max": [expires_at, { "$add": ["$$NOW", "$$keep"] }] }
        }
        _ => {}
    }
    let mut record = doc! {
        "version": "$v",
        "holders": "$h",
        "queue": "$q",
        "handover": { "$concat": ["$d", notify_first(operation)] },
        "history": history,
        "last_seen": "$$NOW",
        "expires_at": expires_at,
    };
    let (mut after, mut before) = (vec!["$v", "$h", "$q"], vec!["$r.version", "$r.holders", "$r.queue"]);
    if operation.writes_done() {
        record.insert("done", "$done");
        if operation == Operation::Complete {
            record.insert("runs", add_run());
        }
        after.push("$done");
        before.push("$r.done");
    }
    if operation.writes_value() {
        // It changes only with its holder.
        record.insert("value", "$value");
    }
    let differs = doc! { "$ne": [after, before] };
    // A document that is being inserted does not become a record without a grant or a raise.
    let is_changed = doc! { "$and": ["$ours", differs, { "$gt": ["$v", 0] }] };
    doc! { "$cond": [is_changed, { "$mergeObjects": ["$r", record] }, "$r"] }
}

/// The last completed runs. A tick that was completed is in `done`.
fn add_run() -> Document {
    let run = doc! { "$mergeObjects": ["$done", "$$run", { "since": { "$subtract": ["$$NOW", "$$took"] } }] };
    let added = doc! { "$cond": [{ "$ne": ["$done", "$r.done"] }, [run], []] };
    let kept = i64::try_from(Record::MAX_RUNS).unwrap_or(i64::MAX).saturating_neg();
    doc! { "$slice": [{ "$concatArrays": [{ "$ifNull": ["$r.runs", []] }, added] }, kept] }
}

/// Names the first waiter if it may not know when the key is available: see `notify_first` of the state machine. The queue
/// is in the order of the document again.
fn notify_first(operation: Operation) -> Document {
    let is_new = doc! { "$ne": ["$$this.caller", { "$last": "$r.queue.caller" }] };
    let is_not_granted = doc! { "$not": { "$first": "$g" } };
    let mut may_not_know = doc! { "$and": [is_new, { "$or": [is_not_granted, { "$max": "$h.released_at" }] }] };
    if operation.is_release() {
        may_not_know = doc! { "$or": [{ "$in": ["$$NOW", "$h.released_at"] }, may_not_know] };
    }
    let mut is_notified = vec![may_not_know, doc! { "$eq": [{ "$type": "$$this.caller" }, "string"] }];
    if operation.is_acquire() {
        is_notified.push(doc! { "$not": is_own(operation) });
    }
    let named = doc! { "$cond": [{ "$and": is_notified }, { "$concat": ["$$this.caller", "=0;"] }, ""] };
    doc! { "$let": { "vars": { "this": { "$last": "$q" } }, "in": named } }
}

/// When the record stops mattering, if its holders and waiters end at `end`: no earlier than the hybrid clock.
fn expiry(before: &str, end: &str) -> Document {
    // Farther than it must be, so that most writes do not change the index on it.
    let farther =
        doc! { "$add": [end, { "$min": [{ "$subtract": [end, "$$NOW"] }, document::long(Ttl::MAX.millis())] }] };
    expression::no_earlier_than_hybrid_clock(doc! { "$cond": [{ "$gte": [before, end] }, before, farther] })
}

/// Refreshes the named holders of a record, and leaves all others as they are: after this first stage, fewer than other
/// requests have, because of all requests these are the most.
fn refresh_named(first: Document) -> Vec<Document> {
    // Each holder keeps its own grace.
    let validity = doc! { "$add": ["$$validity", "$$this.grace"] };
    let holders = apply::extend_entries("$r.holders", is_named(), Some("$$fields"), validity);
    let end = doc! { "$max": ["$$NOW", { "$max": "$h.expires_at" }, { "$max": "$r.queue.expires_at" }] };
    let expires_at = doc! { "$let": { "vars": { "end": end }, "in": expiry("$r.expires_at", "$$end") } };
    let record = doc! { "holders": "$h", "handover": "", "last_seen": "$$NOW", "expires_at": expires_at };
    vec![
        doc! { "$replaceWith": first },
        doc! { "$set": { "h": { "$cond": ["$ours", holders, []] } } },
        doc! { "$replaceWith": { "$cond": ["$ours", { "$mergeObjects": ["$r", record] }, "$r"] } },
    ]
}

/// The tokens of the holders that have not expired. A released lease whose entry keeps the key
/// unavailable has ended, but a revocation ends that entry, too.
fn live_tokens(operation: Operation) -> Document {
    let live = if operation.is_revoke() {
        is_alive()
    } else {
        doc! { "$and": [is_alive(), { "$not": "$$this.released_at" }] }
    };
    let holders = doc! { "$filter": { "input": "$holders", "cond": live } };
    doc! { "$map": { "input": holders, "in": "$$this.version" } }
}

/// The tokens that a batch request names of the document's key.
fn named_tokens() -> Document {
    doc! { "$arrayElemAt": ["$$tokens", { "$indexOfArray": ["$$keys", "$_id"] }] }
}

/// Whether `this` has a named token.
fn is_named() -> Document {
    doc! { "$in": ["$$this.version", "$m"] }
}

/// Whether `this` has the lease id of the request. For acquires and leaves: the lease id and the acquire id of one of
/// them.
fn is_own(operation: Operation) -> Document {
    match operation {
        Operation::Downgrade => doc! { "$in": [["$$this.lease", "$$this.version", "$$this.limit"], "$$lease"] },
        _ if operation.is_of_several() => doc! { "$in": [["$$this.lease", "$$this.caller"], "$$lease"] },
        _ => doc! { "$eq": ["$$this.lease", "$$lease"] },
    }
}

/// The value, in a list of several, for the acquire of `this`.
fn own_value(list: &str) -> Document {
    doc! { "$arrayElemAt": [list, { "$indexOfArray": ["$$lease", ["$$this.lease", "$$this.caller"]] }] }
}

/// Whether `this` has time left.
fn is_alive() -> Document {
    doc! { "$gt": ["$$this.expires_at", "$$NOW"] }
}

#[cfg(test)]
mod tests;
