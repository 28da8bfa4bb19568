//! Invariant I19: no tick is completed twice, and the work of a completed tick does not begin again.

use super::{Case, Violation};
use crate::words::{Call, Event};

impl Case<'_> {
    pub(super) fn ticks_are_completed_once(&self, found: &mut Vec<Violation>) {
        let completed: Vec<&Call> = self.ticked().collect();
        for (number, first) in completed.iter().enumerate() {
            let again = completed[number + 1..].iter().find(|other| {
                let is_same = other.key == first.key && other.tick == first.tick;
                is_same && !self.was_dropped(first.begin.min(other.begin), first.end.max(other.end))
            });
            if let Some(again) = again {
                found.push(Violation { of: "I19", what: format!("{first:?}, and again {again:?}") });
            }
        }
        // If a completion was confirmed before some work began, the tick of that work is a later one. The retention, which is
        // shorter than a run, deletes none.
        for event in self.events {
            let Event::Works { worker, key, tick, token, at } = event else { continue };
            let done = completed.iter().find(|done| {
                done.key == *key && done.tick >= *tick && done.end < *at && !self.was_dropped(done.begin, *at)
            });
            if let Some(done) = done {
                let what = format!("worker {worker} began tick {tick} of {key} with {token} at {at}, after {done:?}");
                found.push(Violation { of: "I19", what });
            }
        }
    }

    /// The completions of ticks.
    pub(crate) fn ticked(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().copied().filter(|call| call.verb == "once" && call.outcome == "ran")
    }
}
