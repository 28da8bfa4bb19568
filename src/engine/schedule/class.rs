//! The leases with one ttl: in which order they wait, and what was sent for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Part, PartEnd,
    kept::{Kept, Stage},
    pace::Pace,
};
use crate::{
    engine::retry,
    store::pool::PART,
    types::{instant::Instant, ttl::Ttl},
};

/// Where the stages begin in [`Class::waits`].
const LATE: (Stage, u64) = (Stage::Late(Instant::ORIGIN), 0);
const QUEUED: (Stage, u64) = (Stage::Queued(false, Instant::ORIGIN), 0);

/// The leases with one ttl, by the numbers of their acquires.
#[derive(Debug, Default)]
pub(super) struct Class {
    pub(super) pace: Pace,
    /// When each lease is checked next. Has all leases.
    pub(super) checks: BTreeSet<(Instant, u64)>,
    /// The leases that wait for a permit: first those in [`Stage::Due`], then those in [`Stage::Queued`].
    pub(super) waits: BTreeSet<(Stage, u64)>,
    pub(super) attempts: Attempts,
    /// How many parts have failed since one was answered, and when the next may be sent.
    pub(super) part_failures: u32,
    parts_from: Instant,
    /// How many large parts have failed since one was confirmed, and when the next may be sent.
    large_failures: u32,
    large_from: Instant,
    /// Since when leases wait for a part.
    pub(super) due_since: Option<Instant>,
    /// Since when leases wait to be refreshed alone, and none was.
    pub(super) queued_since: Option<Instant>,
    /// When the class is checked next.
    pub(super) check_at: Instant,
    /// Since when it can send a part, for which it waits for a permit.
    pub(super) part_at: Option<Instant>,
    /// Whether the first lease that waits to be refreshed alone has failed before.
    pub(super) has_failed: bool,
}

/// The attempts in flight, by their numbers, which are in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The last one that was answered.
    answered: u64,
    in_flight: BTreeMap<u64, Attempt>,
}

#[derive(Debug)]
struct Attempt {
    late_at: Instant,
    /// Its leases. None: it is late.
    leases: Vec<u64>,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Attempts {
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn add(&mut self, number: u64, late_at: Instant, leases: Vec<u64>, permits: Vec<OwnedSemaphorePermit>) {
        self.in_flight.insert(number, Attempt { late_at, leases, _permits: permits });
    }

    /// Ends an attempt. If it was answered, late ones that were sent before it lose their permits.
    pub(super) fn end(&mut self, number: u64, is_answered: bool) {
        self.in_flight.remove(&number);
        if is_answered {
            self.answered = self.answered.max(number);
            self.in_flight.retain(|other, attempt| *other > number || !attempt.leases.is_empty());
        }
    }

    /// Takes the leases of the attempts that are late now.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<(u64, Vec<u64>)> {
        let (answered, mut late) = (self.answered, Vec::new());
        self.in_flight.retain(|number, attempt| {
            if attempt.leases.is_empty() || attempt.late_at > now {
                return true;
            }
            late.push((*number, mem::take(&mut attempt.leases)));
            *number > answered
        });
        late
    }

    /// When the next attempt is late.
    pub(super) fn late_after(&self, now: Instant) -> Option<Instant> {
        self.in_flight.values().map(|attempt| attempt.late_at).filter(|at| *at > now).min()
    }

    #[cfg(test)]
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.in_flight.contains_key(&number)
    }

    /// Whether all are late.
    fn are_silent(&self) -> bool {
        self.in_flight.values().all(|attempt| attempt.leases.is_empty())
    }
}

impl Class {
    /// The class of this ttl, which is checked next.
    pub(super) fn in_need(classes: &mut BTreeMap<Ttl, Self>, ttl: Ttl) -> &mut Self {
        let class = classes.entry(ttl).or_insert_with(|| Self { pace: Pace::of(ttl), ..Self::default() });
        class.check_at = Instant::ORIGIN;
        class
    }

    /// Forgets where a lease waits and when it is checked.
    pub(super) fn take_out(&mut self, number: u64, kept: &Kept) {
        self.waits.remove(&(kept.stage, number));
        self.checks.remove(&(kept.check_at, number));
    }

    /// Notes where a lease waits and when it is checked.
    pub(super) fn put_in(&mut self, number: u64, kept: &Kept) {
        if matches!(kept.stage, Stage::Due(_) | Stage::Late(_) | Stage::Queued(..)) {
            self.waits.insert((kept.stage, number));
        }
        self.checks.insert((kept.check_at, number));
    }

    /// The leases that wait for a part, the earliest deadlines first. Those of late parts share one with no others.
    pub(super) fn due(&self) -> impl Iterator<Item = u64> {
        let waits = if self.has_late() { LATE..QUEUED } else { (Stage::Due(Instant::ORIGIN), 0)..LATE };
        self.waits.range(waits).map(|(_, number)| *number)
    }

    pub(super) fn has_late(&self) -> bool {
        self.waits.range(LATE..QUEUED).next().is_some()
    }

    /// The first lease that waits to be refreshed alone.
    pub(super) fn first_queued(&self) -> Option<u64> {
        self.waits.range(LATE..).next().map(|(_, number)| *number)
    }

    /// When to send a part, and when to probe the store. `has_queued`: leases wait to be refreshed alone.
    pub(super) fn send_times(&mut self, now: Instant, has_queued: bool) -> (Option<Instant>, Option<Instant>) {
        self.queued_since = has_queued.then(|| self.queued_since.unwrap_or(now));
        let probe_at =
            self.queued_since.filter(|_| self.attempts.are_silent()).map(|since| since.after(self.pace.probe()));
        let due = self.due().take(PART).count();
        let gather = if due < PART && self.checks.len() > 1 { self.pace.limit.mul_f64(0.125) } else { Duration::ZERO };
        self.due_since = (due > 0).then(|| self.due_since.unwrap_or(now));
        (self.due_since.map(|since| since.after(gather).max(self.parts_from)), probe_at)
    }

    /// The most leases of a part that is sent now, if the store wants parts of this size.
    pub(super) fn part_size(&self, now: Instant, wanted: usize) -> usize {
        if self.large_from <= now && !self.has_late() { self.pace.large_part(wanted) } else { PART }
    }

    /// Notes that a large part has failed: after a while the class sends another, each time after a longer one. Those that were
    /// under way with it do not count.
    pub(super) fn record_large_failure(&mut self, now: Instant) {
        if self.large_from <= now {
            self.large_from = now.after(self.pace.ttl.saturating_mul(1 << self.large_failures.min(3)));
            self.large_failures = self.large_failures.saturating_add(1);
        }
    }

    /// Notes how a part ended.
    pub(super) fn end_part(&mut self, part: &Part, end: PartEnd, now: Instant) {
        self.attempts.end(part.number, end != PartEnd::Unanswered);
        match end {
            PartEnd::Confirmed(_) => self.part_failures = 0,
            PartEnd::Unanswered => {
                self.part_failures = self.part_failures.saturating_add(1);
                self.parts_from = now.after(retry::delay_after(self.part_failures));
            }
            PartEnd::Partial | PartEnd::Overtaken | PartEnd::Refused => {}
        }
        if !part.is_large() {
            return;
        }
        match end {
            PartEnd::Confirmed(_) if self.large_from <= now => self.large_failures = 0,
            PartEnd::Confirmed(_) => {}
            PartEnd::Overtaken => self.large_from = self.large_from.max(now.after(self.pace.limit)),
            PartEnd::Partial | PartEnd::Unanswered | PartEnd::Refused => self.record_large_failure(now),
        }
    }
}
