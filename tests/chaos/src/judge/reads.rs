//! Invariant I5: a linearizable read sees what was acknowledged before.

use super::{Case, Lease, Violation};
use crate::words::{Call, Inspect, Seen};

impl Case<'_> {
    fn read(&self, inspect: &Inspect) -> impl Iterator<Item = &Lease<'_>> {
        let begin = inspect.begin;
        let leases = self.leases.get(inspect.key.as_str()).into_iter().flatten();
        leases.filter(move |lease| lease.acquire.end < begin)
    }

    /// A linearizable read sees every token that was acknowledged before, or a larger one; or no record
    /// where it was idle for the retention.
    pub(super) fn versions_are_there(&self, found: &mut Vec<Violation>) {
        for inspect in &self.inspections {
            for lease in self.read(inspect) {
                let is_right = match &inspect.seen {
                    Seen::Record { version, .. } => {
                        *version >= lease.token || self.was_lost(lease.acquire.begin, inspect.end)
                    }
                    Seen::Nothing if self.is_untimed => true,
                    Seen::Nothing => {
                        let kept = lease.acquire.ttl + lease.acquire.grace + self.retention;
                        inspect.end + self.drift >= lease.confirmed(inspect.begin) + kept
                            || self.was_dropped(lease.acquire.begin, inspect.end)
                    }
                    _ => true,
                };
                if !is_right {
                    let what = format!("{:?} at {} after {}", inspect.seen, inspect.end, lease.name());
                    found.push(Violation { of: "I5", what });
                    break;
                }
            }
        }
    }

    /// A group that was refreshed was refreshed with each lease that was believed before and after.
    pub(super) fn groups_are_whole(&self, found: &mut Vec<Violation>) {
        for lease in self.leases.values().flatten() {
            for call in lease.calls.iter().filter(|call| call.outcome == "missed") {
                let believed = lease.believed.is_some_and(|(_, last)| call.end < last);
                if believed && !self.was_dropped(lease.acquire.begin, call.end) {
                    let what = format!("{} of {} at {} without it", call.verb, lease.name(), call.end);
                    found.push(Violation { of: "I5", what });
                }
            }
        }
    }

    /// A linearizable read sees every holder who believed before and after it, and none who gave back.
    pub(super) fn acknowledged_is_there(&self, found: &mut Vec<Violation>) {
        for inspect in &self.inspections {
            let holders = match &inspect.seen {
                Seen::Record { holders, .. } => holders.as_slice(),
                Seen::Nothing | Seen::Nobody => &[],
                _ => continue,
            };
            for lease in self.read(inspect) {
                let is_there = holders.contains(&lease.token);
                let believed = lease.believed.is_some_and(|(_, last)| inspect.end < last);
                let gives = |call: &&&Call| call.outcome == "ours" || call.verb == "transfer" && call.outcome == "ok";
                let released = lease.calls.iter().filter(gives).any(|call| call.end < inspect.begin);
                if believed && !is_there && !self.was_taken(&inspect.key, lease.acquire.begin, inspect.end) {
                    let what = format!("{:?} at {} without {}", inspect.seen, inspect.end, lease.name());
                    found.push(Violation { of: "I5", what });
                }
                if released && is_there && !self.was_lost(lease.acquire.begin, inspect.end) {
                    let what = format!("{:?} at {} with {}, released", inspect.seen, inspect.end, lease.name());
                    found.push(Violation { of: "I5", what });
                }
            }
        }
    }
}
