//! Invariant I25: no handle is opened on a collection that must be refused.

use super::{Case, SLACK, Violation};
use crate::{
    words::{Event, Micros, micros},
    worker::OPERATION_TIMEOUT,
};

impl Case<'_> {
    /// How often a worker tried to open a handle on such a collection, and how it ended.
    pub(crate) fn opened(&self) -> impl Iterator<Item = (u32, Micros, Micros, &str)> {
        self.events.iter().filter_map(|event| match event {
            Event::Opened { worker, begin, end, outcome } => Some((*worker, *begin, *end, outcome.as_str())),
            _ => None,
        })
    }

    /// The library refuses the handle, or the store does not answer. The call takes no longer than I8 allows each call.
    pub(super) fn unfit_collections_are_refused(&self, found: &mut Vec<Violation>) {
        for (worker, begin, end, outcome) in self.opened() {
            let allowed = micros(OPERATION_TIMEOUT) + 2 * SLACK + self.stalls.within(worker, begin, end);
            let (of, what) = match outcome {
                "opened" => ("I25", "was opened"),
                "refused" | "unavailable" if end.saturating_sub(begin) <= allowed => continue,
                "refused" | "unavailable" => ("I8", "took too long"),
                other => ("I8", other),
            };
            let what = format!("a handle of worker {worker} on a collection with a collation, at {begin}: {what}");
            found.push(Violation { of, what });
        }
    }
}
