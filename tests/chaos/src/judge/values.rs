//! Invariant I26: a holder reads no older value than one that was confirmed before.

use std::collections::BTreeMap;

use super::{Case, Violation};
use crate::words::{Event, Value};

/// The expected outcomes of a call.
const EXPECTED: [&str; 3] = ["ok", "lost", "unavailable"];

impl Case<'_> {
    /// I26, and I8 for the outcomes.
    pub(super) fn values_are_not_older(&self, found: &mut Vec<Violation>) {
        // By key, in the order of tokens and of the writes under each.
        let mut confirmed: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for value in self.values() {
            if !EXPECTED.contains(&value.outcome.as_str()) {
                let what = format!("{} of {} at {}: {}", value.verb, value.key, value.end, value.outcome);
                found.push(Violation { of: "I8", what });
            }
            if value.verb != "read" && value.outcome == "ok" {
                confirmed.entry(&value.key).or_default().push(value);
            }
        }
        for writes in confirmed.values_mut() {
            writes.sort_by_key(|write| write.content);
        }
        for read in self.values().filter(|value| value.verb == "read" && value.outcome == "ok") {
            let writes = confirmed.get(read.key.as_str()).map_or(&[][..], Vec::as_slice);
            let is_before =
                |write: &&&Value| write.token < read.token || (write.token == read.token && write.end < read.begin);
            let newest = writes.iter().rev().find(is_before);
            if let Some(newest) = newest.filter(|newest| newest.content > read.content)
                // The one with the smaller token may also have come later, at a primary that a change has replaced.
                && !self.was_dropped(newest.begin.min(read.begin), newest.end.max(read.end))
            {
                let what = format!("{read:?} is older than {newest:?}");
                found.push(Violation { of: "I26", what });
            }
            if read.content.0 > read.token {
                let what = format!("{read:?} is that of a later holder");
                found.push(Violation { of: "I26", what });
            }
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().filter_map(|event| match event {
            Event::Value(value) => Some(value),
            _ => None,
        })
    }
}
