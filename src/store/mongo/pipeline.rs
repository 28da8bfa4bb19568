//! The state machine as an update pipeline: the same prune, apply, grant and stamp as
//! `record/machine.rs`, run by the server on the server's clocks in one atomic update. A property
//! test drives both with the same requests and demands the same records.
//!
//! One `$replaceWith` of nested `$let`s, because a stage that sets helper fields could overwrite
//! those of a document that is not ours. Every value of a request is wrapped in `$literal`, so
//! that no text of a caller is ever read as an expression.

use mongodb::bson::{Bson, Document, doc};

use super::document;
use crate::{
    LeaseId,
    record::{Acquire, Patience, Record, Refresh, Release, Request, Revoke},
    token::Tick,
};

/// The update that applies `request` to the record it meets.
pub(super) fn update(request: &Request) -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [is_ours(), prune(request), "$$ROOT"] } }]
}

/// Whether the document is a record that can be read, or one that is just being inserted. Anything
/// else is left as it is: so this looks at all that `document.rs` does.
fn is_ours() -> Bson {
    let fresh = doc! { "$eq": [{ "$size": { "$objectToArray": "$$ROOT" } }, 1] };
    let terms = [
        ("lease", "binData"),
        ("caller", "string"),
        ("owner", "string"),
        ("limit", "int"),
        ("ttl", "long"),
        ("grace", "long"),
        ("metadata", "object"),
    ];
    let holder = [
        ("version", "long"),
        ("refreshes", "long"),
        ("acquired_at", "date"),
        ("last_seen", "date"),
        ("expires_at", "date"),
    ];
    let waiter = [("patience", "long"), ("asks", "long"), ("until", "date")];
    let revoked = doc! { "$or": [
        { "$eq": [{ "$type": "$revoked" }, "missing"] },
        { "$and": [
            types("$revoked.", &[("by", "string"), ("reason", "string"), ("at", "date")]),
            each_is("$revoked.leases", is_lease("$$entry")),
        ] },
    ] };
    Bson::Document(doc! { "$or": [fresh, { "$and": [
        types("$", &[("version", "long"), ("handed", "string"), ("last_seen", "date"), ("expires_at", "date")]),
        is_version("$version"),
        each_is("$holders", doc! { "$and": [
            types("$$entry.", &[terms.as_slice(), &holder].concat()),
            is_lease("$$entry.lease"),
            is_version("$$entry.version"),
            { "$gte": [{ "$min": ["$$entry.limit", "$$entry.ttl", "$$entry.grace", "$$entry.refreshes"] }, 0] },
        ] }),
        each_is("$queue", doc! { "$and": [
            types("$$entry.", &[terms.as_slice(), &waiter].concat()),
            is_lease("$$entry.lease"),
            { "$gte": [{ "$min": ["$$entry.limit", "$$entry.ttl", "$$entry.grace", "$$entry.patience", "$$entry.asks"] }, 0] },
        ] }),
        revoked,
    ] }] })
}

/// Whether a number can be a token with room to grow.
fn is_version(of: &str) -> Document {
    doc! { "$and": [{ "$gte": [of, 1] }, { "$lte": [of, document::long(Record::MAX_VERSION)] }] }
}

/// Whether a value is a UUID. Binary values are ordered by length, then subtype, then content.
fn is_lease(of: &str) -> Document {
    let bound = |byte| document::lease(LeaseId::from_bytes([byte; 16]));
    doc! { "$and": [{ "$gte": [of, bound(0)] }, { "$lte": [of, bound(255)] }] }
}

/// Whether the fields of `of` have these types.
fn types(of: &str, fields: &[(&str, &str)]) -> Document {
    let (actual, wanted): (Vec<Document>, Vec<&str>) =
        fields.iter().map(|(name, kind)| (doc! { "$type": format!("{of}{name}") }, *kind)).unzip();
    doc! { "$eq": [actual, wanted] }
}

/// Whether `array` is an array for whose every `entry` this holds.
fn each_is(array: &str, holds: Document) -> Document {
    // What is no array stands in as one with an entry that is nothing.
    let entries = doc! { "$cond": [{ "$isArray": array }, array, [0]] };
    doc! { "$allElementsTrue": [{ "$map": { "input": entries, "as": "entry", "in": holds } }] }
}

/// Drops the holders and waiters whose time is over, then goes on to the request.
fn prune(request: &Request) -> Bson {
    let alive = |array: &str, time: &str| {
        doc! { "$filter": {
            "input": { "$ifNull": [array, []] },
            "as": "entry",
            "cond": { "$gt": [format!("$$entry.{time}"), "$$NOW"] },
        } }
    };
    with(doc! { "held": alive("$holders", "expires_at"), "waiting": alive("$queue", "until") }, apply(request))
}

/// Turns `held` and `waiting` into `holders` and `queue` as the request asks, then grants.
fn apply(request: &Request) -> Bson {
    match request {
        Request::Acquire(acquire) => {
            let terms = &acquire.terms;
            let who = doc! {
                "owner": literal(terms.owner.as_str()), "metadata": literal(document::metadata(&terms.metadata)),
            };
            let holders = push_out(terms.lease, terms.ttl, terms.grace, who);
            with(doc! { "holders": holders, "queue": enqueue(acquire) }, grant(request))
        }
        Request::Refresh(Refresh { lease, ttl, grace }) => {
            with(doc! { "holders": push_out(*lease, *ttl, *grace, doc! {}), "queue": "$$waiting" }, grant(request))
        }
        Request::Release(Release { lease, token: None }) => {
            with(doc! { "holders": without("$$held", *lease), "queue": without("$$waiting", *lease) }, grant(request))
        }
        Request::Release(Release { lease, token: Some(token) }) => {
            let other = doc! { "$not": { "$and": [is(*lease), { "$eq": ["$$entry.version", *token] }] } };
            let holders = doc! { "$filter": { "input": "$$held", "as": "entry", "cond": other } };
            with(doc! { "holders": holders, "queue": "$$waiting" }, grant(request))
        }
        Request::Revoke(_) => with(doc! { "holders": [], "queue": "$$waiting" }, grant(request)),
    }
}

/// `held`, with the expiry of this lease pushed out, the push counted, and `who` it is said anew.
fn push_out(lease: LeaseId, ttl: u64, grace: u64, who: Document) -> Bson {
    let kept = doc! { "$mergeObjects": ["$$entry", {
        "ttl": literal(document::long(ttl)),
        "grace": literal(document::long(grace)),
        "refreshes": { "$add": ["$$entry.refreshes", Bson::Int64(1)] },
        "last_seen": "$$NOW",
        "expires_at": { "$max": ["$$entry.expires_at", later(document::long(ttl.saturating_add(grace)))] },
    }, who] };
    each("$$held", doc! { "$cond": [is(lease), kept, "$$entry"] })
}

/// `waiting`, with the one who asks in it unless it holds already or there is no room.
fn enqueue(Acquire { terms, patience }: &Acquire) -> Bson {
    let lease = terms.lease;
    let lasts = patience.map_or(0, |patience| patience.lasts);
    let until = doc! { "$add": ["$$NOW", document::long(lasts)] };
    let entry = doc! {
        "lease": document::lease(lease),
        "caller": terms.caller.to_string(),
        "owner": terms.owner.as_str(),
        "limit": document::int(terms.limit),
        "ttl": document::long(terms.ttl),
        "grace": document::long(terms.grace),
        "patience": document::long(lasts),
        "metadata": document::metadata(&terms.metadata),
    };
    let new = doc! { "$mergeObjects": [literal(entry.clone()), { "asks": Bson::Int64(0), "until": until.clone() }] };
    let queued = match patience {
        None => doc! { "$concatArrays": [without("$$waiting", lease), [new]] },
        Some(Patience { room, .. }) => {
            let pushed = doc! { "$mergeObjects": ["$$entry", literal(entry), {
                "asks": { "$add": ["$$entry.asks", Bson::Int64(1)] },
                "until": { "$max": ["$$entry.until", until] },
            }] };
            doc! { "$switch": {
                "branches": [
                    {
                        "case": among("$$waiting", lease),
                        "then": each("$$waiting", doc! { "$cond": [is(lease), pushed, "$$entry"] }),
                    },
                    {
                        "case": { "$lt": [{ "$size": "$$waiting" }, document::int(*room)] },
                        "then": { "$concatArrays": ["$$waiting", [new]] },
                    },
                ],
                "default": "$$waiting",
            } }
        }
    };
    Bson::Document(doc! { "$cond": [among("$$held", lease), "$$waiting", queued] })
}

/// Moves the head of `queue` to `holders` as far as it is compatible, then stamps.
fn grant(request: &Request) -> Bson {
    let after = with(granted(request), stamp(request));
    let granting = with(doc! { "granted": admitted(request) }, after);
    with(doc! { "ready": ready() }, with(doc! { "first": next_version() }, granting))
}

/// How many waiters at the head of `queue` can hold the key together with `holders`.
fn ready() -> Bson {
    // `$min` passes over null: without holders the limit is the waiter's own.
    let together = doc! { "$min": ["$$value.limit", "$$this.limit"] };
    let admitted = doc! { "$and": [
        "$$value.open",
        { "$or": [{ "$eq": ["$$value.count", 0] }, { "$lt": ["$$value.count", "$$together"] }] },
    ] };
    let step = with(
        doc! { "together": together },
        with(
            doc! { "admitted": admitted },
            Bson::Document(doc! {
                "count": { "$add": ["$$value.count", 1] },
                "limit": "$$together",
                "open": "$$admitted",
                "ready": { "$add": ["$$value.ready", { "$cond": ["$$admitted", 1, 0] }] },
            }),
        ),
    );
    let start = doc! {
        "count": { "$size": "$$holders" },
        "limit": { "$min": "$$holders.limit" },
        "open": true,
        "ready": 0,
    };
    let walked = doc! { "$reduce": { "input": "$$queue", "initialValue": start, "in": step } };
    with(doc! { "walked": walked }, "$$walked.ready")
}

/// The token of the first grant: `max(version + 1, token(hybrid clock))`. Those of the same request
/// that follow count on from it.
fn next_version() -> Document {
    let epoch = document::long(Tick::EPOCH_SECONDS);
    let second = document::long(1 << Tick::ORDINAL_BITS);
    let by_clock = doc! { "$add": [
        { "$multiply": [{ "$subtract": [{ "$tsSecond": "$$CLUSTER_TIME" }, epoch] }, second] },
        { "$min": [{ "$tsIncrement": "$$CLUSTER_TIME" }, document::long(Tick::MAX_ORDINAL)] },
    ] };
    doc! { "$max": [{ "$add": [old_version(), Bson::Int64(1)] }, by_clock] }
}

/// The waiters at the head of `queue` as the holders they become.
fn admitted(request: &Request) -> Document {
    let asking = match request {
        Request::Acquire(acquire) => Some(acquire.terms.lease),
        _ => None,
    };
    let claimed = doc! { "$min": ["$$entry.ttl", "$$entry.patience"] };
    let lasts = match asking {
        Some(lease) => doc! { "$cond": [is(lease), "$$entry.ttl", claimed] },
        None => claimed,
    };
    let holder = with(
        doc! { "entry": { "$arrayElemAt": ["$$queue", "$$index"] } },
        Bson::Document(doc! {
            "lease": "$$entry.lease",
            "caller": "$$entry.caller",
            "owner": "$$entry.owner",
            "version": { "$add": ["$$first", { "$toLong": "$$index" }] },
            "limit": "$$entry.limit",
            "ttl": "$$entry.ttl",
            "grace": "$$entry.grace",
            "refreshes": Bson::Int64(0),
            "acquired_at": "$$NOW",
            "last_seen": "$$NOW",
            "expires_at": { "$add": ["$$NOW", lasts, "$$entry.grace"] },
            "metadata": "$$entry.metadata",
        }),
    );
    doc! { "$map": { "input": { "$range": [0, "$$ready"] }, "as": "index", "in": holder } }
}

/// `version_`, `holders_`, `queue_` and `handed_`: the record's fields after the grant.
fn granted(request: &Request) -> Document {
    let rest = doc! { "$slice": ["$$queue", "$$ready", { "$max": [1, { "$size": "$$queue" }] }] };
    let rest = match request {
        Request::Acquire(Acquire { terms, patience: None }) => without(rest, terms.lease),
        _ => rest.into(),
    };
    // The one who asks learns of its own grant by the answer.
    let handed = match request {
        Request::Acquire(Acquire { terms, .. }) => without("$$granted", terms.lease),
        _ => "$$granted".into(),
    };
    doc! {
        "version_": { "$cond": [
            { "$gt": ["$$ready", 0] },
            { "$add": ["$$first", { "$toLong": { "$subtract": ["$$ready", 1] } }] },
            old_version(),
        ] },
        "holders_": { "$concatArrays": ["$$holders", "$$granted"] },
        "queue_": rest,
        "handed_": { "$reduce": { "input": handed, "initialValue": "", "in": {
            "$concat": ["$$value", "$$this.caller", "=", { "$toString": "$$this.version" }, ";"],
        } } },
    }
}

/// The record afterwards: as it was, unless something changed; then with its times moved on.
fn stamp(request: &Request) -> Bson {
    let hybrid = doc! { "$toDate": { "$multiply": [{ "$tsSecond": "$$CLUSTER_TIME" }, Bson::Int64(1000)] } };
    let mut changed = vec![
        doc! { "$ne": ["$$version_", old_version()] },
        doc! { "$ne": ["$$holders_", { "$ifNull": ["$holders", []] }] },
        doc! { "$ne": ["$$queue_", { "$ifNull": ["$queue", []] }] },
    ];
    let mut record = doc! {
        "version": "$$version_",
        "holders": "$$holders_",
        "queue": "$$queue_",
        "handed": "$$handed_",
        "last_seen": "$$NOW",
        "expires_at": { "$max": [
            "$expires_at", "$$NOW", hybrid, { "$max": "$$holders_.expires_at" }, { "$max": "$$queue_.until" },
        ] },
    };
    if let Request::Revoke(Revoke { by, reason }) = request {
        let any = doc! { "$gt": [{ "$size": "$$held" }, 0] };
        let revocation = doc! {
            "by": literal(by.as_str()), "reason": literal(reason.as_str()), "at": "$$NOW", "leases": "$$held.lease",
        };
        record.insert("revoked", doc! { "$cond": [any.clone(), revocation, "$revoked"] });
        changed.push(any);
    }
    Bson::Document(doc! { "$cond": [
        { "$or": changed },
        { "$mergeObjects": ["$$ROOT", record] },
        "$$ROOT",
    ] })
}

fn old_version() -> Bson {
    Bson::Document(doc! { "$ifNull": ["$version", Bson::Int64(0)] })
}

/// Whether `entry` is of this lease.
fn is(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$entry.lease", document::lease(lease)] }
}

/// Whether an entry of `array` is of this lease.
fn among(array: &str, lease: LeaseId) -> Document {
    doc! { "$in": [document::lease(lease), format!("{array}.lease")] }
}

/// `array` less the entries of this lease.
fn without(array: impl Into<Bson>, lease: LeaseId) -> Bson {
    let other = doc! { "$ne": ["$$entry.lease", document::lease(lease)] };
    let array: Bson = array.into();
    Bson::Document(doc! { "$filter": { "input": array, "as": "entry", "cond": other } })
}

/// `array` with each `entry` replaced.
fn each(array: &str, by: Document) -> Bson {
    Bson::Document(doc! { "$map": { "input": array, "as": "entry", "in": by } })
}

/// So many milliseconds from now.
fn later(millis: Bson) -> Document {
    doc! { "$add": ["$$NOW", millis] }
}

fn literal(value: impl Into<Bson>) -> Document {
    let value: Bson = value.into();
    doc! { "$literal": value }
}

fn with(vars: Document, then: impl Into<Bson>) -> Bson {
    let then: Bson = then.into();
    Bson::Document(doc! { "$let": { "vars": vars, "in": then } })
}
