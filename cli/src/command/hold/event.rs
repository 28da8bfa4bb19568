//! The events of the pipe protocol. `protocol/pipe.md` describes each member.

use mongoseal::{FencingToken, LossCause, Owner, election::LeaderInfo, inspect::StoreTime, store::Instant};
use serde::Serialize;
use serde_json::Value;

use super::{begin::Held, refusal::Refusal, request::Id};
use crate::{exit_status::Failure, time, ui::json::Until};

/// The version of the protocol.
const PROTOCOL: u32 = 1;

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    Ready {
        protocol: u32,
        version: &'static str,
        owner: String,
        started_ms: u64,
    },
    Granted {
        id: Id,
        lease: Id,
        key: String,
        owner: String,
        token: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        tick: Option<u64>,
        #[serde(flatten)]
        until: Until,
    },
    /// The tick, or a later one, is done.
    Done {
        id: Id,
        outcome: &'static str,
        tick: u64,
        by: String,
        at: String,
    },
    Waiting {
        lease: Id,
        position: usize,
    },
    /// A refresh has moved the deadline.
    Held {
        lease: Id,
        #[serde(flatten)]
        until: Until,
    },
    /// Refreshes are not confirmed.
    AtRisk {
        lease: Id,
        #[serde(flatten)]
        until: Until,
    },
    Lost {
        lease: Id,
        token: u64,
        cause: &'static str,
        message: String,
    },
    Refreshed {
        id: Id,
        lease: Id,
        #[serde(flatten)]
        until: Until,
    },
    Verified {
        id: Id,
        lease: Id,
        #[serde(flatten)]
        until: Until,
    },
    Progressed {
        id: Id,
        lease: Id,
    },
    ValuePut {
        id: Id,
        lease: Id,
    },
    ValueCleared {
        id: Id,
        lease: Id,
    },
    Value {
        id: Id,
        lease: Id,
        value: Option<Value>,
    },
    Proclaimed {
        id: Id,
        lease: Id,
    },
    Completed {
        id: Id,
        lease: Id,
    },
    Released {
        id: Id,
        lease: Id,
        confirmed: bool,
    },
    Observing {
        id: Id,
    },
    Leader {
        observation: Id,
        leader: Option<LeaderView>,
    },
    /// By a request, which has an id, or because of an error.
    Unobserved {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<Id>,
        observation: Id,
        #[serde(flatten)]
        error: Option<Refusal>,
    },
    /// A request was refused.
    #[serde(rename = "error")]
    Refused {
        id: Option<Id>,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<Id>,
        #[serde(flatten)]
        refusal: Refusal,
    },
    /// The program ends.
    #[serde(rename = "error")]
    Failed {
        #[serde(flatten)]
        refusal: Refusal,
    },
}

/// A leader, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct LeaderView {
    owner: String,
    token: u64,
    value: String,
}

impl Event {
    /// `started`: a time after the start of the program. A client counts deadlines from there if it has another clock.
    pub(super) fn ready(owner: &Owner, started: Instant) -> Self {
        Self::Ready {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION"),
            owner: owner.to_string(),
            // Deadlines are cut to milliseconds, and this is not earlier than it was, so that none is too late.
            started_ms: time::millis(started.since_origin()).saturating_add(1),
        }
    }

    pub(super) fn granted(id: &Id, held: &Held) -> Self {
        let lease = held.lease();
        Self::Granted {
            id: id.clone(),
            lease: id.clone(),
            key: lease.key().to_string(),
            owner: lease.owner().to_string(),
            token: lease.token().get(),
            tick: held.tick(),
            until: Until::of(lease),
        }
    }

    pub(super) fn done(id: &Id, outcome: &'static str, tick: u64, by: String, at: StoreTime) -> Self {
        Self::Done { id: id.clone(), outcome, tick, by, at: at.to_string() }
    }

    pub(super) fn lost(lease: &Id, token: FencingToken, cause: &LossCause) -> Self {
        Self::Lost { lease: lease.clone(), token: token.get(), cause: cause.kind(), message: cause.to_string() }
    }

    pub(super) fn shut_down(lease: &Id, token: FencingToken) -> Self {
        let message = "the program is about to exit, and releases the lease".into();
        Self::Lost { lease: lease.clone(), token: token.get(), cause: "shut_down", message }
    }

    pub(super) fn leader(observation: &Id, leader: Option<LeaderInfo>) -> Self {
        let view =
            |LeaderInfo { value, owner, token, .. }| LeaderView { owner: owner.to_string(), token: token.get(), value };
        Self::Leader { observation: observation.clone(), leader: leader.map(view) }
    }

    pub(super) fn refused(id: Option<Id>, lease: Option<Id>, refusal: Refusal) -> Self {
        Self::Refused { id, lease, refusal }
    }

    pub(super) fn failed(failure: &Failure) -> Self {
        Self::Failed { refusal: failure.into() }
    }
}
