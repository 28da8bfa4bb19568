//! Invariant I5: a linearizable read sees what was acknowledged before.

use super::{Case, Lease, Violation};
use crate::words::Inspect;

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
                let is_right = match inspect.outcome.as_str() {
                    "record" => inspect.version >= lease.token || self.was_lost(lease.acquire.begin, inspect.end),
                    "nothing" if !self.is_untimed => {
                        let kept = lease.acquire.ttl + lease.acquire.grace + self.retention;
                        inspect.end + self.drift >= lease.confirmed(inspect.begin) + kept
                            || self.was_dropped(lease.acquire.begin, inspect.end)
                    }
                    _ => true,
                };
                if !is_right {
                    let what = format!("{inspect:?} after {}", lease.name());
                    found.push(Violation { of: "I5", what });
                    break;
                }
            }
        }
    }

    /// A linearizable read sees every holder who believed before and after it, and none who gave back.
    pub(super) fn acknowledged_is_there(&self, found: &mut Vec<Violation>) {
        for inspect in
            self.inspections.iter().filter(|inspect| ["record", "nothing"].contains(&inspect.outcome.as_str()))
        {
            for lease in self.read(inspect) {
                let is_there = inspect.holders.contains(&lease.token);
                let believed = lease.believed.is_some_and(|(_, last)| inspect.end < last);
                let released = lease.calls.iter().any(|call| call.outcome == "ours" && call.end < inspect.begin);
                if believed && !is_there && !self.was_dropped(lease.acquire.begin, inspect.end) {
                    let what = format!("{inspect:?} without {}", lease.name());
                    found.push(Violation { of: "I5", what });
                }
                if released && is_there && !self.was_lost(lease.acquire.begin, inspect.end) {
                    let what = format!("{inspect:?} with {}, released", lease.name());
                    found.push(Violation { of: "I5", what });
                }
            }
        }
    }
}
