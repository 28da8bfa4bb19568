//! One refresh of a lease: sent again until one of its attempts is confirmed.

use std::time::Duration;

use crate::{
    Error, Metadata, Ttl,
    engine::{command_queue::RefreshCommand, in_flight::Resend, lease_shared::LeaseShared, retry::Backoff},
};

/// A refresh that is sent until one of its attempts is confirmed.
pub(super) struct RefreshRound {
    pub(super) number: u32,
    /// The holder's request for it, if there is one.
    pub(super) command: Option<RefreshCommand>,
    pub(super) ttl: Ttl,
    pub(super) metadata: Option<Metadata>,
    /// When, on the clock, it gives up, if the lease has not ended before.
    pub(super) until: Duration,
    /// When the next attempt is sent.
    pub(super) next_attempt: Duration,
    pub(super) resend: Resend,
    pub(super) backoff: Backoff,
    /// When the lease is at risk if the store has not answered.
    pub(super) risk_at: Option<Duration>,
    pub(super) last_error: Option<Error>,
    /// The deadline of the lease when `risk_at` was set.
    deadline: Duration,
}

impl RefreshRound {
    pub(super) fn begin(
        number: u32,
        command: Option<RefreshCommand>,
        (ttl, metadata): (Ttl, Option<Metadata>),
        (now, until): (Duration, Duration),
        lease: &LeaseShared,
    ) -> Self {
        Self {
            number,
            command,
            ttl,
            metadata,
            until,
            next_attempt: now,
            resend: Resend::of(ttl, Duration::ZERO),
            backoff: Backoff::new(),
            risk_at: Some(now.saturating_add(lease.risk_after(ttl))),
            last_error: None,
            deadline: lease.deadline(),
        }
    }

    /// Whether its first attempt was not sent and changes the metadata.
    pub(super) fn is_metadata_change_unsent(&self) -> bool {
        self.resend.is_unused() && self.command.as_ref().is_some_and(|command| command.metadata.is_some())
    }

    /// Puts the lease at risk if the store has been silent for too long.
    pub(super) fn check_silence(&mut self, now: Duration, lease: &LeaseShared) {
        if self.risk_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        // If the deadline has changed, the store has answered an earlier request.
        if lease.deadline() == self.deadline {
            lease.note_at_risk(&unanswered_error());
        } else {
            self.deadline = lease.deadline();
            self.risk_at = Some(now.saturating_add(lease.risk_after(self.ttl)));
        }
    }
}

pub(super) fn unanswered_error() -> Error {
    Error::unavailable("the store has not answered a refresh yet: check that it can be reached")
}
