//! Invariant I26: a holder reads no older value than one that was confirmed before.

use std::collections::BTreeMap;

use super::{Case, Violation};
use crate::words::Call;

impl Case<'_> {
    pub(super) fn values_are_not_older(&self, found: &mut Vec<Violation>) {
        // By key, in the order of tokens and of the writes under each.
        let mut confirmed: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for value in self.values() {
            confirmed.entry(&value.key).or_default().push(value);
        }
        for writes in confirmed.values_mut() {
            writes.sort_by_key(|write| write.content);
        }
        for read in self.calls.iter().filter(|call| call.verb == "read" && call.outcome == "ok") {
            let writes = confirmed.get(read.key.as_str()).map_or(&[][..], Vec::as_slice);
            let is_before =
                |write: &&&Call| write.token < read.token || (write.token == read.token && write.end < read.begin);
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

    /// The confirmed writes of values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Call> {
        let is_write = |call: &&Call| ["put", "release-with"].contains(&call.verb.as_str()) && call.outcome == "ok";
        self.calls.iter().copied().filter(is_write)
    }
}
