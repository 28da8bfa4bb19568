//! Invariant I12: a locked record delays no request of another key.

use super::{Case, Violation};
use crate::{
    words::{Acquire, Fault, Micros, micros},
    worker::{OPERATION_TIMEOUT, WRITTEN_KEYS},
};

/// How long an acquire takes at most beside a locked record, without its own wait.
const PROMPT: Micros = 1_000_000;

/// For how long before a lock acquires are compared with those beside it.
const BEFORE: Micros = 5_000_000;

/// How many writes an acquire is at most, one after another, and one that waits for a key beside other processes, whose
/// writes of the same record it waits for, too.
const WRITES: u64 = 3;
const WRITES_OF_WAITER: u64 = 6;

impl Case<'_> {
    /// The acquires of other keys that began while a transaction had locked a record, and nothing else was wrong.
    pub(crate) fn beside_locks(&self) -> impl Iterator<Item = (&Fault, &Acquire)> {
        let locks = self.settled_faults().filter(|fault| fault.is_lock());
        locks.flat_map(move |lock| {
            let meanwhile = |acquire: &&&Acquire| (lock.begin..lock.end).contains(&acquire.begin);
            let is_other = move |acquire: &&&Acquire| !lock.keys.contains(&acquire.key);
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
            let is_unanswered = acquire.outcome == "unavailable";
            if took > wait + PROMPT + slow || is_unanswered {
                // The server tries writes of a locked record again and again, which takes processor time.
                slow += 2 * self.slowest_before(lock.begin);
            }
            let allowed = wait + PROMPT + slow;
            if took > allowed || is_unanswered && slow < PROMPT {
                let Acquire { key, worker, begin, outcome, .. } = acquire;
                let what = format!(
                    "acquire {key} of worker {worker}, begun at {begin}, took {took} µs of {allowed} while a transaction held the record of {}: {outcome:?}",
                    lock.keys.first().map_or("", String::as_str)
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
}

/// Whether the transaction of a worker may have locked the record: it writes documents under a lease.
pub(super) fn may_be_locked(acquire: &Acquire) -> bool {
    WRITTEN_KEYS.contains(&acquire.key.as_str())
}
