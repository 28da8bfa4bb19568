//! The operations: requests that share a pipeline and a projection.
//!
//! Purpose: the server parses a pipeline for each command. The client encodes it once for all requests of an operation.
//!
//! Mechanism: what differs between requests of an operation is in constants.
//!
//! Invariant: the server never evaluates a value of a caller as an expression.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{document, json};
use crate::{
    record::{
        Acquire, BatchRequest, Complete, Downgrade, HoldLimits, PutValue, Raise, Refresh, Release, Request, Reset,
        Revoke, Transfer,
    },
    types::{acquire_id::AcquireId, group::Group, lease_id::LeaseId},
};

/// What a command does. All requests of an operation have the same pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// Acquires without waiting, for one lease or several of a key.
    Acquire,
    /// Acquires or waits, for one lease or several of a key.
    Wait,
    Refresh,
    /// Releases what a lease id holds with this token.
    Release,
    /// Releases what an acquire was granted, or leaves its place in the queue; for one acquire or several of a key.
    Leave,
    Revoke,
    Transfer,
    /// Transfers what a lease id holds alone with this token, and lets no other share the key.
    Upgrade,
    Downgrade,
    Raise,
    /// Completes a tick and releases what a lease id holds with this token.
    Complete,
    /// Lowers the last completed tick.
    Reset,
    PutValue,
    /// Puts the value and releases the lease.
    ReleaseWithValue,
    /// Does only what all operations do: prune and grant.
    Prune,
    /// Requests for the leases of several keys, named by their tokens.
    ReleaseNamed,
    RevokeNamed,
    RefreshNamed,
}

impl Operation {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Acquire(Acquire { wait: None, .. }) => Self::Acquire,
            Request::Acquire(Acquire { wait: Some(_), .. }) => Self::Wait,
            Request::Refresh(_) => Self::Refresh,
            Request::Release(_) => Self::Release,
            Request::Leave(_) => Self::Leave,
            Request::Revoke(_) => Self::Revoke,
            Request::Transfer(_) => Self::Transfer,
            Request::Upgrade(_) => Self::Upgrade,
            Request::Downgrade(_) => Self::Downgrade,
            Request::Raise(_) => Self::Raise,
            Request::Complete(_) => Self::Complete,
            Request::Reset(_) => Self::Reset,
            Request::PutValue(put) if put.releases => Self::ReleaseWithValue,
            Request::PutValue(_) => Self::PutValue,
            Request::Prune => Self::Prune,
        }
    }

    pub(super) fn of_batch(batch: &BatchRequest) -> Self {
        match batch {
            BatchRequest::Release => Self::ReleaseNamed,
            BatchRequest::Revoke { .. } => Self::RevokeNamed,
            BatchRequest::Keep { .. } => Self::RefreshNamed,
        }
    }

    /// Whether it is for several leases that are named by their tokens.
    pub(super) fn is_batch(self) -> bool {
        matches!(self, Self::ReleaseNamed | Self::RevokeNamed | Self::RefreshNamed)
    }

    /// Whether a command can apply several requests of a key. Its constants are lists of the same length, with one entry for
    /// each request.
    pub(super) fn is_of_several(self) -> bool {
        matches!(self, Self::Acquire | Self::Wait | Self::Leave)
    }

    /// Whether it takes the key from its holders.
    pub(super) fn is_revoke(self) -> bool {
        matches!(self, Self::Revoke | Self::RevokeNamed)
    }

    /// Whether it releases leases that are named by their tokens.
    pub(super) fn is_release(self) -> bool {
        matches!(self, Self::Release | Self::ReleaseNamed | Self::Complete | Self::ReleaseWithValue)
    }

    /// Whether it may change the last completed tick.
    pub(super) fn writes_done(self) -> bool {
        matches!(self, Self::Complete | Self::Reset)
    }

    /// Whether it may put a value.
    pub(super) fn writes_value(self) -> bool {
        matches!(self, Self::PutValue | Self::ReleaseWithValue)
    }

    /// Whether it creates a missing record.
    pub(super) fn is_upsert(self) -> bool {
        self.is_acquire() || self == Self::Raise
    }

    /// Whether it may grant the key to its own lease.
    pub(super) fn is_acquire(self) -> bool {
        matches!(self, Self::Acquire | Self::Wait)
    }

    /// The projection of the fields from which the outcome of a request is read. It leaves out the queue, which may be
    /// long.
    pub(super) fn projection(self) -> Document {
        // Its holder reads the value. A condition on the grant would take the server more time than the field.
        let value: &[&str] = if self.is_acquire() { &["value"] } else { &[] };
        let mut projection = document::record_projection(if self.writes_done() { &["done"] } else { value });
        projection.insert("queue", doc! { "$slice": 0 });
        if self.writes_value() {
            projection.insert("value", doc! { "token": 1, "write": 1, "at": 1 });
        }
        if !matches!(self, Self::Wait | Self::Leave) {
            return projection;
        }
        let places = doc! { "$map": { "input": "$$lease", "in": { "$indexOfArray": ["$$queued", "$$this"] } } };
        let queue = doc! { "$map": { "input": "$queue", "in": ["$$this.lease", "$$this.caller"] } };
        let queued = doc! { "queued": { "$reverseArray": queue } };
        projection.insert("places", doc! { "$let": { "vars": queued, "in": places } });
        projection.insert("waiting", doc! { "$size": "$queue" });
        projection
    }
}

/// How many may wait, if the request waits.
pub(super) fn queue_limit(request: &Request) -> Option<u32> {
    let Request::Acquire(Acquire { wait, .. }) = request else { return None };
    Some((*wait)?.queue_limit)
}

/// The constants of requests of a key for the pipeline of their operation, which is that of the first.
pub(super) fn constants(first: &Request, requests: &[Request]) -> Document {
    let mut constants = match first {
        Request::Acquire(_) => return constants_of_acquires(requests, queue_limit(first).unwrap_or_default()),
        Request::Leave(_) => return constants_of_leaves(requests),
        Request::Downgrade(downgrade) => return constants_of_downgrade(*downgrade),
        Request::Refresh(Refresh { ttl, grace, metadata, acquire_id, .. }) => {
            let mut fields = doc! { "ttl": document::long(*ttl), "grace": document::long(*grace) };
            fields
                .extend(metadata.as_ref().map(|metadata| ("metadata".to_owned(), document::encode_metadata(metadata))));
            fields.extend(acquire_id.map(|acquire_id| ("caller".to_owned(), acquire_id.to_string().into())));
            doc! { "fields": fields, "validity": document::long(ttl.saturating_add(*grace)) }
        }
        Request::Release(Release { token, .. }) => doc! { "token": *token },
        Request::Transfer(Transfer { token, to, .. }) | Request::Upgrade(Transfer { token, to, .. }) => {
            doc! { "token": *token, "to": document::encode_lease(*to) }
        }
        Request::Revoke(Revoke { by, reason, upto }) => doc! { "by": by, "reason": reason, "upto": *upto },
        Request::Raise(raise @ Raise { to }) => {
            doc! { "to": *to, "until": DateTime::from_millis(raise.keep_until().millis()) }
        }
        Request::Complete(Complete { token, tick, by, keep, report, .. }) => {
            let mut run = doc! { "failed": report.is_failed, "note": &report.note };
            run.extend(report.period.map(|period| ("period".to_owned(), document::long(period))));
            doc! {
                "token": *token, "tick": document::long(*tick), "by": by, "keep": document::long(*keep),
                "run": run, "took": document::long(report.took),
            }
        }
        Request::PutValue(PutValue { token, after, write, content, keep, .. }) => {
            let mut value = doc! { "token": *token, "write": document::long(*write) };
            value.extend(content.as_ref().map(|content| ("content".to_owned(), json::encode(content.as_value()))));
            doc! { "token": *token, "after": document::long(*after), "value": value, "keep": document::long(*keep) }
        }
        Request::Reset(Reset { tick, upto, by }) => doc! { "tick": document::long(*tick), "upto": *upto, "by": by },
        Request::Prune => doc! {},
    };
    if let Some(lease) = first.lease() {
        constants.insert("lease", document::encode_lease(lease));
    }
    constants
}

/// The entries to remove, each as its lease id and its acquire id.
fn constants_of_leaves(requests: &[Request]) -> Document {
    let entries = requests.iter().filter_map(|request| match request {
        Request::Leave(leave) => Some(name_of_acquire(leave.lease, leave.acquire_id)),
        _ => None,
    });
    doc! { "lease": entries.collect::<Vec<Bson>>() }
}

/// What an acquire is named by: its lease id and its acquire id.
fn name_of_acquire(lease: LeaseId, acquire_id: AcquireId) -> Bson {
    vec![document::encode_lease(lease), acquire_id.to_string().into()].into()
}

/// Lists of the constants of these acquires.
fn constants_of_acquires(requests: &[Request], queue_limit: u32) -> Document {
    let acquires = requests.iter().filter_map(|request| match request {
        Request::Acquire(acquire) => Some(acquire),
        _ => None,
    });
    let (mut lease, mut validity, mut entries, mut wait_ttl) = (vec![], vec![], vec![], vec![]);
    for acquire @ Acquire { terms, wait } in acquires {
        lease.push(name_of_acquire(terms.lease, terms.acquire_id));
        validity.push(document::long(terms.ttl.saturating_add(terms.grace)));
        entries.push(entry(acquire));
        wait_ttl.push(document::long(wait.map_or(0, |wait| wait.ttl)));
    }
    doc! {
        "lease": lease, "validity": validity, "entry": entries, "wait_ttl": wait_ttl,
        "queue_limit": document::int(queue_limit),
    }
}

/// The entry of an acquire in the queue, without its times. It becomes that of the holder.
pub(super) fn entry(Acquire { terms, wait }: &Acquire) -> Document {
    let mut entry = doc! {
        "lease": document::encode_lease(terms.lease),
        "caller": terms.acquire_id.to_string(),
        "owner": terms.owner.as_str(),
        "version": 0_i64,
        "limit": document::int(terms.sharing.limit()),
        "ttl": document::long(terms.ttl),
        "grace": document::long(terms.grace),
        "wait_ttl": document::long(wait.map_or(0, |wait| wait.ttl)),
        "group": terms.group.as_ref().map_or("", Group::as_str),
        "metadata": document::encode_metadata(&terms.metadata),
        "refreshes": 0_i64,
    };
    // Fields that few leases have.
    let HoldLimits { min, max } = terms.hold;
    let limits = [("min_hold", min), ("max_hold", max)].into_iter();
    entry.extend(limits.filter_map(|(name, limit)| Some((name.to_owned(), document::long(limit?)))));
    entry
}

/// The holder that a downgrade changes, as its lease, its token and each limit from which it may change.
fn constants_of_downgrade(Downgrade { lease, token, sharing }: Downgrade) -> Document {
    let limit = document::int(sharing.limit());
    let from = |limit: Bson| Bson::Array(vec![document::encode_lease(lease), token.into(), limit]);
    let holder = vec![from(Bson::Int32(0)), from(Bson::Int32(1)), from(limit.clone())];
    // Its expiry stays: a live holder lasts for longer than no time at all.
    doc! { "lease": holder, "fields": { "limit": limit }, "validity": 0_i64 }
}

/// The constants of a batch request, whichever leases it names.
pub(super) fn batch_constants(batch: &BatchRequest) -> Document {
    literals(match batch {
        BatchRequest::Release => doc! {},
        BatchRequest::Revoke { by, reason } => doc! { "by": by, "reason": reason },
        BatchRequest::Keep { ttl } => {
            doc! { "fields": { "ttl": document::long(*ttl) }, "validity": document::long(*ttl) }
        }
    })
}

/// Wraps each value, so that the server does not evaluate it as an expression.
pub(super) fn literals(mut constants: Document) -> Document {
    for (_, value) in constants.iter_mut() {
        *value = literal(std::mem::take(value)).into();
    }
    constants
}

/// Wraps a value, so that the server does not evaluate it as an expression.
pub(super) fn literal(value: impl Into<Bson>) -> Document {
    let value: Bson = value.into();
    doc! { "$literal": value }
}
