//! What must hold of every history, and what a history must have seen to say anything.

mod leases;
mod order;
mod outcomes;
mod overlap;
mod reads;
mod stalls;

use std::collections::BTreeMap;

use crate::words::{Acquire, Event, Inspect, Micros, Outcome, Write};

pub(crate) use leases::{Lease, leases};
pub(crate) use stalls::Stalls;

/// A sentence that a history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Such as `I1`.
    pub(crate) of: &'static str,
    pub(crate) what: String,
}

/// Clocks of processes are one, but what is measured is a busy machine.
const SLACK: Micros = 250_000;

/// By what the wall clock of a server and ours may come to differ in the life of a lease.
const DRIFT: Micros = 50_000;

/// A history in the shape in which it is judged.
pub(crate) struct Case<'a> {
    /// By key, in the order of their grants.
    pub(crate) leases: BTreeMap<&'a str, Vec<Lease<'a>>>,
    pub(crate) acquires: Vec<&'a Acquire>,
    pub(crate) inspections: Vec<&'a Inspect>,
    pub(crate) writes: Vec<&'a Write>,
    /// When records were deleted by hand.
    drops: Vec<(Micros, Micros)>,
    pub(crate) stalls: Stalls,
    retention: Micros,
    /// Whether a server's clock was set: then nothing is promised that goes by time.
    pub(crate) clocks_jumped: bool,
    events: &'a [Event],
}

impl<'a> Case<'a> {
    pub(crate) fn of(events: &'a [Event]) -> Self {
        let mut case = Self {
            leases: leases(events),
            acquires: Vec::new(),
            inspections: Vec::new(),
            writes: Vec::new(),
            drops: Vec::new(),
            stalls: Stalls::of(events),
            retention: 0,
            clocks_jumped: false,
            events,
        };
        for event in events {
            match event {
                Event::Run { retention, .. } => case.retention = *retention,
                Event::Acquire(acquire) => case.acquires.push(acquire),
                Event::Inspect(inspect) => case.inspections.push(inspect),
                Event::Write(write) => case.writes.push(write),
                Event::Fault(fault) if fault.kind == "drop" => case.drops.push((fault.begin, fault.end)),
                Event::Fault(fault) if fault.kind == "clock-jump" => case.clocks_jumped = true,
                _ => {}
            }
        }
        case
    }

    /// All that it breaks.
    pub(crate) fn judge(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.tokens_are_unique(&mut found);
        self.tokens_grow(&mut found);
        self.the_fence_holds(&mut found);
        self.versions_are_there(&mut found);
        self.calls_return(&mut found);
        self.old_requests_touch_nothing(&mut found);
        self.workers_come_to_their_end(&mut found);
        // A clock that jumps ahead ends leases and places early, and back it keeps keys held for as long.
        if !self.clocks_jumped {
            found.extend(self.overlaps());
            self.grants_too_soon(&mut found);
            self.losses_have_causes(&mut found);
            self.acknowledged_is_there(&mut found);
            self.doubts_are_resolved(&mut found);
            self.keys_can_be_had(&mut found);
            self.queues_are_in_order(&mut found);
        }
        found
    }

    /// Whether records were deleted by hand at some time in between.
    fn was_dropped(&self, from: Micros, to: Micros) -> bool {
        self.drops.iter().any(|(begin, end)| *begin <= to && *end >= from)
    }
}

/// The token that an acquire was granted.
fn granted(acquire: &Acquire) -> Option<u64> {
    match acquire.outcome {
        Outcome::Granted { token } => Some(token),
        _ => None,
    }
}
