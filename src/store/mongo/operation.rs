//! The operations: requests that share a pipeline and a projection.
//!
//! Purpose: the server parses a pipeline for each command, and the client encodes it once for all requests of an operation.
//!
//! Mechanism: what differs from one request of an operation to the next comes in constants.
//!
//! Invariant: the server never reads a value of a caller as an expression.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::document;
use crate::record::{Acquire, BatchRequest, Downgrade, Leave, Raise, Refresh, Release, Request, Revoke, Transfer};

/// What a command does. All requests of an operation have the same pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// Acquires without waiting.
    Acquire,
    /// Acquires or waits, for one lease or several of a key.
    Wait,
    /// Acquires without waiting, for several leases of a key.
    AcquireSeveral,
    Refresh,
    /// Gives back what a lease id holds with this token.
    Release,
    /// Gives back what an acquire was granted, or its place in the queue, or those of several acquires of a key.
    Leave,
    Revoke,
    Transfer,
    Downgrade,
    Raise,
    /// Only what all do.
    Prune,
    /// Does to the leases of several keys what their tokens name.
    ReleaseNamed,
    RevokeNamed,
    RefreshNamed,
}

impl Operation {
    /// Those of requests.
    pub(super) const OF_REQUESTS: [Self; 11] = [
        Self::Acquire,
        Self::Wait,
        Self::AcquireSeveral,
        Self::Refresh,
        Self::Release,
        Self::Leave,
        Self::Revoke,
        Self::Transfer,
        Self::Downgrade,
        Self::Raise,
        Self::Prune,
    ];

    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Acquire(Acquire { wait: None, .. }) => Self::Acquire,
            Request::Acquire(Acquire { wait: Some(_), .. }) => Self::Wait,
            Request::Refresh(_) => Self::Refresh,
            Request::Release(_) => Self::Release,
            Request::Leave(_) => Self::Leave,
            Request::Revoke(_) => Self::Revoke,
            Request::Transfer(_) => Self::Transfer,
            Request::Downgrade(_) => Self::Downgrade,
            Request::Raise(_) => Self::Raise,
            Request::Prune => Self::Prune,
        }
    }

    pub(super) fn of_batch(batch: &BatchRequest) -> Self {
        match batch {
            BatchRequest::Release => Self::ReleaseNamed,
            BatchRequest::Revoke { .. } => Self::RevokeNamed,
            BatchRequest::Keep { .. } | BatchRequest::Refresh { .. } => Self::RefreshNamed,
        }
    }

    /// Whether it is done to several leases, which are named by their tokens.
    pub(super) fn is_batch(self) -> bool {
        matches!(self, Self::ReleaseNamed | Self::RevokeNamed | Self::RefreshNamed)
    }

    /// The operation of a command that applies several requests of a key, of which this is the first. `None`: it cannot be
    /// applied together with others.
    pub(super) fn of_several(first: &Request) -> Option<Self> {
        match Self::of(first) {
            Self::Acquire => Some(Self::AcquireSeveral),
            operation @ (Self::Wait | Self::Leave) => Some(operation),
            _ => None,
        }
    }

    /// Whether its variables are lists of the same length, one entry for each lease.
    pub(super) fn is_of_several(self) -> bool {
        matches!(self, Self::Wait | Self::AcquireSeveral | Self::Leave)
    }

    /// Whether it takes the key from its holders.
    pub(super) fn is_revoke(self) -> bool {
        matches!(self, Self::Revoke | Self::RevokeNamed)
    }

    /// Whether it makes a record if there is none.
    pub(super) fn is_upsert(self) -> bool {
        self.is_acquire() || self == Self::Raise
    }

    /// Whether it may grant the key to its own lease.
    pub(super) fn is_acquire(self) -> bool {
        matches!(self, Self::Acquire | Self::Wait | Self::AcquireSeveral)
    }

    /// The fields of a reply from which the outcome of a request is read: without the queue, which may be long.
    pub(super) fn projection(self) -> Document {
        let mut projection = document::all();
        projection.insert("queue", doc! { "$slice": 0 });
        if !matches!(self, Self::Wait | Self::Leave) {
            return projection;
        }
        let places = doc! { "$map": { "input": "$$lease", "in": { "$indexOfArray": ["$$queued", "$$this"] } } };
        let queue: Bson = if self == Self::Leave {
            doc! { "$map": { "input": "$queue", "in": ["$$this.lease", "$$this.caller"] } }.into()
        } else {
            "$queue.lease".into()
        };
        let queued = doc! { "queued": { "$reverseArray": queue } };
        projection.insert("places", doc! { "$let": { "vars": queued, "in": places } });
        projection.insert("waiting", doc! { "$size": "$queue" });
        projection
    }
}

/// The constants of a request, which the pipeline of its operation uses.
pub(super) fn constants(request: &Request) -> Document {
    let mut variables = match request {
        Request::Acquire(acquire) if acquire.wait.is_some() => return acquires([acquire]),
        Request::Leave(leave) => return leaves([leave]),
        Request::Downgrade(downgrade) => return constants_of_downgrade(*downgrade),
        Request::Acquire(acquire) => constants_of_acquire(acquire),
        Request::Refresh(Refresh { ttl, grace, metadata, .. }) => {
            let mut who = doc! { "ttl": document::long(*ttl), "grace": document::long(*grace) };
            who.extend(metadata.as_ref().map(|metadata| ("metadata".to_owned(), document::metadata(metadata))));
            doc! { "who": who, "lasts": document::long(ttl.saturating_add(*grace)) }
        }
        Request::Release(Release { token, .. }) => doc! { "token": *token },
        Request::Transfer(Transfer { token, to, .. }) => doc! { "token": *token, "to": document::lease(*to) },
        Request::Revoke(Revoke { by, reason, upto }) => doc! { "by": by, "reason": reason, "upto": *upto },
        Request::Raise(raise @ Raise { to }) => {
            doc! { "to": *to, "until": DateTime::from_millis(raise.keeps_until().millis()) }
        }
        Request::Prune => doc! {},
    };
    if let Some(lease) = request.lease() {
        variables.insert("lease", document::lease(lease));
    }
    variables
}

/// The same of several requests of a key, which all are of the same [`Operation::of_several`].
pub(super) fn constants_of_several(requests: &[Request]) -> Document {
    if matches!(requests, [Request::Acquire(_), ..]) {
        return acquires(requests.iter().filter_map(|request| match request {
            Request::Acquire(acquire) => Some(acquire),
            _ => None,
        }));
    }
    leaves(requests.iter().filter_map(|request| match request {
        Request::Leave(leave) => Some(leave),
        _ => None,
    }))
}

/// A list of the entries to drop, each as its lease and its caller.
fn leaves<'a>(leaves: impl IntoIterator<Item = &'a Leave>) -> Document {
    let entry = |leave: &Leave| Bson::Array(vec![document::lease(leave.lease), leave.caller.to_string().into()]);
    doc! { "lease": leaves.into_iter().map(entry).collect::<Vec<Bson>>() }
}

/// Lists of what each of these acquires fills the pipeline with. How many may wait is for all of them what it is for the
/// first.
fn acquires<'a>(acquires: impl IntoIterator<Item = &'a Acquire>) -> Document {
    let acquires: Vec<&Acquire> = acquires.into_iter().collect();
    let room = acquires.iter().find_map(|acquire| Some(acquire.wait?.queue_limit));
    let each: Vec<Document> = acquires.into_iter().map(constants_of_acquire).collect();
    let all = |name: &str| each.iter().filter_map(|constants| constants.get(name).cloned()).collect::<Vec<Bson>>();
    doc! {
        "lease": all("lease"), "who": all("who"), "lasts": all("lasts"), "entry": all("entry"), "wait_ttl": all("wait_ttl"),
        "room": document::int(room.unwrap_or_default()),
    }
}

fn constants_of_acquire(Acquire { terms, wait }: &Acquire) -> Document {
    let (ttl, grace) = (document::long(terms.ttl), document::long(terms.grace));
    let (group, metadata) = (document::group(terms.group.as_ref()), document::metadata(&terms.metadata));
    let (lease, wait_ttl) = (document::lease(terms.lease), document::long(wait.map_or(0, |wait| wait.ttl)));
    doc! {
        "lease": &lease,
        "who": { "caller": terms.caller.to_string(), "owner": terms.owner.as_str(), "group": group, "metadata": metadata.clone(), "ttl": &ttl, "grace": &grace },
        "lasts": document::long(terms.ttl.saturating_add(terms.grace)),
        "entry": {
            "lease": lease,
            "caller": terms.caller.to_string(),
            "owner": terms.owner.as_str(),
            "version": 0_i64,
            "limit": document::int(terms.limit),
            "ttl": ttl,
            "grace": grace,
            "wait_ttl": &wait_ttl,
            "group": group,
            "metadata": metadata,
            "refreshes": 0_i64,
        },
        "wait_ttl": wait_ttl,
    }
}

/// The holder that a downgrade changes, as its lease, its token and each limit from which it may change.
fn constants_of_downgrade(Downgrade { lease, token, limit }: Downgrade) -> Document {
    let limit = document::int(limit);
    let from = |limit: Bson| Bson::Array(vec![document::lease(lease), token.into(), limit]);
    let holder = vec![from(document::int(0)), from(document::int(1)), from(limit.clone())];
    // Its expiry stays: a live holder lasts for longer than no time at all.
    doc! { "lease": holder, "who": { "limit": limit }, "lasts": 0_i64 }
}

/// What a batch request fills the pipeline of its operation with, and the filter beside it, whichever leases
/// it names.
pub(super) fn batch_constants(batch: &BatchRequest) -> Document {
    let mut variables = match batch {
        BatchRequest::Release => doc! {},
        BatchRequest::Revoke { by, reason } => doc! { "by": by, "reason": reason },
        BatchRequest::Keep { ttl } | BatchRequest::Refresh { ttl, .. } => {
            doc! { "who": { "ttl": document::long(*ttl) }, "lasts": document::long(*ttl) }
        }
    };
    variables.insert("least", document::long(batch.least()));
    literals(variables)
}

/// Values that are not read as expressions.
pub(super) fn literals(mut variables: Document) -> Document {
    for (_, value) in variables.iter_mut() {
        *value = literal(std::mem::take(value)).into();
    }
    variables
}

/// A value that is not read as an expression.
pub(super) fn literal(value: impl Into<Bson>) -> Document {
    let value: Bson = value.into();
    doc! { "$literal": value }
}
