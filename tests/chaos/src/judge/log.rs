//! Invariant I27: what the log of the servers shows.

use super::{Case, Violation};
use crate::words::Event;

impl Case<'_> {
    /// How many writes in the log were judged.
    pub(crate) fn logged(&self) -> u64 {
        self.events.iter().map(|event| if let Event::Log { read, .. } = event { *read } else { 0 }).sum()
    }

    /// The log was read as a whole. It breaks no promise, and has each token that a worker was granted.
    pub(super) fn the_log_agrees(&self, found: &mut Vec<Violation>) {
        for event in self.events {
            if let Event::Log { read, unread, broken } = event {
                let whole =
                    (*read == 0 || *unread > 0).then(|| format!("{read} writes were read and {unread} were not"));
                found.extend(broken.iter().cloned().chain(whole).map(|what| Violation { of: "I27", what }));
            }
        }
    }
}
