//! Invariant I13: a constant delay of replies costs no lease.

use super::{Case, Lease, SLACK, Violation, locks::WRITES_OF_FLEET};
use crate::{
    words::{Acquire, Fault, Micros, micros},
    worker::{FLEET_KEY, OPERATION_TIMEOUT, WRITTEN_KEYS},
};

impl Case<'_> {
    /// The leases that their handles refreshed for a whole ttl while all replies were late by the same time, and
    /// nothing else was wrong. Gives with each when it was lost by that, or the end of the delay.
    pub(crate) fn delayed(&self) -> impl Iterator<Item = (&Fault, &Lease<'_>, Micros)> {
        let delays = self.settled_faults().filter(|fault| fault.by.is_some());
        delays.flat_map(move |delay| {
            let leases = self.leases.values().flatten().filter(|lease| lease.acquire.refreshes);
            // The transaction of a worker locks the record of its own lease.
            let leases = leases.filter(|lease| !WRITTEN_KEYS.contains(&lease.acquire.key.as_str()));
            leases.filter_map(move |lease| {
                let at = outlived(delay, lease)?;
                let from = at.saturating_sub(lease.acquire.ttl + SLACK);
                let alone = !self.is_disturbed(lease.acquire.worker, delay, from, at);
                alone.then_some((delay, lease, at))
            })
        })
    }

    /// Such a lease is not lost by expiry.
    pub(super) fn leases_outlive_delays(&self, found: &mut Vec<Violation>) {
        for (delay, lease, at) in self.delayed().filter(|(_, lease, _)| lease.lost.is_some()) {
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
}

/// Until when it had to outlive a delay.
fn outlived(delay: &Fault, lease: &Lease<'_>) -> Option<Micros> {
    // A waiter that was handed the key counts from its last request, which may be most of a ttl ago.
    let waited = lease.acquire.within > micros(OPERATION_TIMEOUT) && lease.refreshed.is_empty();
    let until = match lease.lost {
        Some((at, "expired", _)) => at,
        Some(_) => return None,
        None => lease.believed?.1.min(delay.end),
    };
    let begin =
        if lease.lost.is_some() { delay.begin } else { delay.begin.max(lease.acquire.begin) + lease.acquire.ttl };
    (!waited && (begin..=delay.end).contains(&until)).then_some(until)
}
