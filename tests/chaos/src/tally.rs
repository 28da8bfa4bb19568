//! Counts the events of a history, and checks whether it contains the situations that the judge needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    judge::Case,
    words::{Event, Outcome, Seen},
    worker::LEADERSHIP,
};

#[derive(Default)]
pub(crate) struct Tally {
    faults: BTreeMap<String, usize>,
    operations: usize,
    pub(crate) attempts: usize,
    pub(crate) grants: usize,
    /// Grants of a record that had been seen to be gone, after an earlier grant of the key.
    pub(crate) recreations: usize,
    failovers: i64,
    losses: usize,
    takeovers: usize,
    doubts: usize,
    refused: usize,
    written: usize,
    fenced: usize,
    revoked: usize,
    elected: usize,
    transferred: usize,
    handed: usize,
    unavailable: usize,
    stalls: usize,
    beside_locks: usize,
    kept_beside_locks: usize,
    delayed: usize,
    outlasting: usize,
    blocked: usize,
    ticks: usize,
    repeated: usize,
    after_minimum_holds: usize,
    worked: usize,
    watched: usize,
    gaps: usize,
    after_refusals: usize,
    opened: usize,
    values: usize,
}

impl Tally {
    pub(crate) fn of(events: &[Event], case: &Case<'_>) -> Self {
        let mut tally = Self::default();
        let (mut began, mut worked) = (None, BTreeSet::new());
        for event in events {
            match event {
                Event::Fault(fault) => *tally.faults.entry(fault.kind.clone()).or_default() += 1,
                Event::Acquire(acquire) => {
                    tally.operations += 1;
                    tally.attempts += acquire.attempts as usize;
                    tally.doubts += acquire.doubts as usize;
                    let granted = matches!(acquire.outcome, Outcome::Granted { .. });
                    tally.grants += usize::from(granted);
                    tally.elected += usize::from(granted && acquire.key == LEADERSHIP);
                    tally.handed += usize::from(granted && acquire.queued.is_some());
                    tally.unavailable += usize::from(matches!(acquire.outcome, Outcome::Unavailable { .. }));
                    let before = case.leases.get(acquire.key.as_str()).and_then(|leases| leases.first());
                    let again = before.is_some_and(|first| first.acquire.end < acquire.begin);
                    tally.recreations += usize::from(granted && acquire.anew && again);
                }
                Event::Inspect(inspect) => {
                    tally.operations += 1;
                    tally.unavailable += usize::from(matches!(inspect.seen, Seen::Unavailable));
                }
                Event::Call(call) => {
                    tally.operations += 1;
                    tally.transferred += usize::from(call.verb == "transfer" && call.outcome == "ok");
                }
                Event::Refreshed { .. } => tally.operations += 1,
                Event::Lost { cause, .. } => tally.losses += usize::from(cause != "revoked"),
                Event::Entry(entry) => {
                    tally.operations += 1;
                    tally.written += usize::from(entry.token.is_some() && entry.outcome == "ok");
                    tally.fenced += usize::from(entry.outcome == "fenced");
                    tally.unavailable += usize::from(entry.outcome == "unavailable");
                }
                Event::Revoke(revoke) => {
                    tally.operations += usize::from(revoke.outcome != "begun");
                    tally.revoked += revoke.tokens.len();
                }
                Event::Write(write) => tally.refused += usize::from(write.accepted == Some(false)),
                Event::Elected { term } => began = Some(*term),
                Event::Healed { term, .. } => tally.failovers = term - began.unwrap_or(*term),
                Event::Works { key, tick, .. } => tally.repeated += usize::from(!worked.insert((key, tick))),
                Event::Ticked(ticked) => {
                    tally.operations += 1;
                    tally.ticks += usize::from(ticked.outcome == "ran");
                    tally.unavailable += usize::from(ticked.outcome == "unavailable");
                }
                Event::Value(value) => {
                    tally.operations += 1;
                    tally.values += usize::from(value.verb != "read" && value.outcome == "ok");
                }
                Event::Stall { .. } => tally.stalls += 1,
                Event::Watched { .. } => tally.watched += 1,
                Event::Missed { .. } => tally.gaps += 1,
                _ => {}
            }
        }
        tally.takeovers = takeovers(case);
        tally.beside_locks = case.beside_locks().count();
        tally.kept_beside_locks = case.refreshed_beside_locks().count();
        tally.delayed = case.delayed().count();
        tally.outlasting = case.outlasting().count();
        tally.blocked = case.blocked().count();
        tally.after_minimum_holds = case.after_minimum_holds().count();
        tally.worked = case.worked().count();
        tally.after_refusals = case.after_refusals().count();
        tally.opened = case.opened().filter(|(.., outcome)| *outcome == "refused").count();
        tally
    }

    pub(crate) fn faults(&self) -> usize {
        self.faults.values().sum()
    }

    pub(crate) fn kinds(&self) -> usize {
        self.faults.len()
    }

    /// What a run of a minute should have seen and this one did not.
    pub(crate) fn unseen(&self, on_redis: bool) -> Vec<&'static str> {
        let failovers = usize::try_from(self.failovers).unwrap_or(0);
        let sometimes = [
            (self.losses, "a lease that was lost"),
            (self.takeovers, "a key taken over after expiry"),
            (self.doubts, "an answer that left in doubt whether it was done"),
            (self.refused, "a write that the fence refused"),
            (self.handed, "a key handed over to a waiter"),
            (failovers, "a failover"),
        ];
        // On Redis there are no documents and no schedules, and idle records are kept for longer.
        let of_set = [
            (self.fenced, "a write that the fence of a collection refused"),
            (self.recreations, "a record created again after its collection"),
            (self.ticks, "a completed tick"),
            (self.watched, "a grant that a watch reported"),
        ];
        let of_set = of_set.into_iter().filter(|_| !on_redis);
        sometimes.into_iter().chain(of_set).filter(|(count, _)| *count == 0).map(|(_, what)| what).collect()
    }
}

/// Grants of keys whose holder before had not begun to give them back.
fn takeovers(case: &Case<'_>) -> usize {
    let lapsed = |leases: &Vec<crate::judge::Lease<'_>>| {
        let mut by_token: Vec<_> = leases.iter().collect();
        by_token.sort_by_key(|lease| lease.token);
        let pairs = by_token.windows(2);
        pairs
            .filter(|pair| pair[0].ends.is_none_or(|(at, how)| how == "orphan" || at > pair[1].acquire.end))
            .filter(|pair| pair[0].lost.is_none_or(|(_, cause, _)| cause != "revoked"))
            .filter(|pair| pair[0].is_exclusive() && pair[1].is_exclusive())
            .count()
    };
    case.leases.values().map(lapsed).sum()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(f, "faults       {} of {} kinds: {}", self.faults(), self.kinds(), faults.join(", "))?;
        writeln!(f, "failovers    {}", self.failovers)?;
        writeln!(f, "operations   {}, of which {} ended in Unavailable", self.operations, self.unavailable)?;
        writeln!(f, "attempts     {}, of which {} left in doubt what was done", self.attempts, self.doubts)?;
        writeln!(f, "grants       {}, of which {} handed over to waiters", self.grants, self.handed)?;
        writeln!(f, "re-creations {}", self.recreations)?;
        writeln!(f, "losses       {}, and {} keys taken over after expiry", self.losses, self.takeovers)?;
        writeln!(f, "refused      {} writes, by the fence", self.refused)?;
        writeln!(f, "documents    {} written, {} writes refused by the collection", self.written, self.fenced)?;
        writeln!(f, "elections    {}, {} leases revoked, {} handed on", self.elected, self.revoked, self.transferred)?;
        writeln!(f, "ticks        {} completed, {} runs of work repeated", self.ticks, self.repeated)?;
        writeln!(f, "watched      {} grants, {} times events were reported as missing", self.watched, self.gaps)?;
        writeln!(f, "beside locks {} acquires of other keys while a record was locked", self.beside_locks)?;
        writeln!(
            f,
            "kept         {} leases refreshed while records of other keys were locked for a ttl",
            self.kept_beside_locks
        )?;
        writeln!(f, "delayed      {} leases refreshed while replies were late by a constant time", self.delayed)?;
        writeln!(f, "outlasted    {} acquires were queued before an outage and waited through it", self.outlasting)?;
        writeln!(f, "blocked      {} leases were kept by a thread while others were blocked for a ttl", self.blocked)?;
        writeln!(
            f,
            "held on      {} grants after a minimum hold that its holder had released",
            self.after_minimum_holds
        )?;
        writeln!(f, "worked       {} times work ran while its handle was shut down", self.worked)?;
        writeln!(f, "went on      {} writes of documents and acquires after refused commits", self.after_refusals)?;
        writeln!(f, "not opened   {} handles, on a collection with a collation", self.opened)?;
        writeln!(f, "values       {} confirmed writes of the value of a key", self.values)?;
        write!(f, "stalls       {} times a process did not run for 0.1 s", self.stalls)
    }
}
