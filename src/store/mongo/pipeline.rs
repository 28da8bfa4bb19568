//! The state machine as an update pipeline: the same prune, apply, grant and stamp as
//! `record/state_machine.rs`, run by the server on the server's clocks in one atomic update. A property
//! test drives both with the same requests and demands the same records.
//!
//! The server parses this anew for every command, which costs more than running it. So each step is
//! written with as few expressions as it takes, and steps are stages and not nested `$let`s, whose
//! variables the parser copies. The first stage puts the document aside under `r`, so that the
//! others set no field that could be one of a document that is not ours:
//!
//! | field | holds |
//! |---|---|
//! | `r` | the document as it was |
//! | `ours` | whether it is a record |
//! | `m` | the tokens that a batch request names |
//! | `h`, `q` | holders and queue, on their way to what they will be; whose turn is next comes first in `q` |
//! | `n` | how many waited before those who ask together |
//! | `v`, `t` | the highest token so far, and the next one |
//! | `w.n` | how many at the head of the queue are granted the key |
//! | `g` | those, as holders |
//! | `d` | whom the request concerned |
//! | `now` | the later of the server's two clocks |
//!
//! In the document whose turn is next comes last. So a hand-over takes the end off an array, and that is all that is
//! logged of it and sent to the other members; where it took the beginning off, all who wait were logged anew. Now they
//! are where somebody is queued, for whom nobody waits yet.
//!
//! What differs from one request to the next of the same operation comes in variables, so that the rest is
//! encoded once: see `command.rs`. Their values are wrapped in `$literal`, so that no text of a caller
//! is ever read as an expression. Where a document that is not ours makes an expression fail, the
//! command fails and nothing is written; the caller of this looks at the document then.

use mongodb::bson::{Bson, Document, doc};

use super::{
    document,
    operation::{Operation, literal},
};
use crate::{Ttl, record::Record, types::token::HybridTime};

/// The update that applies a request of this operation, with its [`constants`](super::operation::constants), to the record it meets.
pub(super) fn update(operation: Operation) -> Vec<Document> {
    if operation == Operation::RefreshNamed {
        return kept();
    }
    vec![
        doc! { "$replaceWith": { "r": "$$ROOT", "ours": is_ours() } },
        doc! { "$set": pruned(operation) },
        doc! { "$set": applied(operation) },
        doc! { "$set": { "t": next_version(others(operation)), "w": ready() } },
        doc! { "$set": { "g": granted(operation), "q": { "$slice": ["$q", "$w.n", i32::MAX] } } },
        doc! { "$set": after(operation) },
        doc! { "$replaceWith": stamped(operation) },
    ]
}

/// Whether the document is a record, or one that is just being inserted. Anything else is left as it is.
fn is_ours() -> Document {
    // The query demands a `version` of each document that it finds: see `document::of`.
    doc! { "$or": [{ "$not": "$version" }, is_record()] }
}

/// Whether a document that the query found is a record. `v` and `version` are what the query says, if they are of the
/// type of a record's. Of the holders this looks at what decides whether one is dropped and whether another fits beside
/// it, and of those who wait at nothing: there may be a thousand.
pub(super) fn is_record() -> Document {
    let holders = doc! { "$map": {
        "input": "$holders", "in": [{ "$type": "$$this.expires_at" }, { "$type": "$$this.limit" }],
    } };
    doc! { "$and": [
        document::has_fields_of_a_record(),
        { "$setIsSubset": [holders, literal(vec![Bson::from(vec!["date", "int"])])] },
        document::has_revocations("$history"),
    ] }
}

/// Drops the holders and waiters whose time is over. What comes of a document that is not ours does not count: this or a
/// later expression fails on it, or the last stage leaves it as it was.
fn pruned(operation: Operation) -> Document {
    let alive = |array: &str| {
        let array = doc! { "$ifNull": [array, []] };
        doc! { "$filter": { "input": array, "cond": { "$gt": ["$$this.expires_at", "$$NOW"] } } }
    };
    let version = doc! { "$ifNull": ["$r.version", Bson::Int64(0)] };
    let queue = doc! { "$reverseArray": alive("$r.queue") };
    let mut pruned = doc! { "h": alive("$r.holders"), "q": queue, "v": version };
    if operation.is_batch() {
        pruned.insert("m", named_tokens("$r._id", "$$keys", "$$tokens"));
    }
    pruned
}

/// Turns `h` and `q` into holders and queue as the request asks.
fn applied(operation: Operation) -> Document {
    let holders = |which: Document| doc! { "$filter": { "input": "$h", "cond": which } };
    match operation {
        Operation::Acquire => {
            doc! { "h": pushed("$h", is_theirs(operation), "$$who", "$$lasts"), "q": enqueued(operation) }
        }
        Operation::Wait | Operation::AcquireSeveral => doc! {
            "h": pushed("$h", is_theirs(operation), own("$$who"), own("$$lasts")),
            "q": enqueued(operation),
            "n": { "$size": "$q" },
        },
        Operation::Refresh | Operation::Downgrade => {
            doc! { "h": pushed("$h", is_theirs(operation), "$$who", "$$lasts") }
        }
        Operation::ReleaseNamed => doc! { "h": holders(doc! { "$not": is_named() }) },
        Operation::RevokeNamed => doc! { "h": holders(doc! { "$not": is_named() }), "told": holders(is_named()) },
        Operation::Release => doc! {
            "h": holders(doc! { "$ne": [["$$this.lease", "$$this.version"], ["$$lease", "$$token"]] }),
        },
        Operation::Leave => doc! { "h": without("$h", operation), "q": without("$q", operation) },
        Operation::Revoke => doc! {
            "h": holders(doc! { "$gt": ["$$this.version", "$$upto"] }),
            "told": holders(doc! { "$lte": ["$$this.version", "$$upto"] }),
        },
        Operation::Transfer => transferred(),
        Operation::Raise => doc! { "v": { "$max": ["$v", "$$to"] } },
        // A stage has to set something. The other has stages of its own.
        Operation::Prune | Operation::RefreshNamed => doc! { "h": "$h" },
    }
}

/// `h` with the holder as the other lease, with the next token; or where that was done before, counted.
fn transferred() -> Document {
    let version = next_version(doc! { "$size": "$q" });
    let next = doc! { "$mergeObjects": ["$$this", {
        "lease": "$$to",
        "version": version.clone(),
        "refreshes": 0_i64,
        "since": "$$NOW",
        "last_seen": "$$NOW",
        "expires_at": { "$add": ["$$NOW", "$$this.ttl", "$$this.grace"] },
    }] };
    let counted = doc! { "$mergeObjects": ["$$this", { "refreshes": { "$add": ["$$this.refreshes", 1] } }] };
    let is_holder = doc! { "$eq": [["$$this.lease", "$$this.version"], ["$$lease", "$$token"]] };
    let given = doc! { "$map": { "input": "$h", "in": { "$cond": [is_holder, next, "$$this"] } } };
    let is_other = doc! { "$eq": ["$$this.lease", "$$to"] };
    let again = doc! { "$map": { "input": "$h", "in": { "$cond": [is_other, counted, "$$this"] } } };
    let others = doc! { "$filter": { "input": "$q", "cond": { "$ne": ["$$this.lease", "$$to"] } } };
    // Whether the other one holds already, and whether there is something to give.
    let done = doc! { "$in": ["$$to", "$h.lease"] };
    let held = doc! { "$map": { "input": "$h", "in": ["$$this.lease", "$$this.version"] } };
    let held_by_giver = doc! { "$in": [["$$lease", "$$token"], held] };
    let waited = doc! { "$filter": { "input": "$q", "cond": { "$eq": ["$$this.lease", "$$to"] } } };
    let choose = |again: Bson, given: Bson, neither: Bson| {
        doc! { "$cond": [done.clone(), again, { "$cond": [held_by_giver.clone(), given, neither] }] }
    };
    doc! {
        "h": choose(again.into(), given.into(), "$h".into()),
        "q": choose("$q".into(), others.into(), "$q".into()),
        "v": choose("$v".into(), version.into(), "$v".into()),
        "told": choose(Bson::Array(vec![]), waited.into(), Bson::Array(vec![])),
    }
}

/// An array with the entries that are meant pushed out, the push counted, and some of it said anew.
fn pushed(array: &str, which: Document, anew: impl Into<Bson>, lasts: impl Into<Bson>) -> Document {
    let kept = doc! { "$mergeObjects": ["$$this", anew.into(), {
        "refreshes": { "$add": ["$$this.refreshes", 1] },
        "last_seen": { "$max": ["$$this.last_seen", "$$NOW"] },
        "expires_at": { "$max": ["$$this.expires_at", { "$add": ["$$NOW", lasts.into()] }] },
    }] };
    doc! { "$map": { "input": array, "in": { "$cond": [which, kept, "$$this"] } } }
}

/// `q`, with those who ask in it unless they hold already or there is no room.
fn enqueued(operation: Operation) -> Document {
    let new = |entry: &str| {
        let expires_at = doc! { "$add": ["$$NOW", format!("{entry}.wait_ttl")] };
        doc! { "$mergeObjects": [entry, { "since": "$$NOW", "last_seen": "$$NOW", "expires_at": expires_at }] }
    };
    if operation == Operation::Acquire {
        let queued = doc! { "$concatArrays": [without("$q", operation), [new("$$entry")]] };
        return doc! { "$cond": [{ "$in": ["$$lease", "$h.lease"] }, "$q", queued] };
    }
    if operation == Operation::AcquireSeveral {
        let holds = doc! { "$in": ["$$this.lease", "$h.lease"] };
        let others = doc! { "$filter": { "input": "$$entry", "cond": { "$not": holds } } };
        let appended = doc! { "$map": { "input": others, "in": new("$$this") } };
        return doc! { "$concatArrays": [without("$q", operation), appended] };
    }
    let waiting = pushed("$q", is_theirs(operation), own("$$entry"), own("$$wait_ttl"));
    let others = doc! { "$filter": { "input": "$$entry", "cond": { "$not": { "$in": ["$$this.lease", "$$known"] } } } };
    // Looked up once, and not for each of them.
    let others = doc! { "$let": { "vars": { "known": { "$concatArrays": ["$h.lease", "$q.lease"] } }, "in": others } };
    let room = doc! { "$max": [{ "$subtract": ["$$room", { "$size": "$q" }] }, 0] };
    let appended = doc! { "$map": { "input": { "$slice": [others, room] }, "in": new("$$this") } };
    doc! { "$concatArrays": [waiting, appended] }
}

/// How many waiters at the head of `q` can hold the key together with `h`: as many as leave the
/// holders no more than the smallest limit among them. Exclusive is a limit of one. The first who has
/// to wait leaves a limit that lets nobody pass; so where the first wants it alone, nobody behind it is looked at.
fn ready() -> Document {
    let considered = doc! { "$let": {
        "vars": { "first": { "$first": "$q" } },
        "in": { "$cond": [{ "$eq": ["$$first.limit", 0] }, ["$$first"], "$q"] },
    } };
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

/// The waiters at the head of `q` as the holders they become. The first has the token
/// `max(version + 1, token(hybrid clock) - others)`; those that follow count on from it. Who asks
/// gets its ttl.
fn granted(operation: Operation) -> Document {
    let claimed = doc! { "$min": ["$$this.ttl", "$$this.wait_ttl"] };
    let lasts = if operation.is_acquire() {
        doc! { "$cond": [is_theirs(operation), "$$this.ttl", claimed] }
    } else {
        claimed
    };
    // An entry that nobody can have queued falls out when it is its turn.
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
    doc! { "$map": { "input": first, "in": { "$mergeObjects": ["$$this", {
        "version": { "$add": ["$t", { "$indexOfArray": ["$q.lease", "$$this.lease"] }] },
        "refreshes": 0_i64,
        "since": "$$NOW",
        "last_seen": "$$NOW",
        // A waiter counts from when it asked last, which can be later than this command was parsed.
        "expires_at": { "$add": [{ "$max": ["$$NOW", "$$this.last_seen"] }, lasts, "$$this.grace"] },
    }] } } }
}

/// How many others wait for whom tokens are kept in reserve: see `FencingToken::following`.
fn others(operation: Operation) -> Document {
    let others = doc! { "$subtract": [{ "$size": "$q" }, 1] };
    if matches!(operation, Operation::Wait | Operation::AcquireSeveral) {
        doc! { "$min": ["$n", others] }
    } else {
        others
    }
}

/// The first token that can be granted, with so many in reserve.
fn next_version(others: Document) -> Document {
    // The clock's second and increment as a token, from the beginning of tokens on.
    let epoch = document::long(HybridTime::EPOCH_SECONDS << HybridTime::ORDINAL_BITS);
    let second = document::long(1 << HybridTime::ORDINAL_BITS);
    doc! { "$max": [{ "$add": ["$v", 1] }, { "$subtract": [
        { "$add": [
            { "$multiply": [{ "$tsSecond": "$$CLUSTER_TIME" }, second] },
            { "$min": [{ "$tsIncrement": "$$CLUSTER_TIME" }, document::long(HybridTime::MAX_ORDINAL)] },
        ] },
        { "$add": [epoch, others] },
    ] }] }
}

/// The fields of the record after the grant, and in `d` whom it concerned. Who asks learns of its own
/// grant by the answer, and is taken off the queue if it does not wait.
fn after(operation: Operation) -> Document {
    let told = doc! { "$concat": ["$$value", "$$this.caller", "=", { "$toString": "$$this.version" }, ";"] };
    let told = if operation.is_acquire() {
        doc! { "$cond": [is_theirs(operation), "$$value", told] }
    } else {
        told
    };
    let taken: Bson = if operation.is_revoke() || operation == Operation::Transfer {
        let each = doc! { "$concat": ["$$value", "$$this.caller", "=0;"] };
        doc! { "$reduce": { "input": "$told", "initialValue": "", "in": each } }.into()
    } else {
        "".into()
    };
    let gives_up = matches!(operation, Operation::Acquire | Operation::AcquireSeveral);
    let queue = if gives_up { without("$q", operation).into() } else { Bson::from("$q") };
    doc! {
        "h": { "$concatArrays": ["$h", "$g"] },
        "q": { "$reverseArray": queue },
        "v": { "$max": ["$v", { "$max": "$g.version" }] },
        "d": { "$reduce": { "input": "$g", "initialValue": taken, "in": told } },
        "now": latest(),
    }
}

/// The record afterwards: as it was, unless something changed; then with its times moved on.
fn stamped(operation: Operation) -> Document {
    let mut history = doc! { "$ifNull": ["$r.history", []] };
    if operation.is_revoke() {
        let revocation = doc! { "by": "$$by", "reason": "$$reason", "at": "$$NOW", "tokens": "$told.version" };
        let kept = i64::try_from(Record::MAX_HISTORY).unwrap_or(i64::MAX).saturating_neg();
        let added = doc! { "$cond": [{ "$size": "$told" }, [revocation], []] };
        history = doc! { "$slice": [{ "$concatArrays": [history, added] }, kept] };
    }
    let mut expires_at = expiry("$r.expires_at", "$now", "$h", "$q");
    if operation == Operation::Raise {
        expires_at = doc! { "$max": [expires_at, "$$until"] };
    }
    let record = doc! {
        "version": "$v",
        "holders": "$h",
        "queue": "$q",
        "handover": "$d",
        "history": history,
        "last_seen": "$$NOW",
        "expires_at": expires_at,
    };
    let changed = doc! { "$ne": [["$v", "$h", "$q"], ["$r.version", "$r.holders", "$r.queue"]] };
    // What was no record, and was neither granted to anybody nor raised, is none afterwards.
    let writes = doc! { "$and": ["$ours", changed, { "$gt": ["$v", 0] }] };
    doc! { "$cond": [writes, { "$mergeObjects": ["$r", record] }, "$r"] }
}

/// When the record has stopped mattering.
fn expiry(before: &str, now: &str, holders: &str, queue: &str) -> Document {
    let each = |entries: &str| doc! { "$max": format!("{entries}.expires_at") };
    let more = doc! { "$subtract": ["$$end", now] };
    doc! { "$let": { "vars": { "end": { "$max": [now, each(holders), each(queue)] } }, "in": { "$cond": [
        { "$gte": [before, "$$end"] },
        before,
        // Twice as far as it must, so that most writes leave the index on it alone.
        { "$add": ["$$end", { "$cond": [{ "$lte": [&more, document::long(Ttl::MAX.millis())] }, &more, 0] }] },
    ] } } }
}

/// Keeps the named holders of a record alive, and leaves all others as they are. What it is applied to is
/// a record already.
fn kept() -> Vec<Document> {
    // Of several holders each keeps its own grace.
    let named = named_tokens("$_id", "$$keys", "$$tokens");
    let is_named = doc! { "$in": ["$$this.version", named] };
    let holders = pushed("$holders", is_named, "$$who", doc! { "$add": ["$$lasts", "$$this.grace"] });
    let expires_at = expiry("$expires_at", "$$now", "$holders", "$queue");
    vec![
        doc! { "$set": { "holders": holders, "handover": "", "last_seen": "$$NOW" } },
        doc! { "$set": { "expires_at": { "$let": { "vars": { "now": latest() }, "in": expires_at } } } },
    ]
}

/// The later of the server's two clocks.
fn latest() -> Document {
    doc! { "$max": ["$$NOW", { "$toDate": "$$CLUSTER_TIME" }] }
}

/// The tokens of the holders of a record that have enough time left, for a filter.
pub(super) fn lasting() -> Document {
    let enough = doc! { "$gte": ["$$this.expires_at", { "$add": ["$$NOW", "$$least"] }] };
    let lasting = doc! { "$filter": { "input": "$holders", "cond": enough } };
    doc! { "$map": { "input": lasting, "in": "$$this.version" } }
}

/// The tokens that are named of a key.
fn named_tokens(key: &str, keys: impl Into<Bson>, tokens: impl Into<Bson>) -> Document {
    doc! { "$arrayElemAt": [tokens.into(), { "$indexOfArray": [keys.into(), key] }] }
}

/// Whether `this` is named by its token.
fn is_named() -> Document {
    doc! { "$in": ["$$this.version", "$m"] }
}

/// Whether `this` is of the lease, or of one of several.
fn is_theirs(operation: Operation) -> Document {
    match operation {
        Operation::Leave => doc! { "$in": [["$$this.lease", "$$this.caller"], "$$lease"] },
        Operation::Downgrade => doc! { "$in": [["$$this.lease", "$$this.version", "$$this.limit"], "$$lease"] },
        _ if operation.is_of_several() => doc! { "$in": ["$$this.lease", "$$lease"] },
        _ => doc! { "$eq": ["$$this.lease", "$$lease"] },
    }
}

/// What a list of several, in the order of their leases, says of the lease that `this` is of.
fn own(list: &str) -> Document {
    doc! { "$arrayElemAt": [list, { "$indexOfArray": ["$$lease", "$$this.lease"] }] }
}

/// An array less the entries of the lease, or of several.
fn without(array: &str, operation: Operation) -> Document {
    let is_other = if operation.is_of_several() {
        doc! { "$not": is_theirs(operation) }
    } else {
        doc! { "$ne": ["$$this.lease", "$$lease"] }
    };
    doc! { "$filter": { "input": array, "cond": is_other } }
}
