//! When the leases of a handle are refreshed, and which of them by one request.
//!
//! Purpose: a handle that holds a hundred thousand leases has few timers and sends few requests.
//!
//! Mechanism: leases of one ttl, whose tasks are on one runtime, have one schedule. One task for each schedule sleeps until
//! the first of its leases is due or lapses. When a lease is due, a batch refreshes it together with the leases that are past
//! half of their interval, the earliest deadlines first. So after one interval leases that were acquired one by one are a
//! batch or two. A lease that is refreshed by itself, such as one with metadata, is left to its task when it is due.
//!
//! A batch is sent when the store has answered the one before, or after a sixteenth of the time to the earliest deadline. If
//! the store was slow the last two times, a batch waits for longer and takes fewer leases: batches that are under way at the
//! same time take the servers as long, and each of them takes the time of all.
//!
//! The task of a schedule looks at the clock every two seconds, so no lease needs a timer to notice that the machine was
//! suspended.

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

pub(crate) use slot::{Slot, Wanted};
use tokio::{runtime, sync::Notify};

use self::{
    batch::Batch,
    leases::{Leases, Scheduled, Todo},
};
use crate::{
    Ttl,
    engine::{context::Context, notifier::Notifier},
};

/// So many leases take the store as long as one.
const FEW: u16 = 256;

/// The schedules of a handle.
#[derive(Debug)]
pub(crate) struct Schedules {
    context: Arc<Context>,
    /// Tells whether revocations are heard of.
    notifier: Arc<Notifier>,
    by_kind: Mutex<HashMap<Kind, Arc<Schedule>>>,
    /// Held by the batch that is under way.
    turn: tokio::sync::Mutex<()>,
    /// How many leases are in batches that are under way.
    under_way: AtomicUsize,
    /// How long the store took for the last two batches, for each lease that was under way then.
    took: Mutex<[Duration; 2]>,
}

/// Which leases have one schedule: those of one ttl whose tasks are on one runtime. A runtime that is not driven any more
/// stops its own leases only.
type Kind = (Ttl, Option<runtime::Id>);

/// The schedule of the leases of one kind.
#[derive(Debug, Default)]
struct Schedule {
    leases: Mutex<Leases>,
    /// Wakes the task of the schedule.
    changed: Notify,
}

impl Schedules {
    pub(crate) fn new(context: Arc<Context>, notifier: Arc<Notifier>) -> Self {
        Self {
            context,
            notifier,
            by_kind: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            under_way: AtomicUsize::default(),
            took: Mutex::default(),
        }
    }

    fn by_kind(&self) -> MutexGuard<'_, HashMap<Kind, Arc<Schedule>>> {
        self.by_kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a schedule that has no leases. Says whether it did.
    fn forget_if_empty(&self, kind: Kind) -> bool {
        let mut schedules = self.by_kind();
        let is_empty = schedules.get(&kind).is_none_or(|schedule| schedule.leases().by_slot.is_empty());
        if is_empty {
            schedules.remove(&kind);
        }
        is_empty
    }

    /// How many leases are in batches that are under way.
    fn under_way(&self) -> u32 {
        u32::try_from(self.under_way.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    fn took(&self) -> MutexGuard<'_, [Duration; 2]> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how long the store took for a batch that was sent when so many leases were under way.
    fn note_took(&self, took: Duration, under_way: u32) {
        let each = took.checked_div(under_way.max(FEW.into())).unwrap_or_default();
        let mut took = self.took();
        *took = [each, took[0]];
    }

    /// How long the store takes for each lease: the shorter one of the last two times, because one batch may have waited for a
    /// locked record.
    fn each(&self) -> Duration {
        self.took().iter().copied().min().unwrap_or_default()
    }

    /// How many leases of this ttl the store refreshes in a 24th of the ttl.
    fn max_batch(&self, ttl: Ttl) -> usize {
        let part = ttl.duration().checked_div(24).unwrap_or_default().as_nanos();
        let many = part.checked_div(self.each().as_nanos()).and_then(|many| usize::try_from(many).ok());
        many.map_or(usize::MAX, |many| many.max(FEW.into()))
    }

    /// How long a batch waits for the one before, if it is so long to the earliest deadline: a sixteenth of it. A store that
    /// is slow, but answers, is not sent more and more at once, as long as a third of it is left.
    fn patience(&self, left: Duration) -> Duration {
        let part = |of: u32| left.checked_div(of).unwrap_or_default();
        part(16).max(self.may_take(self.under_way()).min(part(3)))
    }

    /// How long the store may take if so many leases are under way.
    fn may_take(&self, under_way: u32) -> Duration {
        self.each().saturating_mul(under_way).mul_f64(1.5)
    }
}

impl Schedule {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is said of some leases, as far as they are still on the schedule.
    fn update(&self, slots: impl IntoIterator<Item = u64>, change: impl Fn(&mut Scheduled)) {
        let mut leases = self.leases();
        for slot in slots {
            leases.update(slot, &change);
        }
    }

    /// Has leases refreshed when they are due, and ended when they lapse, until there are none.
    async fn run(self: Arc<Self>, schedules: Arc<Schedules>, kind: Kind) {
        let _runs = Runs(Arc::clone(&self));
        let clock = schedules.context.clock();
        loop {
            let Todo { lapsed, singles, batch_until, next } = self.leases().todo(clock.now());
            for hold in lapsed {
                hold.commands.lapsed();
            }
            for hold in singles {
                hold.commands.refresh_single(false);
            }
            if let Some(until) = batch_until {
                let patience = schedules.patience(until.saturating_sub(clock.now()));
                schedules.context.spawn(Batch::run(Arc::clone(&schedules), Arc::clone(&self), kind.0, patience));
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

/// That the task of a schedule runs, until this is dropped.
struct Runs(Arc<Schedule>);

impl Drop for Runs {
    fn drop(&mut self) {
        let mut leases = self.0.leases();
        leases.is_run = false;
        leases.is_batch_pending = false;
    }
}
