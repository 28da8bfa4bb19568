//! The schedules by which a handle refreshes its leases, and the batches that it sends.
//!
//! Purpose: a handle that holds a hundred thousand leases needs few timers and few requests.
//!
//! Mechanism: leases with one ttl whose tasks are on one runtime share a schedule. Each schedule has one task, which
//! sleeps until its first lease is due or expires. When a lease is due, a batch refreshes it together with the leases
//! that are past half of their interval, the earliest deadlines first. So after one interval, leases that were acquired
//! one by one share a batch or two. A lease that is refreshed alone, such as one with metadata, is left to its task
//! when it is due.
//!
//! A batch is sent when the store has answered the one before, or after a sixteenth of the time to the earliest
//! deadline. If the store was slow the last two times, a batch waits longer and takes fewer leases: concurrent batches
//! cost the servers as much, and each of them then takes the time of all.
//!
//! Invariant: the task of a schedule reads the clock every two seconds, so no lease needs a timer to notice that the
//! machine was suspended.

mod batch;
mod leases;
mod round;
mod run;
mod slot;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) use slot::{ScheduleSpec, Slot};
use tokio::{runtime, sync::Notify};

use self::{
    batch::Batch,
    leases::{Scheduled, ScheduledLeases, Todo},
};
use crate::{
    Ttl,
    engine::{context::Context, notifier::Notifier},
};

/// A store takes about as long for this many leases as for one.
const FEW: u16 = 256;

/// The schedules of a handle.
#[derive(Debug)]
pub(crate) struct Schedules {
    context: Arc<Context>,
    /// Knows whether revocations are notified.
    notifier: Arc<Notifier>,
    by_kind: Mutex<HashMap<Kind, Arc<Schedule>>>,
    /// Held by the batch in flight.
    batch_lock: tokio::sync::Mutex<()>,
    /// How many leases are in batches in flight.
    under_way: AtomicUsize,
    /// The store's time for each of the last two batches, per lease in flight.
    took: Mutex<[Duration; 2]>,
}

/// Which leases share a schedule: those with one ttl whose tasks are on one runtime. So a runtime that is not driven
/// stops only its own leases.
type Kind = (Ttl, Option<runtime::Id>);

/// The schedule of the leases of one kind.
#[derive(Debug, Default)]
struct Schedule {
    leases: Mutex<ScheduledLeases>,
    /// Wakes the task of the schedule.
    changed: Notify,
}

impl Schedules {
    pub(crate) fn new(context: Arc<Context>, notifier: Arc<Notifier>) -> Self {
        Self {
            context,
            notifier,
            by_kind: Mutex::default(),
            batch_lock: tokio::sync::Mutex::default(),
            under_way: AtomicUsize::default(),
            took: Mutex::default(),
        }
    }

    fn by_kind(&self) -> MutexGuard<'_, HashMap<Kind, Arc<Schedule>>> {
        self.by_kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a schedule that has no leases. Returns whether it did.
    fn forget_if_empty(&self, kind: Kind) -> bool {
        let mut schedules = self.by_kind();
        let is_empty = schedules.get(&kind).is_none_or(|schedule| schedule.leases().by_slot.is_empty());
        if is_empty {
            schedules.remove(&kind);
        }
        is_empty
    }

    /// How many leases are in batches in flight.
    fn under_way(&self) -> u32 {
        u32::try_from(self.under_way.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    fn took(&self) -> MutexGuard<'_, [Duration; 2]> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the store's time for a batch that was sent when `under_way` leases were in flight.
    fn note_took(&self, took: Duration, under_way: u32) {
        let each = took.checked_div(under_way.max(FEW.into())).unwrap_or_default();
        let mut took = self.took();
        *took = [each, took[0]];
    }

    /// The store's time per lease: the shorter of the last two, because one batch may have waited for a locked record.
    fn time_per_lease(&self) -> Duration {
        self.took().iter().copied().min().unwrap_or_default()
    }

    /// How many leases of this ttl the store refreshes in a 24th of the ttl.
    fn max_batch(&self, ttl: Ttl) -> usize {
        let part = ttl.duration().checked_div(24).unwrap_or_default().as_nanos();
        let many = part.checked_div(self.time_per_lease().as_nanos()).and_then(|many| usize::try_from(many).ok());
        many.map_or(usize::MAX, |many| many.max(FEW.into()))
    }

    /// How long a batch waits for the one before, with this time left to the earliest deadline: a sixteenth of it, or
    /// the time that a slow store needs, up to a third of it. So a store that is slow, but answers, is not sent more
    /// and more at once.
    fn max_wait(&self, left: Duration) -> Duration {
        let part = |of: u32| left.checked_div(of).unwrap_or_default();
        part(16).max(self.expected_time(self.under_way()).min(part(3)))
    }

    /// The store's expected time if this many leases are in flight.
    fn expected_time(&self, under_way: u32) -> Duration {
        self.time_per_lease().saturating_mul(under_way).mul_f64(1.5)
    }
}

impl Schedule {
    fn leases(&self) -> MutexGuard<'_, ScheduledLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the entries of those of these leases that are still on the schedule.
    fn update(&self, slots: impl IntoIterator<Item = u64>, change: impl Fn(&mut Scheduled)) {
        let mut leases = self.leases();
        for slot in slots {
            leases.update(slot, &change);
        }
    }

    /// Runs the schedule until it has no leases: leases that are due are refreshed, and those that have expired end.
    async fn run(self: Arc<Self>, schedules: Arc<Schedules>, kind: Kind) {
        let _guard = RunGuard(Arc::clone(&self));
        let clock = schedules.context.clock();
        loop {
            let Todo { lapsed, singles, batch_until, next } = self.leases().collect_due(clock.now());
            for lease in lapsed {
                lease.commands.end_expired();
            }
            for lease in singles {
                lease.commands.refresh_single(false);
            }
            if let Some(until) = batch_until {
                let max_wait = schedules.max_wait(until.saturating_sub(clock.now()));
                schedules.context.spawn(Batch::run(Arc::clone(&schedules), Arc::clone(&self), kind.0, max_wait));
            }
            if next.is_none() && schedules.forget_if_empty(kind) {
                return;
            }
            tokio::select! {
                biased;
                () = schedules.context.closing.cancelled() => return,
                () = self.changed.notified() => {}
                () = clock.sleep_until(next.unwrap_or(Duration::MAX)) => {}
            }
        }
    }
}

/// Notes, when dropped, that the task of the schedule has ended.
struct RunGuard(Arc<Schedule>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut leases = self.0.leases();
        leases.is_running = false;
        leases.is_batch_pending = false;
    }
}
