//! The leases of a schedule: which are due, which have expired, and which a batch takes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{Ttl, engine::lease_shared::LeaseShared};

/// The leases of a schedule, by the numbers of their slots.
#[derive(Debug, Default)]
pub(super) struct ScheduledLeases {
    pub(super) slots: u64,
    pub(super) by_slot: HashMap<u64, Scheduled>,
    /// When, on the clock, each lease is checked next.
    pub(super) checks: BTreeSet<(Duration, u64)>,
    /// The deadlines of the leases that wait for the next batch.
    pub(super) due: BTreeSet<(Duration, u64)>,
    /// Whether a batch has begun and has not taken its leases.
    pub(super) is_batch_pending: bool,
    /// Whether the task of the schedule runs.
    pub(super) is_running: bool,
}

/// A lease on a schedule.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) lease: Arc<LeaseShared>,
    /// The time between two refreshes. `None`: only its holder requests them.
    pub(super) interval: Option<Duration>,
    /// Whether its task refreshes it alone each time.
    pub(super) is_single: bool,
    /// Whether its handle has listened for a revocation of it.
    pub(super) has_listened: bool,
    /// When, on the clock, the last confirmed request was sent.
    pub(super) sent: Duration,
    /// When the next refresh is due.
    pub(super) due_at: Duration,
    /// When it is checked next, as in [`ScheduledLeases::checks`].
    pub(super) check_at: Duration,
    pub(super) stage: Stage,
}

/// The stage of a lease's refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is not due.
    Waiting,
    /// It is due, and in [`ScheduledLeases::due`] with this deadline.
    Due(Duration),
    InBatch,
    /// Its task refreshes it alone.
    Single,
}

impl Scheduled {
    /// Notes a confirmed request that was sent at `sent`.
    pub(super) fn note_confirmed(&mut self, sent: Duration) {
        if sent > self.sent {
            self.sent = sent;
            self.due_at = self.interval.map_or(Duration::MAX, |interval| sent.saturating_add(interval));
        }
    }

    /// Whether a batch that begins now may take the lease before it is due.
    fn is_ready(&self, now: Duration) -> bool {
        let half = self.interval.and_then(|interval| interval.checked_div(2));
        self.stage == Stage::Waiting
            && !self.is_single
            && half.is_some_and(|half| self.sent.saturating_add(half) <= now)
            && self.lease.is_valid()
    }
}

impl ScheduledLeases {
    /// Changes the entry of a lease, and notes when to check it.
    pub(super) fn update<T>(&mut self, slot: u64, change: impl FnOnce(&mut Scheduled) -> T) -> Option<T> {
        let Self { by_slot, checks, due, .. } = self;
        let scheduled = by_slot.get_mut(&slot)?;
        let before = scheduled.stage;
        let changed = change(scheduled);
        if before != scheduled.stage {
            if let Stage::Due(deadline) = before {
                due.remove(&(deadline, slot));
            }
            if let Stage::Due(deadline) = scheduled.stage {
                due.insert((deadline, slot));
            }
        }
        let lapses_at = scheduled.lease.deadline();
        let check_at = if scheduled.stage == Stage::Waiting { lapses_at.min(scheduled.due_at) } else { lapses_at };
        checks.remove(&(scheduled.check_at, slot));
        checks.insert((check_at, slot));
        scheduled.check_at = check_at;
        Some(changed)
    }

    pub(super) fn remove(&mut self, slot: u64) {
        let Some(scheduled) = self.by_slot.remove(&slot) else { return };
        self.checks.remove(&(scheduled.check_at, slot));
        if let Stage::Due(deadline) = scheduled.stage {
            self.due.remove(&(deadline, slot));
        }
    }

    /// Takes the leases of a batch: those that are due, the earliest deadlines first, and those that are ready.
    pub(super) fn take_batch(&mut self, now: Duration, most: usize, ttl: Ttl) -> Vec<(u64, Arc<LeaseShared>)> {
        self.is_batch_pending = false;
        let ready_until = now.saturating_add(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = self.checks.iter().take_while(|(check_at, _)| *check_at <= ready_until).map(|(_, slot)| *slot);
        let ready = ready.filter(|slot| self.by_slot.get(slot).is_some_and(|scheduled| scheduled.is_ready(now)));
        let slots: Vec<u64> = self.due.iter().map(|(_, slot)| *slot).chain(ready).take(most).collect();
        let taken = |slot| {
            Some((
                slot,
                self.update(slot, |scheduled| {
                    scheduled.stage = Stage::InBatch;
                    Arc::clone(&scheduled.lease)
                })?,
            ))
        };
        slots.into_iter().filter_map(taken).collect()
    }

    /// Collects the leases that have expired and those that are due.
    pub(super) fn collect_due(&mut self, now: Duration) -> Todo {
        let mut todo = Todo::default();
        while let Some((check_at, slot)) = self.checks.first().copied()
            && check_at <= now
        {
            let lapsed = self.update(slot, |scheduled| {
                if scheduled.lease.remaining().is_zero() {
                    return Some(Arc::clone(&scheduled.lease));
                }
                if scheduled.stage == Stage::Waiting && scheduled.due_at <= now {
                    if scheduled.is_single {
                        scheduled.stage = Stage::Single;
                        todo.singles.push(Arc::clone(&scheduled.lease));
                    } else {
                        scheduled.stage = Stage::Due(scheduled.lease.deadline());
                    }
                }
                None
            });
            if let Some(lease) = lapsed.flatten() {
                // Its task ends it.
                self.remove(slot);
                todo.lapsed.push(lease);
            }
        }
        if !self.is_batch_pending {
            todo.batch_until = self.due.first().map(|(deadline, _)| *deadline);
            self.is_batch_pending = todo.batch_until.is_some();
        }
        todo.next = self.checks.first().map(|(check_at, _)| *check_at);
        todo
    }
}

/// What the task of a schedule has to do.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) lapsed: Vec<Arc<LeaseShared>>,
    /// Leases that their tasks refresh alone.
    pub(super) singles: Vec<Arc<LeaseShared>>,
    /// The earliest deadline of a batch that has to begin.
    pub(super) batch_until: Option<Duration>,
    /// When, on the clock, to check again.
    pub(super) next: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, engine::lease_shared::tests::held};

    const INTERVAL: Duration = Duration::from_secs(20);

    /// Leases with a ttl of 60 seconds that were refreshed at these seconds of the clock.
    fn refreshed_at(clock: Clock, seconds: &[u64]) -> ScheduledLeases {
        let mut leases = ScheduledLeases::default();
        for (slot, sent) in (0..).zip(seconds) {
            let sent = Duration::from_secs(*sent);
            let lease = Arc::new(held(clock, sent + 3 * INTERVAL, 0));
            let (check_at, due_at) = (lease.deadline(), sent + INTERVAL);
            let (interval, is_single, has_listened, stage) = (Some(INTERVAL), false, false, Stage::Waiting);
            leases
                .by_slot
                .insert(slot, Scheduled { lease, interval, is_single, has_listened, sent, due_at, check_at, stage });
            leases.update(slot, |_| ());
        }
        leases
    }

    fn taken(leases: &mut ScheduledLeases, now: u64, most: usize) -> Vec<u64> {
        let ttl = Ttl::try_from(3 * INTERVAL).unwrap();
        leases.take_batch(Duration::from_secs(now), most, ttl).into_iter().map(|(slot, _)| slot).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_takes_the_earliest_deadlines_first_and_then_those_past_half_of_their_interval() {
        let mut leases = refreshed_at(Clock::tokio(), &[3, 1, 2, 8, 11, 5]);
        let now = Duration::from_secs(23);
        let todo = leases.collect_due(now);
        assert_eq!(todo.batch_until, Some(Duration::from_secs(61)));
        assert!(leases.collect_due(now).batch_until.is_none(), "a batch has begun and has not taken its leases");
        assert_eq!(taken(&mut leases, 23, 2), [1, 2]);
        assert_eq!(leases.collect_due(now).batch_until, Some(Duration::from_secs(63)), "more are due");
        assert_eq!(taken(&mut leases, 23, 9), [0, 5, 3, 4]);
        assert_eq!(taken(&mut leases, 23, 9), [0; 0], "all are in a batch");
        leases.update(2, |lease| {
            lease.stage = Stage::Waiting;
            lease.note_confirmed(Duration::from_secs(23));
        });
        assert_eq!(taken(&mut leases, 32, 9), [0; 0]);
        assert_eq!(taken(&mut leases, 33, 9), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_lease_is_collected_once_and_an_extended_deadline_is_checked_again() {
        let clock = Clock::tokio();
        let mut leases = refreshed_at(clock, &[0, 0, 0]);
        assert!(leases.collect_due(INTERVAL).lapsed.is_empty());
        assert_eq!(taken(&mut leases, 20, 9), [0, 1, 2]);
        leases.by_slot[&1].lease.extend_deadline(Duration::from_secs(80));
        tokio::time::advance(3 * INTERVAL).await;
        let todo = leases.collect_due(clock.now());
        assert_eq!((todo.lapsed.len(), todo.next), (2, Some(Duration::from_secs(80))));
        assert!(leases.collect_due(clock.now()).lapsed.is_empty());
    }
}
