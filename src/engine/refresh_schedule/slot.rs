//! The place of a lease on a schedule.

use std::{mem, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Schedule, Schedules,
    leases::{Scheduled, Stage},
};
use crate::{Ttl, engine::lease_shared::LeaseShared};

/// The place of a lease on a schedule, given up when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    schedule: Arc<Schedule>,
    number: u64,
    /// The ttl of the schedule.
    pub(crate) ttl: Ttl,
    pub(crate) is_single: bool,
}

/// What is scheduled.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) ttl: Ttl,
    /// Between two refreshes; `None` for a lease that is refreshed only when its holder says so.
    pub(crate) interval: Option<Duration>,
    /// Whether the lease's task refreshes it by itself each time.
    pub(crate) is_single: bool,
    /// Whether its handle has listened for its revocation.
    pub(crate) has_listened: bool,
    /// When, on the clock, the last request was sent that the store confirmed.
    pub(crate) sent: Duration,
    /// When the next one is due.
    pub(crate) due_at: Duration,
}

impl Slot {
    /// For a lease whose task calls this.
    pub(crate) fn take(schedules: &Arc<Schedules>, hold: &Arc<LeaseShared>, wanted: Wanted) -> Self {
        let Wanted { ttl, interval, is_single, has_listened, sent, due_at } = wanted;
        let kind = (ttl, Handle::try_current().ok().map(|runtime| runtime.id()));
        // Under this lock, so that the schedule is not forgotten meanwhile.
        let mut by_kind = schedules.by_kind();
        let schedule = Arc::clone(by_kind.entry(kind).or_default());
        let mut leases = schedule.leases();
        leases.slots = leases.slots.saturating_add(1);
        let number = leases.slots;
        let hold = Arc::clone(hold);
        let look_at = hold.deadline();
        let lease = Scheduled { hold, interval, is_single, has_listened, sent, due_at, look_at, stage: Stage::Waiting };
        leases.by_slot.insert(number, lease);
        leases.update(number, |_| ());
        let is_first = leases.looks.first().is_some_and(|(_, first)| *first == number);
        let is_run = mem::replace(&mut leases.is_run, true);
        drop(leases);
        drop(by_kind);
        if !is_run {
            schedules.context.spawn(Arc::clone(&schedule).run(Arc::clone(schedules), kind));
        } else if is_first {
            schedule.changed.notify_one();
        }
        Self { schedule, number, ttl, is_single }
    }

    /// Changes what is said of the lease, which may be due sooner after that.
    fn update(&self, change: impl Fn(&mut Scheduled)) {
        self.schedule.update([self.number], change);
        self.schedule.changed.notify_one();
    }

    /// The handle has listened for the revocation of the lease.
    pub(crate) fn has_listened(&self) {
        self.schedule.update([self.number], |lease| lease.has_listened = true);
    }

    /// The store confirmed a request of the lease's task.
    pub(crate) fn confirmed(&self, sent: Duration) {
        self.update(|lease| {
            lease.stage = Stage::Waiting;
            lease.confirmed(sent);
        });
    }

    /// The lease's task does not refresh it by itself any more. If it did, the lease is due again at this time.
    pub(crate) fn unconfirmed(&self, due_at: Duration) {
        self.update(|lease| {
            if lease.stage == Stage::Single {
                lease.stage = Stage::Waiting;
                lease.due_at = due_at;
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
