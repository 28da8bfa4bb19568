//! Invariants I22 and I23: a minimum hold ends in time for the first waiter, and a shutdown frees no key under which work
//! runs.

use super::{Case, Lease, Violation, granted};
use crate::{
    words::{Acquire, Event, Fault, Micros, Worked, micros},
    worker::OPERATION_TIMEOUT,
};

/// How long after the end of a minimum hold the first waiter has the key at the latest.
const PROMPT: Micros = 250_000;

/// How many requests the waiter sends in a hand-over: when the release notifies it, and at the end of the hold.
const REQUESTS: u64 = 2;

/// How many writes of the key a hand-over needs at most: the release and these requests, each behind that of another waiter.
const WRITES: u64 = 2 * (1 + REQUESTS);

impl Case<'_> {
    /// The leases that were granted after a minimum hold whose holder had released early, beside queued waiters, while
    /// nothing was wrong but locks of other records. Gives with each when the hold had ended.
    pub(crate) fn after_minimum_holds(&self) -> impl Iterator<Item = (Micros, &Lease<'_>)> {
        let pairs = self.leases.values().flat_map(|leases| {
            let mut leases: Vec<_> = leases.iter().filter(|lease| lease.acquire.least > 0).collect();
            leases.sort_by_key(|lease| lease.token);
            leases.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
        });
        pairs.filter_map(|(one, next)| {
            let released = one.calls.iter().find(|call| call.verb == "release" && call.outcome == "ours")?;
            let ends = (one.acquire.end + one.acquire.least).max(released.end);
            let is_queued = next.acquire.queued.as_ref().is_some_and(|queued| queued.since < released.begin);
            let (worker, from) = (next.acquire.worker, one.acquire.begin.saturating_sub(next.acquire.ttl));
            let is_quiet = || {
                let harmless = |fault: &Fault| fault.is_lock();
                self.faults_of(worker, from, next.acquire.end).all(harmless)
                    && !self.was_dropped(from, next.acquire.end)
            };
            (is_queued && is_quiet()).then_some((ends, next))
        })
    }

    /// I22: such a lease is granted at the end of the hold, but for the time that the two requests of a hand-over took
    /// elsewhere.
    pub(super) fn minimum_holds_end_in_time(&self, found: &mut Vec<Violation>) {
        for (ends, next) in self.after_minimum_holds() {
            let acquire = next.acquire;
            let late = acquire.end.saturating_sub(ends);
            let slow = self.slowness(WRITES, acquire.worker, ends, acquire.end);
            if late > PROMPT + slow && late > PROMPT + slow + REQUESTS * self.slowest_elsewhere(acquire, ends) {
                let what = format!("{} was granted {late} µs after the end of the minimum hold before it", next.name());
                found.push(Violation { of: "I22", what });
            }
        }
    }

    /// How long an acquire of the same worker took at most that did not wait, of another key whose record was not locked,
    /// and that was under way between this time and the end of this acquire.
    fn slowest_elsewhere(&self, acquire: &Acquire, from: Micros) -> Micros {
        let elsewhere = self.acquires.iter().filter(|other| {
            other.worker == acquire.worker
                && other.key != acquire.key
                && other.within == micros(OPERATION_TIMEOUT)
                && other.begin <= acquire.end
                && other.end >= from
                && !self.faults_of(other.worker, other.begin, other.end).any(|fault| fault.keys.contains(&other.key))
        });
        elsewhere.map(|other| other.end.saturating_sub(other.begin)).max().unwrap_or(0)
    }

    /// The work that ended with the shutdown of its handle.
    pub(crate) fn worked(&self) -> impl Iterator<Item = &Worked> {
        self.events.iter().filter_map(|event| match event {
            Event::Worked(worked) => Some(worked),
            _ => None,
        })
    }

    /// I23: until such work has ended, the key is granted to no other acquire, unless the lease may have expired.
    pub(super) fn work_ends_before_its_key_is_free(&self, found: &mut Vec<Violation>) {
        for Worked { worker, key, token, since, ttl, end } in self.worked() {
            let until = *end.min(&(since + ttl.saturating_sub(self.drift)));
            let early = self.acquires.iter().find(|acquire| {
                acquire.key == *key && granted(acquire).is_some_and(|next| next > *token) && acquire.end < until
            });
            if let Some(acquire) = early
                && !self.was_dropped(*since, acquire.end)
            {
                let what = format!(
                    "{key} was granted to worker {} at {}, and the work of worker {worker} with token {token} ended at {end}",
                    acquire.worker, acquire.end
                );
                found.push(Violation { of: "I23", what });
            }
        }
    }
}
