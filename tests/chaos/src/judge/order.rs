//! Invariants I1, I2 and I27: tokens, and what the log of the servers shows.

use std::collections::HashMap;

use super::{Case, Lease, Violation};
use crate::words::Event;

impl Case<'_> {
    /// I1: no token twice for a key.
    pub(super) fn tokens_are_unique(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            let mut seen: HashMap<u64, &Lease<'_>> = HashMap::new();
            for lease in leases {
                if let Some(other) = seen.insert(lease.token, lease)
                    && !self.are_disordered(other, lease)
                {
                    let what = format!("{} and {}", lease.name(), other.name());
                    found.push(Violation { of: "I1", what });
                }
            }
        }
    }

    /// I2: a lease whose acquire began when another's had ended has the larger token.
    pub(super) fn tokens_grow(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            let mut ended: Vec<&Lease<'_>> = leases.iter().collect();
            ended.sort_by_key(|lease| lease.acquire.end);
            let mut ended = ended.into_iter().peekable();
            let mut largest: Option<&Lease<'_>> = None;
            // In the order in which they began.
            for lease in leases {
                while let Some(other) = ended.next_if(|other| other.acquire.end < lease.acquire.begin) {
                    if largest.is_none_or(|largest| largest.token < other.token) {
                        largest = Some(other);
                    }
                }
                let larger = largest.filter(|before| before.token >= lease.token);
                if let Some(before) = larger.filter(|before| !self.are_disordered(before, lease)) {
                    let what = format!("{} came after {}", lease.name(), before.name());
                    found.push(Violation { of: "I2", what });
                }
            }
        }
    }

    /// How many writes in the log were judged.
    pub(crate) fn logged(&self) -> u64 {
        self.events.iter().map(|event| if let Event::Log { read, .. } = event { *read } else { 0 }).sum()
    }

    /// I27: the log was read as a whole. It breaks no promise, and has each token that a worker was granted.
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
