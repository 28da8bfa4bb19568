//! Invariants I6, I8, I9 and I10: the outcomes of calls, and that nothing is left at the end.

use super::{Case, Lease, SLACK, Violation};
use crate::{
    words::{Event, Micros, Outcome, Seen, micros},
    worker::OPERATION_TIMEOUT,
};

/// What a call may come to.
const EXPECTED: [&str; 10] =
    ["ok", "ours", "unknown", "gone", "lost", "unavailable", "begun", "fenced", "lapsing", "missed"];

impl Case<'_> {
    /// I6: an acquire of which nobody knows showed no token and was resolved: when all is over, nobody
    /// holds a key.
    pub(super) fn doubts_are_resolved(&self, found: &mut Vec<Violation>) {
        // Those of the runner come when the last ttl is over.
        for inspect in self.inspections.iter().filter(|inspect| inspect.worker == 0) {
            match &inspect.seen {
                Seen::Record { holders, .. } if !holders.is_empty() => {
                    let what = format!("{holders:?} hold {} when all is over", inspect.key);
                    found.push(Violation { of: "I6", what });
                }
                Seen::Unavailable => {
                    let what = format!("{} cannot be looked at when all is healed", inspect.key);
                    found.push(Violation { of: "I10", what });
                }
                _ => {}
            }
        }
    }

    /// I8: every call returned when it should have, and with an answer that can be expected.
    pub(super) fn calls_return(&self, found: &mut Vec<Violation>) {
        let mut call = |worker: u32, of: String, begin: Micros, end: Micros, within: Micros| {
            let took = end.saturating_sub(begin);
            // Twice the slack: a process that has just come through an outage has all its calls to make at once. A slow
            // machine adds the time of the slowest write beside all leases, but no more than that slack.
            let slack = 2 * SLACK + self.stalls.slowest(worker, begin, end).min(2 * SLACK);
            let allowed = within.saturating_add(slack).saturating_add(self.stalls.within(worker, begin, end));
            if took > allowed {
                let what = format!("{of} of worker {worker}, begun at {begin}, took {took} µs of {allowed}");
                found.push(Violation { of: "I8", what });
            }
        };
        for acquire in &self.acquires {
            call(acquire.worker, format!("acquire {}", acquire.key), acquire.begin, acquire.end, acquire.within);
        }
        for inspect in &self.inspections {
            call(inspect.worker, format!("inspect {}", inspect.key), inspect.begin, inspect.end, inspect.within);
        }
        for entry in &self.entries {
            call(entry.worker, format!("write {}", entry.key), entry.begin, entry.end, entry.within);
        }
        for revoke in self.revocations.values().filter(|revoke| revoke.outcome != "begun") {
            call(revoke.worker, format!("revoke {}", revoke.key), revoke.begin, revoke.end, micros(OPERATION_TIMEOUT));
        }
        let calls = || self.leases.values().flatten().flat_map(|lease| &lease.calls);
        for one in calls() {
            call(one.worker, format!("{} {}", one.verb, one.key), one.begin, one.end, one.within);
        }
        let mut odd = |what: String| found.push(Violation { of: "I8", what });
        for acquire in &self.acquires {
            if let Outcome::Other { message } = &acquire.outcome {
                odd(format!("acquire {} at {}: {message}", acquire.key, acquire.end));
            }
        }
        for inspect in &self.inspections {
            if let Seen::Other { message } = &inspect.seen {
                odd(format!("inspect {} at {}: {message}", inspect.key, inspect.end));
            }
        }
        for one in calls() {
            if !EXPECTED.contains(&one.outcome.as_str()) {
                odd(format!("{} {} at {}: {}", one.verb, one.key, one.end, one.outcome));
            }
        }
        for one in self.entries.iter().filter(|one| !EXPECTED.contains(&one.outcome.as_str())) {
            odd(format!("write {} at {}: {}", one.key, one.end, one.outcome));
        }
        for one in self.revocations.values().filter(|one| !EXPECTED.contains(&one.outcome.as_str())) {
            odd(format!("revoke {} at {}: {}", one.key, one.end, one.outcome));
        }
    }

    /// I9: nobody was told that it holds a key that had been granted to a later holder.
    pub(super) fn old_requests_touch_nothing(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            for lease in leases {
                let told = lease.calls.iter().filter(|call| call.outcome == "ours" || call.outcome == "ok");
                let told = told.filter(|call| call.verb != "release-group");
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
                "expired" => at >= deadline(lease),
                "taken-over" => at >= sent + ttl && newer > Some(lease.token),
                "removed" => at + self.drift >= sent + ttl + grace + self.retention,
                "revoked" => {
                    lease.acquire.group.is_some() || self.was_revoked(&lease.acquire.key, lease.acquire.begin, at)
                }
                _ => false,
            };
            if !is_right {
                let what = format!("{} was lost at {at}, {cause}, confirmed from {sent} on", lease.name());
                found.push(Violation { of: "I9", what });
            }
        }
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
            if !matches!(probe.outcome, Outcome::Granted { .. }) {
                let what = format!("{} could not be had at the end: {:?}", probe.key, probe.outcome);
                found.push(Violation { of: "I10", what });
            }
        }
    }
}

/// Until when, at least, a holder believes if nobody takes the key away: what was confirmed when it
/// still believed, less what clocks may differ by.
fn deadline(lease: &Lease<'_>) -> Micros {
    let lasts = (lease.acquire.ttl * 999 / 1000).saturating_sub(1_000);
    let mut deadline = lease.confirmed(0) + lasts;
    for (begin, end) in &lease.refreshed {
        // What was confirmed at the last moment may have been heard too late.
        if end + SLACK < deadline {
            deadline = deadline.max(begin + lasts);
        }
    }
    deadline
}
