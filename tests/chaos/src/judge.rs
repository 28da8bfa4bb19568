//! The judge: the invariants of every history.

mod ends;
mod holds;
mod kept;
mod leases;
mod locks;
mod losses;
mod order;
mod outcomes;
mod overlap;
mod reads;
mod refusals;
mod stalls;
mod ticks;
mod values;
mod waits;
mod watches;

use std::{
    collections::{BTreeMap, HashMap},
    ptr,
};

pub(crate) use leases::{Lease, leases};
pub(crate) use stalls::Stalls;

use crate::{
    faults::{AFTERMATH, Kind},
    words::{Acquire, Call, Event, Fault, Inspect, Micros, Run, micros},
    worker::SMALLEST_GRACE,
};

/// A sentence that a history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Such as `I1`.
    pub(crate) of: &'static str,
    pub(crate) what: String,
}

/// The invariants that judge seconds. A machine that is slow breaks them, too, so a run of a push leaves them out.
pub(crate) const BY_TIME: [&str; 8] = ["I6", "I8", "I12", "I13", "I15", "I17", "I20", "I22"];

/// Clocks of processes are one, but what is measured is a busy machine.
const SLACK: Micros = 250_000;

/// The same, of clocks that are set alike.
const DRIFT: Micros = 50_000;

/// By how much a clock is set at most.
const LONGEST_JUMP: Micros = 3_600_000_000;

/// A history in the shape in which it is judged.
#[derive(Default)]
pub(crate) struct Case<'a> {
    /// By key, in the order of their grants.
    pub(crate) leases: BTreeMap<&'a str, Vec<Lease<'a>>>,
    pub(crate) acquires: Vec<&'a Acquire>,
    pub(crate) inspections: Vec<&'a Inspect>,
    pub(crate) calls: Vec<&'a Call>,
    faults: Vec<&'a Fault>,
    /// When records were deleted by hand.
    drops: Vec<(Micros, Micros)>,
    /// When a change of the primary may have lost confirmed writes, or two primaries confirmed writes.
    losses: Vec<(Micros, Micros)>,
    /// The changes of the primary after which tokens may be out of order, because the clocks differ by too much.
    disorders: Vec<(Micros, Micros)>,
    pub(crate) stalls: Stalls,
    retention: Micros,
    /// By how much the wall clocks of two servers, or of a server and ours, may differ in the life of a lease.
    drift: Micros,
    /// In which slot a worker runs.
    slots: HashMap<u32, u32>,
    /// By how much the clocks of the servers differ at most.
    spread: Micros,
    /// Whether the servers are of Redis.
    pub(crate) on_redis: bool,
    /// Whether nothing is promised that goes by time: the clock of a server was set, or clocks differ by more than leases
    /// have grace.
    pub(crate) is_untimed: bool,
    /// Whether it is judged all the while, and what came before may be told after.
    is_sabotaged: bool,
    events: &'a [Event],
}

impl<'a> Case<'a> {
    pub(crate) fn of(events: &'a [Event]) -> Self {
        let mut case =
            Self { leases: leases(events), stalls: Stalls::of(events), drift: DRIFT, events, ..Self::default() };
        for event in events {
            match event {
                Event::Run(Run { sabotage, retention, spread, redis, .. }) => {
                    (case.retention, case.is_sabotaged) = (*retention, sabotage.is_some());
                    (case.drift, case.spread, case.on_redis) = (DRIFT + spread, *spread, *redis);
                    case.is_untimed = *spread > micros(SMALLEST_GRACE);
                }
                Event::Ready { worker, slot } => {
                    case.slots.insert(*worker, *slot);
                }
                Event::Acquire(acquire) => case.acquires.push(acquire),
                Event::Inspect(inspect) => case.inspections.push(inspect),
                Event::Call(call) => case.calls.push(call),
                Event::Fault(fault) => {
                    case.faults.push(fault);
                    if fault.kind == Kind::ClockJump {
                        (case.is_untimed, case.spread) = (true, LONGEST_JUMP);
                    }
                    if fault.kind == Kind::Drop {
                        case.drops.push((fault.begin, fault.end));
                    }
                }
                _ => {}
            }
        }
        case.faults.sort_unstable_by_key(|fault| fault.begin);
        case.find_losses();
        case
    }

    /// All that it breaks.
    pub(crate) fn judge(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.tokens_are_unique(&mut found);
        self.tokens_grow(&mut found);
        self.versions_are_there(&mut found);
        self.the_log_agrees(&mut found);
        self.calls_return(&mut found);
        self.old_requests_touch_nothing(&mut found);
        self.workers_come_to_their_end(&mut found);
        self.watches_are_whole(&mut found);
        // A clock that jumps ahead ends leases and places early, and back it keeps keys held for as long.
        if !self.is_untimed {
            found.extend(self.overlaps().into_iter().map(|(_, what)| Violation { of: "I4", what }));
            self.grants_too_soon(&mut found);
            self.losses_have_causes(&mut found);
            self.acknowledged_is_there(&mut found);
            self.doubts_are_resolved(&mut found);
            self.keys_can_be_had(&mut found);
            self.waits_outlast_outages(&mut found);
            self.other_keys_go_on(&mut found);
            self.leases_outlive_locks(&mut found);
            self.refused_commits_lock_nothing(&mut found);
            if !self.on_redis {
                self.leases_outlive_delays(&mut found);
            }
            self.leases_outlive_blocks(&mut found);
            self.own_leases_refuse_nobody(&mut found);
            self.shutdowns_are_quick(&mut found);
            self.ticks_are_completed_once(&mut found);
            self.values_are_not_older(&mut found);
            self.minimum_holds_end_in_time(&mut found);
            self.work_ends_before_its_key_is_free(&mut found);
        }
        self.little_is_open(&mut found);
        found
    }

    /// The faults whose events are complete. If a run is judged while it goes on, workers may still write events that
    /// excuse what happened during the latest faults.
    fn settled_faults(&self) -> impl Iterator<Item = &'a Fault> {
        let latest = self.latest();
        let is_settled = move |fault: &&Fault| !self.is_sabotaged || fault.end + micros(AFTERMATH) <= latest;
        self.faults.iter().copied().filter(is_settled)
    }

    /// The end of the latest acquire.
    fn latest(&self) -> Micros {
        self.acquires.iter().map(|acquire| acquire.end).max().unwrap_or(0)
    }

    /// Whether another fault than this one may have concerned a worker in between.
    fn is_disturbed(&self, worker: u32, but: &Fault, from: Micros, to: Micros) -> bool {
        self.faults_of(worker, from, to).any(|fault| !ptr::eq(fault, but))
    }

    /// Whether a fault may have concerned a worker in between.
    fn was_at_fault(&self, worker: u32, from: Micros, to: Micros) -> bool {
        self.faults_of(worker, from, to).next().is_some()
    }

    /// The faults that may have concerned a worker in between.
    fn faults_of(&self, worker: u32, from: Micros, to: Micros) -> impl Iterator<Item = &'a Fault> {
        let slot = self.slots.get(&worker).copied();
        let concerns = move |fault: &Fault| fault.slot.is_none() || slot.is_none() || fault.slot == slot;
        // After a lock or a delay nothing has to recover.
        let lasts = |fault: &Fault| if fault.is_lock() || fault.by.is_some() { SLACK } else { micros(AFTERMATH) };
        let meanwhile = move |fault: &&Fault| fault.begin <= to && fault.end + lasts(fault) >= from;
        self.faults.iter().copied().filter(move |fault| concerns(fault)).filter(meanwhile)
    }

    /// How much longer so many writes of a key, one after another, took in between because of the machine: the worker or
    /// the runner did not run, or writes of the worker beside all leases were slow, too.
    fn slowness(&self, writes: u64, worker: u32, from: Micros, to: Micros) -> Micros {
        let stalled = self.stalls.within(worker, from, to) + self.stalls.within(0, from, to);
        stalled + writes * self.stalls.slowest(worker, from, to)
    }

    /// Whether records were deleted by hand at some time in between, or lost with a primary.
    fn was_dropped(&self, from: Micros, to: Micros) -> bool {
        self.drops.iter().any(|(begin, end)| *begin <= to && *end >= from) || self.was_lost(from, to)
    }
}

/// The token that an acquire was granted.
fn granted(acquire: &Acquire) -> Option<u64> {
    (acquire.outcome == "granted").then_some(acquire.token)
}
