//! The place of a lease on a schedule.

use std::{mem, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Schedule, Schedules,
    leases::{Scheduled, Stage},
};
use crate::{Ttl, engine::lease_shared::LeaseShared};

/// The place of a lease on a schedule. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Slot {
    schedule: Arc<Schedule>,
    number: u64,
    /// The ttl of the schedule.
    pub(crate) ttl: Ttl,
    pub(crate) is_single: bool,
}

/// How a lease is scheduled.
#[derive(Clone, Copy)]
pub(crate) struct ScheduleSpec {
    pub(crate) ttl: Ttl,
    /// The time between two refreshes. `None`: only its holder requests them.
    pub(crate) interval: Option<Duration>,
    /// Whether its task refreshes it alone each time.
    pub(crate) is_single: bool,
    /// Whether its handle has listened for a revocation of it.
    pub(crate) has_listened: bool,
    /// When, on the clock, the last confirmed request was sent.
    pub(crate) sent: Duration,
    /// When the next refresh is due.
    pub(crate) due_at: Duration,
}

impl Slot {
    /// Takes a place for a lease. Its task calls this.
    pub(crate) fn take(schedules: &Arc<Schedules>, lease: &Arc<LeaseShared>, spec: ScheduleSpec) -> Self {
        let ScheduleSpec { ttl, interval, is_single, has_listened, sent, due_at } = spec;
        let kind = (ttl, Handle::try_current().ok().map(|runtime| runtime.id()));
        // Under this lock, so that the schedule is not removed meanwhile.
        let mut by_kind = schedules.by_kind();
        let schedule = Arc::clone(by_kind.entry(kind).or_default());
        let mut leases = schedule.leases();
        leases.slots = leases.slots.saturating_add(1);
        let number = leases.slots;
        let lease = Arc::clone(lease);
        let check_at = lease.deadline();
        let stage = Stage::Waiting;
        let entry = Scheduled { lease, interval, is_single, has_listened, sent, due_at, check_at, stage };
        leases.by_slot.insert(number, entry);
        leases.update(number, |_| ());
        let is_first = leases.checks.first().is_some_and(|(_, first)| *first == number);
        let is_running = mem::replace(&mut leases.is_running, true);
        drop(leases);
        drop(by_kind);
        if !is_running {
            schedules.context.spawn(Arc::clone(&schedule).run(Arc::clone(schedules), kind));
        } else if is_first {
            schedule.changed.notify_one();
        }
        Self { schedule, number, ttl, is_single }
    }

    /// Changes the entry of the lease. It may be due sooner after that.
    fn update(&self, change: impl Fn(&mut Scheduled)) {
        self.schedule.update([self.number], change);
        self.schedule.changed.notify_one();
    }

    /// Notes that the handle has listened for a revocation of the lease.
    pub(crate) fn note_listened(&self) {
        self.schedule.update([self.number], |scheduled| scheduled.has_listened = true);
    }

    /// Notes that the store confirmed a request of the lease's task.
    pub(crate) fn note_confirmed(&self, sent: Duration) {
        self.update(|scheduled| {
            scheduled.stage = Stage::Waiting;
            scheduled.note_confirmed(sent);
        });
    }

    /// Notes that the lease's task stops refreshing it alone. If the task did, the lease is due again at `due_at`.
    pub(crate) fn note_unconfirmed(&self, due_at: Duration) {
        self.update(|scheduled| {
            if scheduled.stage == Stage::Single {
                scheduled.stage = Stage::Waiting;
                scheduled.due_at = due_at;
            }
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut leases = self.schedule.leases();
        leases.remove(self.number);
        let is_last = leases.by_slot.is_empty();
        drop(leases);
        if is_last {
            self.schedule.changed.notify_one();
        }
    }
}
