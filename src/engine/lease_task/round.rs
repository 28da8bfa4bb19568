//! A refresh that is sent until one of its attempts is confirmed.

use std::time::Duration;

use crate::{
    Error, Metadata, Ttl,
    engine::{command_queue::RefreshCommand, in_flight::Resend, lease_shared::LeaseShared, retry::Backoff},
};

/// A refresh that is sent until one of its attempts is confirmed.
pub(super) struct RefreshRound {
    pub(super) number: u32,
    /// What the holder asked for, if it did.
    pub(super) wish: Option<RefreshCommand>,
    pub(super) ttl: Ttl,
    pub(super) metadata: Option<Metadata>,
    /// When, on the clock, it gives up. The deadline of the lease comes before that.
    pub(super) until: Duration,
    /// When the next attempt is sent.
    pub(super) next_attempt: Duration,
    pub(super) resend: Resend,
    pub(super) backoff: Backoff,
    /// When a store that has not answered puts the lease at risk.
    pub(super) risk_at: Option<Duration>,
    pub(super) last_error: Option<Error>,
    /// The deadline of the lease when `risk_at` was decided.
    deadline: Duration,
}

impl RefreshRound {
    pub(super) fn begin(
        number: u32,
        wish: Option<RefreshCommand>,
        (ttl, metadata): (Ttl, Option<Metadata>),
        (now, until): (Duration, Duration),
        hold: &LeaseShared,
    ) -> Self {
        Self {
            number,
            wish,
            ttl,
            metadata,
            until,
            next_attempt: now,
            resend: Resend::of(ttl, Duration::ZERO),
            backoff: Backoff::new(),
            risk_at: Some(now.saturating_add(hold.risk_after(ttl))),
            last_error: None,
            deadline: hold.deadline(),
        }
    }

    /// Whether its first attempt, which is not sent yet, changes the metadata.
    pub(super) fn begins_with_a_change(&self) -> bool {
        self.resend.is_unused() && self.wish.as_ref().is_some_and(|wish| wish.metadata.is_some())
    }

    /// Puts the lease at risk if the store has not answered for too long.
    pub(super) fn look_at_silence(&mut self, now: Duration, hold: &LeaseShared) {
        if self.risk_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        // A deadline that has moved was moved by an answer to an earlier request.
        if hold.deadline() == self.deadline {
            hold.at_risk(&unanswered());
        } else {
            self.deadline = hold.deadline();
            self.risk_at = Some(now.saturating_add(hold.risk_after(self.ttl)));
        }
    }
}

pub(super) fn unanswered() -> Error {
    Error::unavailable("the store has not answered a refresh yet: check that it can be reached")
}
