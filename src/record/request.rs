//! What can be asked of a record, and what comes of it.

use super::{Holder, LeaseSpec, StoreTime};
use crate::{AcquireId, FencingToken, LeaseId, Metadata, types::token::HybridTime};

/// What can be asked of a record. Every request can be sent twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the key.
    Acquire(Acquire),
    /// Keeps a lease alive.
    Refresh(Refresh),
    /// Gives a lease back.
    Release(Release),
    /// Gives back what an acquire was granted, or its place in the queue.
    Leave(Leave),
    /// Takes the key from its holders.
    Revoke(Revoke),
    /// Gives a lease to another lease id.
    Transfer(Transfer),
    /// Lets other holders share the key.
    Downgrade(Downgrade),
    /// Raises the version of the record.
    Raise(Raise),
    /// Asks for nothing: what is done with every request, to drop those whose time is over and to hand
    /// the key to whoever is next, is done now.
    Prune,
}

/// Asks for the key. The same lease id asking again is the same request: it keeps its token, or
/// its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Who asks, and for what.
    pub terms: LeaseSpec,
    /// Whether to wait where the key cannot be had. `None` does not: it takes no place in the queue,
    /// and gives up one it had.
    pub wait: Option<WaitSpec>,
}

impl Acquire {
    /// What came of it, told from the view of the record after it. `None` is no record.
    #[must_use]
    pub fn outcome(&self, after: Option<&RecordSummary>) -> Outcome {
        let Some(after) = after else { return Outcome::Absent };
        let boxed = |holder: &Holder| Box::new(holder.clone());
        if let Some(holder) = after.holder(self.terms.lease) {
            // Who asks for a key alone, or with few, is not content with a share of many.
            return if holder.terms.limit.max(1) <= self.terms.limit.max(1) {
                Outcome::Granted { token: holder.version }
            } else {
                Outcome::Refused { holder: boxed(holder) }
            };
        }
        let by_expiry = |holder: &&Holder| holder.expires_at;
        let (first, last) = (after.holders.iter().min_by_key(by_expiry), after.holders.iter().max_by_key(by_expiry));
        // Whoever is not granted the key meets somebody who holds it.
        let (Some(first), Some(last)) = (first, last) else { return Outcome::Absent };
        match (after.position, self.wait) {
            (Some(position), _) => Outcome::Queued { position, version: after.version, holder: boxed(first) },
            (None, Some(_)) => Outcome::Full { length: after.waiting },
            (None, None) => Outcome::Refused { holder: boxed(last) },
        }
    }
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpec {
    /// How long to stay queued without being heard of, in milliseconds.
    pub ttl: u64,
    /// How many may wait for the key at most, this one among them.
    pub queue_limit: u32,
}

/// Keeps a lease alive. A lease that is not there is not created again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Which lease.
    pub lease: LeaseId,
    /// How long it lasts from now without a further refresh, in milliseconds. It never ends
    /// sooner than it would have.
    pub ttl: u64,
    /// How much longer the store waits, in milliseconds.
    pub grace: u64,
    /// What the owner says of its lease from now on, unless that stays as it is.
    pub metadata: Option<Metadata>,
}

/// Gives a lease back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which lease.
    pub lease: LeaseId,
    /// With which token: a release that was delayed does not end a later grant of the same lease id.
    pub token: FencingToken,
}

impl Release {
    /// Whether this holder is the one to go.
    pub(crate) fn ends(&self, holder: &Holder) -> bool {
        holder.terms.lease == self.lease && holder.version == self.token
    }
}

/// Gives back what an acquire was granted, or its place in the queue, by an asker who was not told what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The lease id of the acquire.
    pub lease: LeaseId,
    /// The caller of the acquire. So a leave that was delayed does not end what a later acquire with the same lease id was
    /// granted.
    pub caller: AcquireId,
}

impl Leave {
    /// Whether this holder or waiter is the one to go.
    pub(crate) fn ends(&self, terms: &LeaseSpec) -> bool {
        terms.lease == self.lease && terms.caller == self.caller
    }
}

/// Takes the key from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    /// Who does.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Up to which token: whoever was granted the key later keeps it.
    pub upto: FencingToken,
}

impl Revoke {
    /// Whether this holder is one of those to go.
    pub(crate) fn ends(&self, holder: &Holder) -> bool {
        holder.version <= self.upto
    }
}

/// Gives a lease to another lease id, with a larger token, for a ttl from now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which lease.
    pub lease: LeaseId,
    /// With which token.
    pub token: FencingToken,
    /// The lease id that holds the key from now on.
    pub to: LeaseId,
}

impl Transfer {
    /// Whether this holder is the one to become another.
    pub(crate) fn gives(&self, holder: &Holder) -> bool {
        holder.terms.lease == self.lease && holder.version == self.token
    }
}

/// Lets other holders share a key whose holder has excluded them. The lease, its token and its expiry stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downgrade {
    /// The lease id.
    pub lease: LeaseId,
    /// The token. A delayed downgrade does not change a later grant of the same lease id.
    pub token: FencingToken,
    /// How many holders may share the key from then on, this one included.
    pub limit: u32,
}

impl Downgrade {
    fn names(&self, holder: &Holder) -> bool {
        holder.terms.lease == self.lease && holder.version == self.token
    }

    /// Whether this holder gets the limit: it excludes all others, or has the limit already. The limit of a sharing
    /// holder never changes, so a delayed downgrade does not undo a later one.
    pub(crate) fn changes(&self, holder: &Holder) -> bool {
        self.names(holder) && (holder.terms.limit <= 1 || holder.terms.limit == self.limit)
    }
}

/// Raises the version of the record, so that all tokens of the key are larger from now on. A record is made if there is
/// none. Holders and waiters stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    /// The version is at least this token afterwards.
    pub to: FencingToken,
}

impl Raise {
    /// The record is kept until this time at least: the end of the second that the token stands for. From then on the
    /// clock alone numbers larger tokens, and the key no longer needs the record.
    pub(crate) fn keeps_until(self) -> StoreTime {
        let end = HybridTime::from(self.to).seconds.saturating_add(1).saturating_mul(1_000);
        StoreTime::from_millis(i64::try_from(end).unwrap_or(i64::MAX))
    }
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lease holds the key. The write that says so changed the record.
    Granted {
        /// The lease's fencing token.
        token: FencingToken,
    },
    /// The lease waits.
    Queued {
        /// How many wait before it.
        position: usize,
        /// The highest token of the key so far: the lease's own will be larger.
        version: FencingToken,
        /// The holder whose time is over first.
        holder: Box<Holder>,
    },
    /// The key is held, and there was no room to wait. A hint: nothing was written.
    Full {
        /// How many wait.
        length: usize,
    },
    /// The key is held, and the request did not want to wait. A hint: nothing was written. Also where
    /// the lease itself shares the key with more than the request asks for, and where the other lease of a
    /// transfer holds it already. Also if the holder of a downgrade shares the key with another limit already.
    Refused {
        /// The holder that would last longest.
        holder: Box<Holder>,
    },
    /// The lease was kept alive. The write that says so changed the record.
    Refreshed {
        /// The lease's fencing token.
        token: FencingToken,
    },
    /// The lease, or its place in the queue, was given back.
    Released,
    /// The other lease id holds the key. The write that says so changed the record.
    Transferred {
        /// Its fencing token.
        token: FencingToken,
    },
    /// The holder shares the key, up to the limit of the request. The write that says so changed the record.
    Downgraded,
    /// The lease neither holds the key nor waits for it. A hint: nothing was written for it.
    Absent,
    /// The key was taken from these holders.
    Revoked {
        /// From whom; nobody, if nobody held it.
        holders: Vec<Holder>,
    },
    /// The version of the record is at least what was asked for.
    Raised {
        /// The version. A lease granted later has a larger token.
        version: FencingToken,
    },
    /// Those whose time was over are gone.
    Pruned {
        /// Which holders went. Nobody is a hint: nothing may have been written for it.
        holders: Vec<Holder>,
    },
}

/// Which state of a record tells the outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnDocument {
    /// The one before the request.
    Before,
    /// The one after it.
    After,
}

/// What of a record tells the outcome of a request: without those who wait, of whom there can be many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// Who holds the key, in the order in which they came.
    pub holders: Vec<Holder>,
    /// How many wait before the lease of the request, if it waits. Of a leave, before that of its caller.
    pub position: Option<usize>,
    /// How many wait.
    pub waiting: usize,
}

impl RecordSummary {
    fn holder(&self, lease: LeaseId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.terms.lease == lease)
    }
}

impl Request {
    /// The lease that it is about, if it is about one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire(acquire) => Some(acquire.terms.lease),
            Self::Refresh(refresh) => Some(refresh.lease),
            Self::Release(release) => Some(release.lease),
            Self::Leave(leave) => Some(leave.lease),
            Self::Transfer(transfer) => Some(transfer.lease),
            Self::Downgrade(downgrade) => Some(downgrade.lease),
            Self::Revoke(_) | Self::Raise(_) | Self::Prune => None,
        }
    }

    /// Which state of the record tells the outcome.
    #[must_use]
    pub fn image(&self) -> ReturnDocument {
        match self {
            Self::Acquire(_) | Self::Refresh(_) | Self::Transfer(_) | Self::Downgrade(_) | Self::Raise(_) => {
                ReturnDocument::After
            }
            Self::Release(_) | Self::Leave(_) | Self::Revoke(_) | Self::Prune => ReturnDocument::Before,
        }
    }

    /// The outcome that the [`image`](Self::image) of the record tells, `now` being the time at
    /// which the request was applied.
    #[must_use]
    pub fn outcome(&self, image: Option<&RecordSummary>, now: StoreTime) -> Outcome {
        match (self, image) {
            (Self::Acquire(acquire), after) => acquire.outcome(after),
            (Self::Refresh(refresh), Some(after)) => match after.holder(refresh.lease) {
                Some(holder) => Outcome::Refreshed { token: holder.version },
                None => Outcome::Absent,
            },
            (Self::Release(release), Some(before)) => {
                let held = before.holders.iter().any(|holder| release.ends(holder) && holder.expires_at > now);
                if held { Outcome::Released } else { Outcome::Absent }
            }
            (Self::Leave(leave), Some(before)) => {
                let held = before.holders.iter().any(|holder| leave.ends(&holder.terms) && holder.expires_at > now);
                if held || before.position.is_some() { Outcome::Released } else { Outcome::Absent }
            }
            (Self::Revoke(revoke), Some(before)) => {
                let ends = |holder: &&Holder| holder.expires_at > now && revoke.ends(holder);
                Outcome::Revoked { holders: before.holders.iter().filter(ends).cloned().collect() }
            }
            (Self::Transfer(transfer), Some(after)) => match after.holder(transfer.to) {
                // Both hold: nothing was given.
                Some(holder) if after.holders.iter().any(|holder| transfer.gives(holder)) => {
                    Outcome::Refused { holder: Box::new(holder.clone()) }
                }
                Some(holder) => Outcome::Transferred { token: holder.version },
                None => Outcome::Absent,
            },
            (Self::Downgrade(downgrade), Some(after)) => {
                match after.holders.iter().find(|holder| downgrade.names(holder)) {
                    Some(holder) if holder.terms.limit == downgrade.limit => Outcome::Downgraded,
                    Some(holder) => Outcome::Refused { holder: Box::new(holder.clone()) },
                    None => Outcome::Absent,
                }
            }
            (Self::Raise(_), Some(after)) => Outcome::Raised { version: after.version },
            (Self::Prune, Some(before)) => {
                let over = |holder: &&Holder| holder.expires_at <= now;
                Outcome::Pruned { holders: before.holders.iter().filter(over).cloned().collect() }
            }
            (_, None) => Outcome::Absent,
        }
    }
}
