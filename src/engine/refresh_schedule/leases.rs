//! The leases of a schedule: which are due or have lapsed, and which a batch takes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{Ttl, engine::lease_shared::LeaseShared};

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
    pub(super) hold: Arc<LeaseShared>,
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
    pub(super) fn take_batch(&mut self, now: Duration, most: usize, ttl: Ttl) -> Vec<(u64, Arc<LeaseShared>)> {
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
    pub(super) lapsed: Vec<Arc<LeaseShared>>,
    /// Leases that their tasks refresh.
    pub(super) singles: Vec<Arc<LeaseShared>>,
    /// The earliest deadline of a batch that has to begin.
    pub(super) batch_until: Option<Duration>,
    /// When, on the clock, to look again.
    pub(super) next: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, engine::lease_shared::tests::held};

    const INTERVAL: Duration = Duration::from_secs(20);

    /// Leases of 60 seconds that were refreshed at these seconds of the clock.
    fn refreshed_at(clock: Clock, seconds: &[u64]) -> Leases {
        let mut leases = Leases::default();
        for (slot, sent) in (0..).zip(seconds) {
            let sent = Duration::from_secs(*sent);
            let hold = Arc::new(held(clock, sent + 3 * INTERVAL, 0));
            let (look_at, due_at) = (hold.deadline(), sent + INTERVAL);
            let (interval, is_single, has_listened, stage) = (Some(INTERVAL), false, false, Stage::Waiting);
            leases
                .by_slot
                .insert(slot, Scheduled { hold, interval, is_single, has_listened, sent, due_at, look_at, stage });
            leases.update(slot, |_| ());
        }
        leases
    }

    fn taken(leases: &mut Leases, now: u64, most: usize) -> Vec<u64> {
        let ttl = Ttl::try_from(3 * INTERVAL).unwrap();
        leases.take_batch(Duration::from_secs(now), most, ttl).into_iter().map(|(slot, _)| slot).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_takes_the_earliest_deadlines_first_and_then_those_past_half_of_their_interval() {
        let mut leases = refreshed_at(Clock::tokio(), &[3, 1, 2, 8, 11, 5]);
        let now = Duration::from_secs(23);
        let todo = leases.todo(now);
        assert_eq!(todo.batch_until, Some(Duration::from_secs(61)));
        assert!(leases.todo(now).batch_until.is_none(), "a batch has begun and has not taken its leases");
        assert_eq!(taken(&mut leases, 23, 2), [1, 2]);
        assert_eq!(leases.todo(now).batch_until, Some(Duration::from_secs(63)), "more are due");
        assert_eq!(taken(&mut leases, 23, 9), [0, 5, 3, 4]);
        assert_eq!(taken(&mut leases, 23, 9), [0; 0], "all are in a batch");
        leases.update(2, |lease| {
            lease.stage = Stage::Waiting;
            lease.confirmed(Duration::from_secs(23));
        });
        assert_eq!(taken(&mut leases, 32, 9), [0; 0]);
        assert_eq!(taken(&mut leases, 33, 9), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_lapsed_is_told_once_and_a_deadline_that_has_moved_is_looked_at_again() {
        let clock = Clock::tokio();
        let mut leases = refreshed_at(clock, &[0, 0, 0]);
        assert!(leases.todo(INTERVAL).lapsed.is_empty());
        assert_eq!(taken(&mut leases, 20, 9), [0, 1, 2]);
        leases.by_slot[&1].hold.extend_deadline(Duration::from_secs(80));
        tokio::time::advance(3 * INTERVAL).await;
        let todo = leases.todo(clock.now());
        assert_eq!((todo.lapsed.len(), todo.next), (2, Some(Duration::from_secs(80))));
        assert!(leases.todo(clock.now()).lapsed.is_empty());
    }
}
