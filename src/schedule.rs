//! When the leases of a handle are refreshed, and which of them by one request.
//!
//! Purpose: a handle that holds a hundred thousand leases has few timers and sends few requests.
//!
//! Mechanism: leases of one ttl, whose tasks are on one runtime, have one schedule. One task for each schedule sleeps until
//! the first of its leases is due or lapses. When a lease is due, a batch refreshes it together with the leases that are past
//! half of their interval, the earliest deadlines first. So after one interval leases that were acquired one by one are a
//! batch or two. A lease that is refreshed by itself, such as one with metadata, is left to its task when it is due.
//!
//! A batch is sent when the one before was answered, or was not for a sixteenth of the time to the earliest deadline, or
//! longer if the store is known to be slow. Batches that are under way at the same time take the servers as long, and each is
//! under way for the time of all.
//!
//! The task of a schedule looks at the clock every two seconds, so no lease needs a timer to notice that the machine was
//! suspended.

mod batch;
mod round;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::Notify,
};

use self::batch::Batch;
use crate::{Ttl, hold::Hold, seal::Inner};

/// So many leases take the store as long as one.
const FEW: u16 = 256;

/// The schedules of a handle.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    by_kind: Mutex<HashMap<Kind, Arc<Schedule>>>,
    /// Held by the batch that is under way.
    turn: tokio::sync::Mutex<()>,
    /// How many leases are in batches that are under way.
    under_way: AtomicUsize,
    /// How long the store took for the last batch, for each lease that was under way then, in nanoseconds.
    each: AtomicU64,
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

/// The leases of a schedule, by the numbers of their slots.
#[derive(Debug, Default)]
struct Leases {
    slots: u64,
    by_slot: HashMap<u64, Scheduled>,
    /// When, on the clock, each is looked at next.
    looks: BTreeSet<(Duration, u64)>,
    /// The deadlines of those that wait for the next batch.
    due: BTreeSet<(Duration, u64)>,
    /// Whether a batch has begun that has not taken its leases.
    is_batch_pending: bool,
    /// Whether the task of the schedule runs.
    is_run: bool,
}

/// A lease on a schedule.
#[derive(Debug)]
struct Scheduled {
    hold: Arc<Hold>,
    /// Between two refreshes; `None` for a lease that is refreshed only when its holder says so.
    interval: Option<Duration>,
    /// Whether its task refreshes it by itself each time.
    is_single: bool,
    /// Whether its handle has listened for its revocation.
    has_listened: bool,
    /// When, on the clock, the last request was sent that the store confirmed.
    sent: Duration,
    /// When the next one is due.
    due_at: Duration,
    /// When it is looked at next, as in [`Leases::looks`].
    look_at: Duration,
    stage: Stage,
}

/// What is done about the refresh of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not due.
    Waiting,
    /// It is due, and in [`Leases::due`] with this deadline.
    Due(Duration),
    InBatch,
    /// Its task refreshes it by itself.
    Single,
}

impl Scheduled {
    /// The store confirmed a request that was sent at this time.
    fn confirmed(&mut self, sent: Duration) {
        if sent > self.sent {
            self.sent = sent;
            self.due_at = self.interval.map_or(Duration::MAX, |interval| sent.saturating_add(interval));
        }
    }

    /// Whether it can be in a batch that begins now, although it is not due.
    fn is_ready(&self, now: Duration) -> bool {
        let half = self.interval.and_then(|interval| interval.checked_div(2));
        self.stage == Stage::Waiting
            && !self.is_single
            && half.is_some_and(|half| self.sent.saturating_add(half) <= now)
            && self.hold.is_valid()
    }
}

impl Leases {
    /// Changes what is said of a lease, and notes when to look at it.
    fn update<T>(&mut self, slot: u64, change: impl FnOnce(&mut Scheduled) -> T) -> Option<T> {
        let Self { by_slot, looks, due, .. } = self;
        let lease = by_slot.get_mut(&slot)?;
        let before = lease.stage;
        let changed = change(lease);
        if before != lease.stage {
            if let Stage::Due(deadline) = before {
                due.remove(&(deadline, slot));
            }
            if let Stage::Due(deadline) = lease.stage {
                due.insert((deadline, slot));
            }
        }
        let lapses_at = lease.hold.deadline();
        let look_at = if lease.stage == Stage::Waiting { lapses_at.min(lease.due_at) } else { lapses_at };
        looks.remove(&(lease.look_at, slot));
        looks.insert((look_at, slot));
        lease.look_at = look_at;
        Some(changed)
    }

    fn remove(&mut self, slot: u64) {
        let Some(lease) = self.by_slot.remove(&slot) else { return };
        self.looks.remove(&(lease.look_at, slot));
        if let Stage::Due(deadline) = lease.stage {
            self.due.remove(&(deadline, slot));
        }
    }

    /// Takes the leases of a batch: those that are due, the earliest deadlines first, and those that are ready.
    fn take_batch(&mut self, now: Duration, most: usize, ttl: Ttl) -> Vec<(u64, Arc<Hold>)> {
        self.is_batch_pending = false;
        let ready_until = now.saturating_add(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = self.looks.iter().take_while(|(look_at, _)| *look_at <= ready_until).map(|(_, slot)| *slot);
        let ready = ready.filter(|slot| self.by_slot.get(slot).is_some_and(|lease| lease.is_ready(now)));
        let slots: Vec<u64> = self.due.iter().map(|(_, slot)| *slot).chain(ready).take(most).collect();
        let taken = |slot| Some((slot, self.update(slot, |lease| {
            lease.stage = Stage::InBatch;
            Arc::clone(&lease.hold)
        })?));
        slots.into_iter().filter_map(taken).collect()
    }
}

/// What the task of a schedule has to do.
#[derive(Default)]
struct Todo {
    lapsed: Vec<Arc<Hold>>,
    /// Leases that their tasks refresh.
    singles: Vec<Arc<Hold>>,
    /// The earliest deadline of a batch that has to begin.
    batch_until: Option<Duration>,
    /// When, on the clock, to look again.
    next: Option<Duration>,
}

impl Schedules {
    fn schedules(&self) -> MutexGuard<'_, HashMap<Kind, Arc<Schedule>>> {
        self.by_kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a schedule that has no leases. Says whether it did.
    fn forget_if_empty(&self, kind: Kind) -> bool {
        let mut schedules = self.schedules();
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

    /// Notes how long the store took for a batch that was sent when so many leases were under way.
    fn note_took(&self, took: Duration, under_way: u32) {
        let each = took.checked_div(under_way.max(FEW.into())).unwrap_or_default();
        self.each.store(u64::try_from(each.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many leases of this ttl a store as fast as the last time refreshes in a 24th of the ttl.
    fn max_batch(&self, ttl: Ttl) -> usize {
        let part = ttl.duration().checked_div(24).unwrap_or_default().as_nanos();
        let each = u128::from(self.each.load(Ordering::Relaxed));
        let many = part.checked_div(each).and_then(|many| usize::try_from(many).ok());
        many.map_or(usize::MAX, |many| many.max(FEW.into()))
    }

    /// How long a batch waits for the one before, if it is so long to the earliest deadline: a sixteenth of it. A store that
    /// is slow, but answers, is not sent more and more at once, as long as a third of it is left.
    fn patience(&self, left: Duration) -> Duration {
        let part = |of: u32| left.checked_div(of).unwrap_or_default();
        part(16).max(self.may_take(self.under_way()).min(part(3)))
    }

    /// How long the store may take if so many leases are under way, as fast as it was the last time.
    fn may_take(&self, under_way: u32) -> Duration {
        Duration::from_nanos(self.each.load(Ordering::Relaxed)).saturating_mul(under_way).mul_f64(1.5)
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
    async fn run(self: Arc<Self>, inner: Arc<Inner>, kind: Kind) {
        let _runs = Runs(Arc::clone(&self));
        let clock = inner.clock();
        loop {
            let Todo { lapsed, singles, batch_until, next } = self.todo(clock.now());
            for hold in lapsed {
                hold.wishes.lapsed();
            }
            for hold in singles {
                hold.wishes.refresh_single(false);
            }
            if let Some(until) = batch_until {
                let patience = inner.schedules.patience(until.saturating_sub(clock.now()));
                inner.spawn(Batch::run(Arc::clone(&inner), Arc::clone(&self), kind.0, patience));
            }
            if next.is_none() && inner.schedules.forget_if_empty(kind) {
                return;
            }
            tokio::select! {
                biased;
                () = inner.closing.cancelled() => return,
                () = self.changed.notified() => {}
                () = clock.sleep_until(next.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    /// Notes which leases have lapsed and which are due.
    fn todo(&self, now: Duration) -> Todo {
        let mut leases = self.leases();
        let mut todo = Todo::default();
        while let Some((look_at, slot)) = leases.looks.first().copied()
            && look_at <= now
        {
            let lapsed = leases.update(slot, |lease| {
                if lease.hold.remaining().is_zero() {
                    return Some(Arc::clone(&lease.hold));
                }
                if lease.stage == Stage::Waiting && lease.due_at <= now {
                    if lease.is_single {
                        lease.stage = Stage::Single;
                        todo.singles.push(Arc::clone(&lease.hold));
                    } else {
                        lease.stage = Stage::Due(lease.hold.deadline());
                    }
                }
                None
            });
            if let Some(hold) = lapsed.flatten() {
                // Its task ends it.
                leases.remove(slot);
                todo.lapsed.push(hold);
            }
        }
        if !leases.is_batch_pending {
            todo.batch_until = leases.due.first().map(|(deadline, _)| *deadline);
            leases.is_batch_pending = todo.batch_until.is_some();
        }
        todo.next = leases.looks.first().map(|(look_at, _)| *look_at);
        todo
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
    pub(crate) fn take(inner: &Arc<Inner>, hold: &Arc<Hold>, wanted: Wanted) -> Self {
        let Wanted { ttl, interval, is_single, has_listened, sent, due_at } = wanted;
        let kind = (ttl, Handle::try_current().ok().map(|runtime| runtime.id()));
        // Under this lock, so that the schedule is not forgotten meanwhile.
        let mut schedules = inner.schedules.schedules();
        let schedule = Arc::clone(schedules.entry(kind).or_default());
        let mut leases = schedule.leases();
        leases.slots = leases.slots.saturating_add(1);
        let number = leases.slots;
        let hold = Arc::clone(hold);
        let look_at = hold.deadline();
        let lease =
            Scheduled { hold, interval, is_single, has_listened, sent, due_at, look_at, stage: Stage::Waiting };
        leases.by_slot.insert(number, lease);
        leases.update(number, |_| ());
        let is_first = leases.looks.first().is_some_and(|(_, first)| *first == number);
        let is_run = std::mem::replace(&mut leases.is_run, true);
        drop(leases);
        drop(schedules);
        if !is_run {
            inner.spawn(Arc::clone(&schedule).run(Arc::clone(inner), kind));
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
