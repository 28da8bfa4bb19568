//! Invariants I12 and I20: a locked record delays no request of another key, and costs no lease on another key.

use super::{Case, Lease, SLACK, Violation};
use crate::{
    words::{Acquire, Fault, Micros, Outcome, micros},
    worker::{FLEET, OPERATION_TIMEOUT, WRITTEN_KEYS},
};

/// How long an acquire takes at most beside a locked record, without its own wait.
const PROMPT: Micros = 1_000_000;

/// For how long before a lock acquires are compared with those beside it.
const BEFORE: Micros = 5_000_000;

/// How many writes an acquire is at most, one after another, and one that waits for a key beside other processes, whose
/// writes of the same record it waits for, too.
const WRITES: u64 = 3;
const WRITES_OF_WAITER: u64 = 6;

/// How many single refreshes a handle with a pool of 64 connections sends at once: see `store/pool.rs`.
const SINGLES: u64 = 8;

/// After a part of the fleet met a locked record, the handle refreshes up to all leases of the fleet alone. The last one waits for
/// so many writes, one after another.
pub(super) const WRITES_OF_FLEET: u64 = (FLEET as u64).div_ceil(SINGLES);

impl Case<'_> {
    /// The acquires of other keys that began while a transaction had locked a record, and nothing else was wrong.
    pub(crate) fn beside_locks(&self) -> impl Iterator<Item = (&Fault, &Acquire)> {
        let locks = self.settled_faults().filter(|fault| fault.is_lock());
        locks.flat_map(move |lock| {
            let meanwhile = |acquire: &&&Acquire| (lock.begin..lock.end).contains(&acquire.begin);
            let is_other = move |acquire: &&&Acquire| lock.locked().all(|key| acquire.key != key);
            let others = self.acquires.iter().filter(meanwhile).filter(is_other);
            let others = others.filter(|acquire| !may_be_locked(acquire));
            let alone = others.filter(|acquire| !self.is_disturbed(acquire.worker, lock, acquire.begin, acquire.end));
            alone.map(move |acquire| (lock, *acquire))
        })
    }

    /// Such an acquire returns within a second, and with an answer.
    pub(super) fn other_keys_go_on(&self, found: &mut Vec<Violation>) {
        for (lock, acquire) in self.beside_locks() {
            let took = acquire.end.saturating_sub(acquire.begin);
            let wait = acquire.within.saturating_sub(micros(OPERATION_TIMEOUT));
            let writes = if wait > 0 { WRITES_OF_WAITER } else { WRITES };
            let mut slow = self.slowness(writes, acquire.worker, acquire.begin, acquire.end);
            let is_unanswered = matches!(acquire.outcome, Outcome::Unavailable { .. });
            if took > wait + PROMPT + slow || is_unanswered {
                // The server tries writes of a locked record again and again, which takes processor time.
                slow += 2 * self.slowest_before(lock.begin);
            }
            let allowed = wait + PROMPT + slow;
            if took > allowed || is_unanswered && slow < PROMPT {
                let Acquire { key, worker, begin, outcome, .. } = acquire;
                let what = format!(
                    "acquire {key} of worker {worker}, begun at {begin}, took {took} µs of {allowed} while a transaction held the record of {}: {outcome:?}",
                    lock.locked().next().unwrap_or_default()
                );
                found.push(Violation { of: "I12", what });
            }
        }
    }

    /// How long an acquire without a wait took at most in the last seconds before this time, of a worker that no fault
    /// concerned: what the machine was able to do without a lock.
    fn slowest_before(&self, lock: Micros) -> Micros {
        let before = self.acquires.iter().filter(|acquire| {
            (lock.saturating_sub(BEFORE)..lock).contains(&acquire.end)
                && acquire.within == micros(OPERATION_TIMEOUT)
                && !self.was_at_fault(acquire.worker, acquire.begin, acquire.end)
        });
        before.map(|acquire| acquire.end.saturating_sub(acquire.begin)).max().unwrap_or(0)
    }

    /// The leases on other keys that their handles refreshed while records were locked for a whole ttl, and nothing else
    /// was wrong. Gives with each when it was lost by that, or the end of the lock.
    pub(crate) fn refreshed_beside_locks(&self) -> impl Iterator<Item = (&Fault, &Lease<'_>, Micros)> {
        let locks = self.settled_faults().filter(|fault| fault.is_lock());
        locks.flat_map(move |lock| {
            let leases = self.leases.values().flatten().filter(|lease| lease.acquire.refreshes);
            let leases = leases.filter(|lease| lock.locked().all(|key| lease.acquire.key != key));
            let leases = leases.filter(|lease| !may_be_locked(lease.acquire));
            leases.filter_map(move |lease| {
                let ttl = lease.acquire.ttl;
                let at = match lease.lost {
                    Some((at, "expired", _)) => at,
                    Some(_) => return None,
                    None => lease.believed?.1.min(lock.end),
                };
                let held_before = lease.acquire.end <= lock.begin && (lock.begin..=lock.end).contains(&at);
                let outlives = lease.lost.is_some() || lock.begin + ttl <= at;
                let alone = || !self.is_disturbed(lease.acquire.worker, lock, at.saturating_sub(ttl + SLACK), at);
                (held_before && outlives && alone()).then_some((lock, lease, at))
            })
        })
    }

    /// I20: such a lease is not lost by expiry.
    pub(super) fn leases_outlive_locks(&self, found: &mut Vec<Violation>) {
        for (lock, lease, at) in self.refreshed_beside_locks().filter(|(_, lease, _)| lease.lost.is_some()) {
            let ttl = lease.acquire.ttl;
            // A delay of two fifths of the ttl is promised to do no harm.
            let slow = self.slowness(WRITES_OF_FLEET, lease.acquire.worker, at.saturating_sub(ttl + SLACK), at);
            if slow * 5 < ttl * 2 {
                let count = lock.locked().count();
                let what = format!("{} expired at {at} while {count} records of other keys were locked", lease.name());
                found.push(Violation { of: "I20", what });
            }
        }
    }
}

/// Whether the transaction of a worker may have locked the record: it writes documents under a lease.
fn may_be_locked(acquire: &Acquire) -> bool {
    WRITTEN_KEYS.contains(&acquire.key.as_str())
}
