//! The leases of a schedule: which are due or have lapsed, and which a batch takes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{Ttl, hold::Hold};

/// The leases of a schedule, by the numbers of their slots.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pub(super) slots: u64,
    pub(super) by_slot: HashMap<u64, Scheduled>,
    /// When, on the clock, each is looked at next.
    pub(super) looks: BTreeSet<(Duration, u64)>,
    /// The deadlines of those that wait for the next batch.
    pub(super) due: BTreeSet<(Duration, u64)>,
    /// Whether a batch has begun that has not taken its leases.
    pub(super) is_batch_pending: bool,
    /// Whether the task of the schedule runs.
    pub(super) is_run: bool,
}

/// A lease on a schedule.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) hold: Arc<Hold>,
    /// Between two refreshes; `None` for a lease that is refreshed only when its holder says so.
    pub(super) interval: Option<Duration>,
    /// Whether its task refreshes it by itself each time.
    pub(super) is_single: bool,
    /// Whether its handle has listened for its revocation.
    pub(super) has_listened: bool,
    /// When, on the clock, the last request was sent that the store confirmed.
    pub(super) sent: Duration,
    /// When the next one is due.
    pub(super) due_at: Duration,
    /// When it is looked at next, as in [`Leases::looks`].
    pub(super) look_at: Duration,
    pub(super) stage: Stage,
}

/// What is done about the refresh of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
    pub(super) fn confirmed(&mut self, sent: Duration) {
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
    pub(super) fn update<T>(&mut self, slot: u64, change: impl FnOnce(&mut Scheduled) -> T) -> Option<T> {
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

    pub(super) fn remove(&mut self, slot: u64) {
        let Some(lease) = self.by_slot.remove(&slot) else { return };
        self.looks.remove(&(lease.look_at, slot));
        if let Stage::Due(deadline) = lease.stage {
            self.due.remove(&(deadline, slot));
        }
    }

    /// Takes the leases of a batch: those that are due, the earliest deadlines first, and those that are ready.
    pub(super) fn take_batch(&mut self, now: Duration, most: usize, ttl: Ttl) -> Vec<(u64, Arc<Hold>)> {
        self.is_batch_pending = false;
        let ready_until = now.saturating_add(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = self.looks.iter().take_while(|(look_at, _)| *look_at <= ready_until).map(|(_, slot)| *slot);
        let ready = ready.filter(|slot| self.by_slot.get(slot).is_some_and(|lease| lease.is_ready(now)));
        let slots: Vec<u64> = self.due.iter().map(|(_, slot)| *slot).chain(ready).take(most).collect();
        let taken = |slot| {
            Some((
                slot,
                self.update(slot, |lease| {
                    lease.stage = Stage::InBatch;
                    Arc::clone(&lease.hold)
                })?,
            ))
        };
        slots.into_iter().filter_map(taken).collect()
    }

    /// Notes which leases have lapsed and which are due.
    pub(super) fn todo(&mut self, now: Duration) -> Todo {
        let mut todo = Todo::default();
        while let Some((look_at, slot)) = self.looks.first().copied()
            && look_at <= now
        {
            let lapsed = self.update(slot, |lease| {
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
                self.remove(slot);
                todo.lapsed.push(hold);
            }
        }
        if !self.is_batch_pending {
            todo.batch_until = self.due.first().map(|(deadline, _)| *deadline);
            self.is_batch_pending = todo.batch_until.is_some();
        }
        todo.next = self.looks.first().map(|(look_at, _)| *look_at);
        todo
    }
}

/// What the task of a schedule has to do.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) lapsed: Vec<Arc<Hold>>,
    /// Leases that their tasks refresh.
    pub(super) singles: Vec<Arc<Hold>>,
    /// The earliest deadline of a batch that has to begin.
    pub(super) batch_until: Option<Duration>,
    /// When, on the clock, to look again.
    pub(super) next: Option<Duration>,
}
