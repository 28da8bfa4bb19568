//! Invariants I6, I8, I9, I10 and I25: the outcomes of calls, and that nothing is left at the end.

use super::{Case, Lease, SLACK, Violation};
use crate::{
    words::{Acquire, Call, Event, Inspect, Micros, micros},
    worker::OPERATION_TIMEOUT,
};

/// What a call may come to.
const EXPECTED: &str =
    "ok ours unknown gone lost unavailable fenced done busy ran refused granted held full record nothing";

/// A call, and what it came to.
pub(crate) struct Called<'a> {
    pub(super) worker: u32,
    pub(super) verb: &'a str,
    pub(super) key: &'a str,
    pub(super) begin: Micros,
    pub(super) end: Micros,
    /// How long it may take.
    within: Micros,
    pub(super) outcome: &'a str,
}

impl Case<'_> {
    /// I6: when all is over, nobody holds a key: also none that an acquire in doubt was granted.
    pub(super) fn doubts_are_resolved(&self, found: &mut Vec<Violation>) {
        // Those of the runner come when the last ttl is over.
        for inspect in self.inspections.iter().filter(|inspect| inspect.worker == 0) {
            if !inspect.holders.is_empty() {
                let what = format!("{:?} hold {} when all is over", inspect.holders, inspect.key);
                found.push(Violation { of: "I6", what });
            }
            if inspect.outcome == "unavailable" {
                let what = format!("{} cannot be looked at when all is healed", inspect.key);
                found.push(Violation { of: "I10", what });
            }
        }
    }

    /// I8: every call returned when it should have, and with an answer that can be expected. I25: no handle was opened on a
    /// collection with a collation.
    pub(super) fn calls_return(&self, found: &mut Vec<Violation>) {
        for Called { worker, verb, key, begin, end, within, outcome } in self.called() {
            let took = end.saturating_sub(begin);
            // Twice the slack: a process that has just come through an outage has all its calls to make at once. A slow
            // machine adds the time of the slowest write beside all leases, but no more than that slack.
            let slack = 2 * SLACK + self.stalls.slowest(worker, begin, end).min(2 * SLACK);
            let allowed = within.saturating_add(slack).saturating_add(self.stalls.within(worker, begin, end));
            if took > allowed {
                let what = format!("{verb} {key} of worker {worker}, begun at {begin}, took {took} µs of {allowed}");
                found.push(Violation { of: "I8", what });
            }
            if !EXPECTED.split(' ').any(|expected| expected == outcome) {
                let invariant = if outcome == "opened" { "I25" } else { "I8" };
                let what = format!("{verb} {key} of worker {worker} at {end}: {outcome}");
                found.push(Violation { of: invariant, what });
            }
        }
    }

    /// All calls, with acquires and reads of records.
    pub(super) fn called(&self) -> impl Iterator<Item = Called<'_>> {
        let calls = self.calls.iter().map(|call| {
            let Call { worker, verb, key, begin, end, within, outcome, .. } = call;
            Called { worker: *worker, verb, key, begin: *begin, end: *end, within: *within, outcome }
        });
        let acquires = self.acquires.iter().map(|acquire| {
            let Acquire { worker, key, begin, end, within, outcome, .. } = acquire;
            Called { worker: *worker, verb: "acquire", key, begin: *begin, end: *end, within: *within, outcome }
        });
        let inspections = self.inspections.iter().map(|inspect| {
            let Inspect { worker, key, begin, end, outcome, .. } = inspect;
            let within = micros(OPERATION_TIMEOUT);
            Called { worker: *worker, verb: "inspect", key, begin: *begin, end: *end, within, outcome }
        });
        calls.chain(acquires).chain(inspections)
    }

    /// I9: nobody was told that it holds a key that had been granted to a later holder.
    pub(super) fn old_requests_touch_nothing(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            for lease in leases {
                let told = lease.calls.iter().filter(|call| call.outcome == "ours" || call.outcome == "ok");
                let told = told.map(|call| (call.verb.as_str(), call.begin));
                let refreshed = lease.refreshed.iter().map(|(begin, _)| ("background refresh", *begin));
                for (verb, begin) in told.chain(refreshed) {
                    let newer = leases.iter().find(|other| {
                        let excludes = other.is_exclusive() || lease.is_exclusive();
                        excludes && other.token > lease.token && other.acquire.end < begin
                    });
                    // An old primary does not know of the later grant, and one that is lost left no trace.
                    let since = |newer: &Lease<'_>| lease.acquire.begin.min(newer.acquire.begin);
                    let newer = newer.filter(|newer| !self.was_lost(since(newer), begin));
                    if let Some(newer) = newer {
                        let what = format!("{verb} of {}, begun at {begin} after {}", lease.name(), newer.name());
                        found.push(Violation { of: "I9", what });
                    }
                }
            }
        }
    }

    /// I9: nobody lost a key without cause.
    pub(super) fn losses_have_causes(&self, found: &mut Vec<Violation>) {
        for lease in self.leases.values().flatten() {
            let Some((at, cause, newer)) = lease.lost else { continue };
            if self.was_dropped(lease.acquire.begin, at) {
                continue;
            }
            let sent = lease.confirmed(at);
            let (ttl, grace) = (lease.acquire.ttl, lease.acquire.grace);
            let is_right = match cause {
                "expired" => at >= self.deadline(lease),
                "taken-over" => at >= sent + ttl && newer > Some(lease.token),
                "removed" => at + self.drift >= sent + ttl + grace + self.retention,
                _ => false,
            };
            if !is_right {
                let what = format!("{} was lost at {at}, {cause}, confirmed from {sent} on", lease.name());
                found.push(Violation { of: "I9", what });
            }
        }
    }

    /// The earliest time at which a lease that no other acquire ended can expire for its holder. A refresh counts
    /// if the holder received its answer while the lease was valid. Clocks may differ by a thousandth and 1 ms.
    fn deadline(&self, lease: &Lease<'_>) -> Micros {
        let Acquire { worker, ttl, .. } = *lease.acquire;
        let lasts = (ttl * 999 / 1000).saturating_sub(1_000);
        let mut deadline = lease.confirmed(0) + lasts;
        for (begin, end) in &lease.refreshed {
            // A process that stops before it has heard of a confirmation hears of it when it goes on.
            let heard = end + SLACK + self.stalls.within(worker, *end, deadline);
            // What was confirmed at the last moment may have been heard too late.
            if heard < deadline {
                deadline = deadline.max(begin + lasts);
            }
        }
        deadline
    }

    /// I10: no worker had to be killed at the end.
    pub(super) fn workers_come_to_their_end(&self, found: &mut Vec<Violation>) {
        for event in self.events {
            if let Event::Stuck { worker, at } = event {
                let what = format!("worker {worker} did not come to its end by {at}");
                found.push(Violation { of: "I10", what });
            }
        }
    }

    /// I10: each key that many wanted could be had at the end.
    pub(super) fn keys_can_be_had(&self, found: &mut Vec<Violation>) {
        for probe in self.acquires.iter().filter(|acquire| acquire.probe) {
            if probe.outcome != "granted" {
                let what = format!("{} could not be had at the end: {:?}", probe.key, probe.outcome);
                found.push(Violation { of: "I10", what });
            }
        }
    }
}
