//! A batch: leases of one schedule that are refreshed together.

use std::{ops::Range, sync::Arc, time::Duration};

use tracing::Span;

use super::{Schedule, Schedules, leases::Stage};
use crate::{
    Error, Result, Ttl,
    engine::{in_flight::InFlight, lease_shared::LeaseShared, refresh},
};

/// The time that a store may take for each lease of the batches in flight. MongoDB took 155 microseconds until a
/// majority had confirmed, with three members on a small machine.
pub(super) const MAX_TIME_PER_LEASE: Duration = Duration::from_micros(500);

/// Leases that are refreshed together.
pub(super) struct Batch {
    pub(super) schedules: Arc<Schedules>,
    pub(super) schedule: Arc<Schedule>,
    pub(super) ttl: Ttl,
    pub(super) members: Vec<Member>,
    /// How long the store may take to answer all of it.
    pub(super) longest: Duration,
}

/// A lease of a batch.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) slot: u64,
    pub(super) lease: Arc<LeaseShared>,
}

/// The answer to a request for leases of a batch.
pub(super) struct BatchReply {
    /// The positions of the leases in the batch.
    pub(super) range: Range<usize>,
    /// When, on the clock, the request was about to be sent.
    pub(super) sent: Duration,
    pub(super) members: Vec<Member>,
    /// Whether the store has refreshed all of them.
    pub(super) refreshed: Result<bool>,
    /// The span of the request, for the error.
    pub(super) span: Span,
}

impl Batch {
    /// Leaves members to their tasks.
    pub(super) fn leave<'a>(&self, members: impl IntoIterator<Item = &'a Member>) {
        leave(&self.schedule, members, true);
    }

    /// Ends the batch: the leases that are still in it become due again.
    pub(super) fn end(&self, began: Duration) {
        let now = self.schedules.context.clock().now();
        let soon = now.saturating_add(self.ttl.duration().checked_div(10).unwrap_or_default());
        self.schedule.update(self.members.iter().map(|member| member.slot), |scheduled| {
            if scheduled.stage == Stage::InBatch {
                scheduled.stage = Stage::Waiting;
                if scheduled.sent < began {
                    let next = scheduled.interval.map(|interval| now.saturating_add(interval));
                    scheduled.due_at = next.map_or(soon, |next| soon.min(next));
                }
            }
        });
        self.schedule.changed.notify_one();
    }

    /// Receives the late answers of requests whose leases are now refreshed alone.
    pub(super) async fn receive_late_answers(&self, mut sent: InFlight<BatchReply>) {
        while !sent.is_empty() {
            let answer = sent.next().await;
            self.note_answer(&answer);
            // The error of an answer in time can put leases at risk.
            if let Err(error) = &answer.refreshed
                && !matches!(error, Error::Unavailable { .. })
            {
                refresh::record_error(&answer.span, error, || false);
            }
        }
    }

    /// Notes the answer to a request.
    pub(super) fn note_answer(&self, BatchReply { members, sent, refreshed, span, .. }: &BatchReply) {
        match refreshed {
            Ok(true) => {
                let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
                let took = self.schedules.context.clock().now().saturating_sub(*sent);
                // Collected first: extending a deadline wakes the followers of the lease, which must not happen under
                // the lock of the schedule.
                let refreshed: Vec<_> = members
                    .iter()
                    .filter(|Member { lease, .. }| lease.extend_deadline(until) && lease.is_valid())
                    .collect();
                for Member { lease, .. } in &refreshed {
                    lease.note_round_trip(took);
                }
                let slots = refreshed.into_iter().map(|member| member.slot);
                self.schedule.update(slots, |scheduled| scheduled.note_confirmed(*sent));
            }
            Err(error @ Error::Unavailable { .. }) => {
                refresh::record_error(span, error, || self.note_at_risk_since(members, *sent, error));
            }
            Ok(false) | Err(_) => {}
        }
    }

    /// Puts members at risk if no request that was sent at `sent` or later is confirmed for them. Returns whether there
    /// were any.
    pub(super) fn note_at_risk_since<'a>(
        &self,
        members: impl IntoIterator<Item = &'a Member>,
        sent: Duration,
        error: &Error,
    ) -> bool {
        let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
        note_at_risk(members.into_iter().filter(|member| member.lease.deadline() < until), error)
    }
}

pub(super) fn leave<'a>(schedule: &Schedule, members: impl IntoIterator<Item = &'a Member>, was_sent: bool) {
    let members: Vec<_> = members.into_iter().collect();
    schedule.update(members.iter().map(|member| member.slot), |scheduled| scheduled.stage = Stage::Single);
    for member in members {
        member.lease.commands.refresh_single(was_sent);
    }
}

/// Puts members at risk. Returns whether there were any that were not.
pub(super) fn note_at_risk<'a>(members: impl IntoIterator<Item = &'a Member>, error: &Error) -> bool {
    let valid = members.into_iter().filter(|member| member.lease.is_valid());
    valid.filter(|member| member.lease.note_at_risk(error)).count() > 0
}
