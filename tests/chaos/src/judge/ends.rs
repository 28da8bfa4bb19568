//! Invariants I16, I17 and I18: a lease that a handle has dropped does not block the handle, a shutdown is short, and
//! handles share change streams and connections.

use std::time::Duration;

use super::{Case, SLACK, Violation};
use crate::{
    faults::AFTERMATH,
    words::{Acquire, Event, Fault, Micros, micros},
    worker::{OPERATION_TIMEOUT, OWN},
};

/// How long a shutdown may take while nothing is wrong: a request that releases, and a little.
const SHUTDOWN: Micros = 750_000;

/// The same on Redis, where a release also waits for replicas, and is sent again after a second.
const SHUTDOWN_OF_REDIS: Micros = 1_500_000;

/// How many writes a release and an acquire after it are.
const WRITES: u64 = 2;

/// How long a fault may last. The runner writes its event when the fault is over.
const LONGEST_FAULT: Duration = Duration::from_secs(8);

/// The longest offer that a release in doubt leaves behind: a ttl and a grace.
const OFFER: Micros = 3_000_000;

/// How many change streams a process may have: one for the siblings, one for each of the three
/// other handles, and as many again that others have replaced.
const STREAMS: u64 = 8;

/// How many connections a process has to Redis: of two backends one for most requests and 16 for those that wait for replicas,
/// and one for the messages of each of 14 handles.
const CONNECTIONS: u64 = 48;

impl Case<'_> {
    /// I18: handles of one client share change streams, and connections to Redis. A failed connection may end later.
    pub(super) fn little_is_open(&self, found: &mut Vec<Violation>) {
        let (most, what) = if self.on_redis { (CONNECTIONS, "connections") } else { (STREAMS, "change streams") };
        for event in self.events {
            let Event::Open { slot, count, at } = event else { continue };
            let excuses = |fault: &&Fault| {
                let is_at = fault.begin <= *at && fault.end + micros(AFTERMATH) >= *at;
                self.on_redis && is_at && fault.slot.is_none_or(|of| of == *slot)
            };
            if *count > most && !self.faults.iter().any(excuses) {
                let what = format!("the handles of the process in slot {slot} had {count} {what} at {at}");
                found.push(Violation { of: "I18", what });
            }
        }
    }

    /// I16: a lease that a handle has dropped refuses no acquire of that handle. No other client asks for such a key.
    pub(super) fn own_leases_refuse_nobody(&self, found: &mut Vec<Violation>) {
        let latest = self.latest();
        let refused = |acquire: &&Acquire| {
            // The fault that excuses it may not have been told yet, if the run is judged all the while.
            let is_settled = !self.is_sabotaged || acquire.end + OFFER + micros(LONGEST_FAULT) <= latest;
            is_settled && acquire.key.starts_with(OWN) && acquire.outcome == "held"
        };
        for acquire in self.acquires.iter().copied().filter(refused) {
            let from = acquire.begin.saturating_sub(micros(OPERATION_TIMEOUT) + OFFER);
            // A release that takes as long as that may have been given up.
            let was_slow = self.slowness(WRITES, acquire.worker, from, acquire.end) > micros(OPERATION_TIMEOUT) / 2;
            if !was_slow && !self.was_at_fault(acquire.worker, from, acquire.end) {
                let what = format!(
                    "acquire {} of worker {}, begun at {}, was refused by its own lease",
                    acquire.key, acquire.worker, acquire.begin
                );
                found.push(Violation { of: "I16", what });
            }
        }
    }

    /// I17: when the last fault is over, a shutdown waits for its releases only.
    pub(super) fn shutdowns_are_quick(&self, found: &mut Vec<Violation>) {
        let healed = self.events.iter().find_map(|event| match event {
            Event::Healed { at, .. } => Some(*at),
            _ => None,
        });
        for event in self.events {
            let Event::Shutdown { worker, begin, end } = event else { continue };
            let stalled = self.stalls.within(*worker, *begin, *end) + self.stalls.slowest(*worker, *begin, *end);
            let took = end - begin;
            let may_take = if self.on_redis { SHUTDOWN_OF_REDIS } else { SHUTDOWN };
            if healed.is_some_and(|healed| healed < *begin) && took > may_take + SLACK + stalled {
                let what = format!("the shutdown of a handle of worker {worker} at {begin} took {took} µs");
                found.push(Violation { of: "I17", what });
            }
        }
    }
}
