//! The second step of the pipeline: what a request changes.

use mongodb::bson::{Bson, Document, doc};

use super::{is_named, is_own, next_version, own_value};
use crate::{
    store::mongo::{document, operation::Operation},
    types::{lease_id::LeaseId, sharing::Sharing},
};

/// Changes `h` and `q` as the request wants.
pub(super) fn changes(operation: Operation) -> Document {
    let holders = |which: Document| doc! { "$filter": { "input": "$h", "cond": which } };
    match operation {
        Operation::Acquire | Operation::Wait => doc! {
            "h": extend_entries("$h", is_own(operation), None, own_value("$$validity")),
            "q": enqueue(operation),
            "n": { "$size": "$q" },
        },
        Operation::Refresh | Operation::Downgrade => {
            doc! { "h": extend_entries("$h", is_own(operation), Some("$$fields"), "$$validity") }
        }
        Operation::ReleaseNamed => {
            doc! { "h": release(doc! { "$and": [is_named(), { "$not": "$$this.released_at" }] }) }
        }
        Operation::RevokeNamed => doc! { "h": holders(doc! { "$not": is_named() }), "notified": holders(is_named()) },
        Operation::Release => doc! { "h": release(is_exact()) },
        Operation::Complete => doc! { "h": release(is_exact()), "done": complete() },
        Operation::Reset => {
            let lowered = doc! { "$mergeObjects": ["$r.done", { "tick": "$$tick", "by": "$$by", "at": "$$NOW" }] };
            // A missing tick is less than each, so nothing is lowered.
            let is_meant = doc! { "$and": [
                { "$gt": ["$r.done.tick", "$$tick"] }, { "$lte": ["$r.done.token", "$$upto"] },
            ] };
            doc! { "done": { "$cond": [is_meant, lowered, "$r.done"] } }
        }
        Operation::PutValue => put_value(false),
        Operation::ReleaseWithValue => put_value(true),
        Operation::Leave => {
            let others = |array: &str| doc! { "$filter": { "input": array, "cond": { "$not": is_own(operation) } } };
            doc! { "h": others("$h"), "q": others("$q") }
        }
        Operation::Revoke => doc! {
            "h": holders(doc! { "$gt": ["$$this.version", "$$upto"] }),
            "notified": holders(doc! { "$lte": ["$$this.version", "$$upto"] }),
        },
        Operation::Transfer => transfer(false),
        Operation::Upgrade => transfer(true),
        Operation::Raise => doc! { "v": { "$max": ["$v", "$$to"] } },
        // A stage must set something. `RefreshNamed` has stages of its own.
        Operation::Prune | Operation::RefreshNamed => doc! { "h": "$h" },
    }
}

/// `h` after the release of the holders for which `which` holds. If the minimum hold of a holder is not over, its entry
/// stays until then.
fn release(which: Document) -> Document {
    // Null if there is no minimum hold, and then less than each time.
    let end = doc! { "$add": ["$$this.since", "$$this.min_hold"] };
    let released = doc! { "$mergeObjects": ["$$this", {
        "lease": document::encode_lease(LeaseId::NONE),
        "released_at": "$$NOW",
        "not_after": end.clone(),
        "expires_at": end,
    }] };
    let all = doc! { "$map": { "input": "$h", "in": { "$cond": [which, released, "$$this"] } } };
    doc! { "$filter": { "input": all, "cond": { "$gt": ["$$this.expires_at", "$$NOW"] } } }
}

/// The last completed tick after a completion.
fn complete() -> Document {
    let is_revoked = doc! { "$map": { "input": "$r.history", "in": { "$in": ["$$token", "$$this.tokens"] } } };
    let is_newest = doc! { "$and": [{ "$eq": ["$v", "$$token"] }, { "$not": { "$anyElementTrue": is_revoked } }] };
    // A missing tick is less than each.
    let is_new = doc! { "$and": [{ "$lt": ["$r.done.tick", "$$tick"] }, { "$ne": ["$r.done.token", "$$token"] }] };
    let completed = doc! { "tick": "$$tick", "token": "$$token", "by": "$$by", "at": "$$NOW" };
    doc! { "$cond": [{ "$and": [is_new, { "$or": [is_newest, holds_exactly()] }] }, completed, "$r.done"] }
}

/// Puts the value if the lease holds the key exclusively and the write follows the last one, and then releases the lease if
/// the write does so. Otherwise counts the request.
fn put_value(releases: bool) -> Document {
    let putting = doc! { "$and": [is_exact(), { "$lte": ["$$this.limit", 1] }] };
    let held = doc! { "$map": { "input": "$h", "in": putting.clone() } };
    let last = doc! { "$cond": [{ "$eq": ["$r.value.token", "$$token"] }, "$r.value.write", 0] };
    let is_put = doc! { "$and": [{ "$anyElementTrue": held }, { "$eq": [last, "$$after"] }] };
    // Its expiry stays, as that of a downgrade.
    let counted = extend_entries("$h", putting, None, 0_i64);
    let h = if releases {
        doc! { "$cond": [is_put.clone(), release(is_exact()), counted] }
    } else {
        counted
    };
    let value = doc! { "$mergeObjects": ["$$value", { "at": "$$NOW" }] };
    doc! { "h": h, "value": { "$cond": [is_put, value, "$r.value"] } }
}

/// Whether `this` has the lease id and the token of the request.
fn is_exact() -> Document {
    doc! { "$eq": [["$$this.lease", "$$this.version"], ["$$lease", "$$token"]] }
}

/// Whether the key has a holder with the lease id and the token of the request.
fn holds_exactly() -> Document {
    let held = doc! { "$map": { "input": "$h", "in": ["$$this.lease", "$$this.version"] } };
    doc! { "$in": [["$$lease", "$$token"], held] }
}

/// Gives the holder in `h` the other lease id and the next token. If that was done before, counts the request.
/// `exclusively`: only if no other lease holds the key, and it excludes others from then on.
fn transfer(exclusively: bool) -> Document {
    let version = next_version(doc! { "$size": "$q" });
    let mut receiver = doc! {
        "lease": "$$to",
        "version": version.clone(),
        "refreshes": 0_i64,
        "since": "$$NOW",
        "last_seen": "$$NOW",
        "expires_at": { "$min": ["$$this.not_after", { "$add": ["$$NOW", "$$this.ttl", "$$this.grace"] }] },
    };
    if exclusively {
        receiver.insert("limit", document::int(Sharing::Exclusive.limit()));
    }
    let next = doc! { "$mergeObjects": ["$$this", receiver] };
    let counted = doc! { "$mergeObjects": ["$$this", { "refreshes": { "$add": ["$$this.refreshes", 1] } }] };
    let given = doc! { "$map": { "input": "$h", "in": { "$cond": [is_exact(), next, "$$this"] } } };
    let is_other = doc! { "$eq": ["$$this.lease", "$$to"] };
    let again = doc! { "$map": { "input": "$h", "in": { "$cond": [is_other, counted, "$$this"] } } };
    // Whether the receiver holds already, and whether the giver holds.
    let is_done = doc! { "$in": ["$$to", "$h.lease"] };
    let is_alone = doc! { "$eq": [{ "$size": "$h" }, 1] };
    let is_held_by_giver = if exclusively {
        doc! { "$and": [is_alone, holds_exactly()] }
    } else {
        holds_exactly()
    };
    let choose = |again: Bson, given: Bson, neither: Bson| {
        doc! { "$cond": [is_done.clone(), again, { "$cond": [is_held_by_giver.clone(), given, neither] }] }
    };
    doc! {
        "h": choose(again.into(), given.into(), "$h".into()),
        "v": choose("$v".into(), version.into(), "$v".into()),
    }
}

/// Extends the expiry of the entries of an array for which `which` holds, counts that, and sets the fields of `fields`,
/// if there are any.
pub(super) fn extend_entries(
    array: &str,
    which: Document,
    fields: Option<&str>,
    validity: impl Into<Bson>,
) -> Document {
    let extended = doc! {
        "refreshes": { "$add": ["$$this.refreshes", 1] },
        "last_seen": { "$max": ["$$this.last_seen", "$$NOW"] },
        "expires_at": { "$min": [
            // Missing if the lease has no maximum hold.
            "$$this.not_after",
            { "$max": ["$$this.expires_at", { "$add": ["$$NOW", validity.into()] }] },
        ] },
    };
    let parts = [Some(Bson::from("$$this")), fields.map(Bson::from), Some(extended.into())];
    let extended = doc! { "$mergeObjects": parts.into_iter().flatten().collect::<Vec<_>>() };
    doc! { "$map": { "input": array, "in": { "$cond": [which, extended, "$$this"] } } }
}

/// Puts acquires into `q` whose lease ids neither hold nor wait, if there is room.
fn enqueue(operation: Operation) -> Document {
    let known = doc! { "$concatArrays": ["$h.lease", "$q.lease"] };
    let others = doc! { "$filter": { "input": "$$entry", "cond": { "$not": { "$in": ["$$this.lease", "$$known"] } } } };
    // Computed once, and not for each acquire.
    let others = doc! { "$let": { "vars": { "known": known }, "in": others } };
    if operation == Operation::Acquire {
        // An entry leaves the queue after the grant, so it needs no times but those that the grant looks at.
        let new = doc! { "$mergeObjects": ["$$this", { "last_seen": "$$NOW", "expires_at": "$$NOW" }] };
        return doc! { "$concatArrays": ["$q", { "$map": { "input": others, "in": new } }] };
    }
    let waiting = extend_entries("$q", is_own(operation), None, own_value("$$wait_ttl"));
    let room = doc! { "$max": [{ "$subtract": ["$$queue_limit", { "$size": "$q" }] }, 0] };
    let new = doc! { "$mergeObjects": ["$$this", {
        "since": "$$NOW", "last_seen": "$$NOW", "expires_at": { "$add": ["$$NOW", "$$this.wait_ttl"] },
    }] };
    let appended = doc! { "$map": { "input": { "$slice": [others, room] }, "in": new } };
    doc! { "$concatArrays": [waiting, appended] }
}
