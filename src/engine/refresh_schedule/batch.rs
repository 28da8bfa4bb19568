//! Leases of one schedule that are refreshed together.

use std::{ops::Range, sync::Arc, time::Duration};

use super::{Schedule, Schedules, leases::Stage};
use crate::{
    Error, Result, Ttl,
    engine::{in_flight::InFlight, lease_shared::LeaseShared},
};

/// How long a store may take for each lease of the batches that are under way: MongoDB took 155 microseconds, three members
/// on a small machine, until a majority had confirmed.
pub(super) const EACH: Duration = Duration::from_micros(500);

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
    pub(super) hold: Arc<LeaseShared>,
}

/// The answer to a request for some leases of a batch.
pub(super) struct BatchReply {
    /// Which of them.
    pub(super) some: Range<usize>,
    /// The time on the clock just before it was sent.
    pub(super) sent: Duration,
    pub(super) members: Vec<Member>,
    /// Whether the store has refreshed all of them.
    pub(super) kept: Result<bool>,
}

impl Batch {
    /// Leaves some of them to their tasks.
    pub(super) fn leave<'a>(&self, members: impl IntoIterator<Item = &'a Member>) {
        leave(&self.schedule, members, true);
    }

    /// All that are still in the batch are due again.
    pub(super) fn end(&self, began: Duration) {
        let now = self.schedules.context.clock().now();
        let soon = now.saturating_add(self.ttl.duration().checked_div(10).unwrap_or_default());
        self.schedule.update(self.members.iter().map(|member| member.slot), |lease| {
            if lease.stage == Stage::InBatch {
                lease.stage = Stage::Waiting;
                if lease.sent < began {
                    lease.due_at = lease.interval.map_or(soon, |interval| soon.min(now.saturating_add(interval)));
                }
            }
        });
        self.schedule.changed.notify_one();
    }

    /// Listens to what was sent and not answered, for leases that ask by themselves meanwhile.
    pub(super) async fn listen(&self, mut sent: InFlight<BatchReply>) {
        while !sent.is_empty() {
            let answer = sent.next().await;
            self.note_answer(&answer);
        }
    }

    /// Notes what came of a request.
    pub(super) fn note_answer(&self, BatchReply { members, sent, kept, .. }: &BatchReply) {
        match kept {
            Ok(true) => {
                let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
                let took = self.schedules.context.clock().now().saturating_sub(*sent);
                // Collected, because moving a deadline on wakes those who follow the lease, and that must not happen under
                // the lock of the schedule.
                let kept: Vec<_> = members
                    .iter()
                    .filter(|Member { hold, .. }| hold.extend_deadline(until) && hold.is_valid())
                    .collect();
                for Member { hold, .. } in &kept {
                    hold.note_round_trip(took);
                }
                self.schedule.update(kept.into_iter().map(|member| member.slot), |lease| lease.confirmed(*sent));
            }
            Err(error @ Error::Unavailable { .. }) => self.at_risk_since(members, *sent, error),
            Ok(false) | Err(_) => {}
        }
    }

    /// Puts those at risk of which no request was confirmed that was sent at this time or later.
    pub(super) fn at_risk_since<'a>(
        &self,
        members: impl IntoIterator<Item = &'a Member>,
        sent: Duration,
        error: &Error,
    ) {
        let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
        at_risk(members.into_iter().filter(|member| member.hold.deadline() < until), error);
    }
}

pub(super) fn leave<'a>(schedule: &Schedule, members: impl IntoIterator<Item = &'a Member>, was_sent: bool) {
    let members: Vec<_> = members.into_iter().collect();
    schedule.update(members.iter().map(|member| member.slot), |lease| lease.stage = Stage::Single);
    for member in members {
        member.hold.commands.refresh_single(was_sent);
    }
}

pub(super) fn at_risk<'a>(members: impl IntoIterator<Item = &'a Member>, error: &Error) {
    for Member { hold, .. } in members.into_iter().filter(|member| member.hold.is_valid()) {
        hold.at_risk(error);
    }
}
