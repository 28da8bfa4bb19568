//! Invariants I13, I15 and I20: what costs no lease that its handle refreshes. That is a constant delay of replies, a blocked
//! runtime if the handle has a thread of its own, and locked records of other keys.

use super::{Case, Lease, SLACK, Violation, locks::may_be_locked};
use crate::{
    faults::Kind,
    words::{Acquire, Fault, Micros, micros},
    worker::{FLEET, FLEET_KEY, OF_THREAD, OPERATION_TIMEOUT},
};

/// How many single refreshes a handle with a pool of 64 connections sends at once: see `store/pool.rs`.
const SINGLES: u64 = 8;

/// After a part of the fleet met a locked record, the handle refreshes up to all leases of the fleet alone. The last one waits for
/// so many writes, one after another.
const WRITES_OF_FLEET: u64 = (FLEET as u64).div_ceil(SINGLES);

/// A lease that had to outlive a fault, and when it expired, or until when it had to be kept.
type Kept<'a> = (&'a Fault, &'a Lease<'a>, Micros);

impl Case<'_> {
    /// The leases that their handles refreshed for a whole ttl while all replies were late by the same time.
    pub(crate) fn delayed(&self) -> Vec<Kept<'_>> {
        self.kept(|delay, lease| {
            // A waiter that was handed the key counts from its last request, which may be most of a ttl ago.
            let waited = lease.acquire.within > micros(OPERATION_TIMEOUT) && lease.refreshed.is_empty();
            // The transaction of a worker locks the record of its own lease.
            delay.by.is_some() && !waited && !may_be_locked(lease.acquire)
        })
    }

    /// The leases of handles with a thread of their own that were held while a runtime was blocked for a whole ttl.
    pub(crate) fn blocked(&self) -> Vec<Kept<'_>> {
        self.kept(|block, lease| {
            let is_of_it = self.slots.get(&lease.acquire.worker) == block.slot.as_ref();
            let is_of_thread = lease.acquire.key.starts_with(OF_THREAD);
            block.kind == Kind::BlockClient && is_of_it && is_of_thread && lease.acquire.end < block.begin
        })
    }

    /// The leases on other keys that their handles refreshed while records were locked for a whole ttl.
    pub(crate) fn refreshed_beside_locks(&self) -> Vec<Kept<'_>> {
        self.kept(|lock, lease| {
            let is_other = || !lock.keys.contains(&lease.acquire.key) && !may_be_locked(lease.acquire);
            lock.is_lock() && lease.acquire.end <= lock.begin && is_other()
        })
    }

    /// The refreshed leases that expired during a fault, or were kept for a whole ttl of it, while nothing else was wrong.
    fn kept(&self, is_meant: impl Fn(&Fault, &Lease<'_>) -> bool) -> Vec<Kept<'_>> {
        let mut kept = Vec::new();
        for fault in self.settled_faults() {
            let leases = self.leases.values().flatten();
            for lease in leases.filter(|lease| lease.acquire.refreshes && is_meant(fault, lease)) {
                kept.extend(self.outlived(fault, lease).map(|at| (fault, lease, at)));
            }
        }
        kept
    }

    fn outlived(&self, fault: &Fault, lease: &Lease<'_>) -> Option<Micros> {
        let ttl = lease.acquire.ttl;
        // A holder whose threads are blocked tells of a loss when they run again.
        let told = if fault.kind == Kind::BlockClient { fault.end + SLACK + ttl } else { fault.end };
        let (at, until) = match lease.lost {
            Some((at, "expired", _)) => (at, told),
            Some(_) => return None,
            None => (lease.believed?.1.min(fault.end), fault.end),
        };
        let begin = if lease.lost.is_some() { fault.begin } else { fault.begin.max(lease.acquire.begin) + ttl };
        let alone = || !self.is_disturbed(lease.acquire.worker, fault, at.saturating_sub(ttl + SLACK), at);
        ((begin..=until).contains(&at) && alone()).then_some(at)
    }

    /// Such a lease is not lost by expiry.
    pub(super) fn leases_outlive_delays(&self, found: &mut Vec<Violation>) {
        for (delay, lease, at) in self.delayed().into_iter().filter(|(_, lease, _)| lease.lost.is_some()) {
            let (by, ttl) = (delay.by.unwrap_or_default(), lease.acquire.ttl);
            // A round trip of two fifths of the ttl is promised to do no harm, but if a part runs out of its time on a slow
            // machine, its leases are refreshed alone.
            let writes = if lease.acquire.key.starts_with(FLEET_KEY) { WRITES_OF_FLEET } else { 2 };
            let slow = self.slowness(writes, lease.acquire.worker, at.saturating_sub(ttl + SLACK), at);
            // That of its own acquire can be longer than the delay, if a connection had to be opened for it.
            let Acquire { begin, end, .. } = lease.acquire;
            let acquired = if lease.refreshed.is_empty() { end.saturating_sub(*begin) } else { 0 };
            // When the delay begins, more requests are under way at once. A refresh, sent after a third of the ttl, may then
            // need a new connection, and so two round trips.
            let opens_connection = at < delay.begin + ttl && (by + slow) * 3 >= ttl;
            if !opens_connection && (by + slow).max(acquired) * 5 < ttl * 2 {
                let what = format!("{} expired at {at} while replies were late by {by} µs", lease.name());
                found.push(Violation { of: "I13", what });
            }
        }
    }

    /// The same for I15.
    pub(super) fn leases_outlive_blocks(&self, found: &mut Vec<Violation>) {
        for (_, lease, at) in self.blocked().into_iter().filter(|(_, lease, _)| lease.lost.is_some()) {
            let what = format!("{} expired at {at} while the threads of its process were blocked", lease.name());
            found.push(Violation { of: "I15", what });
        }
    }

    /// The same for I20.
    pub(super) fn leases_outlive_locks(&self, found: &mut Vec<Violation>) {
        for (lock, lease, at) in self.refreshed_beside_locks().into_iter().filter(|(_, lease, _)| lease.lost.is_some())
        {
            let ttl = lease.acquire.ttl;
            // A delay of two fifths of the ttl is promised to do no harm.
            let slow = self.slowness(WRITES_OF_FLEET, lease.acquire.worker, at.saturating_sub(ttl + SLACK), at);
            if slow * 5 < ttl * 2 {
                let count = lock.keys.len();
                let what = format!("{} expired at {at} while {count} records of other keys were locked", lease.name());
                found.push(Violation { of: "I20", what });
            }
        }
    }
}
