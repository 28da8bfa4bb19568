//! Prints the result of a run: what its history contains, and which invariants it breaks.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    faults::Kind,
    history,
    judge::{BY_TIME, Case, Lease},
    options::Options,
    words::{Acquire, Event, Run, name},
};

/// The most violations of one invariant that the verdict prints.
const TOLD: usize = 10;

/// Prints it, keeps a history that fails, and says whether it passes.
pub(crate) fn pass(options: &Options, events: &[Event]) -> std::io::Result<bool> {
    let case = Case::of(events);
    let mut violations = case.judge();
    if options.without_times {
        violations.retain(|violation| !BY_TIME.contains(&violation.of));
    }
    println!("{}", tally(events, &case));
    if case.is_untimed || case.on_redis {
        println!("{}", case.figures());
    }
    println!("violations   {}", violations.len());
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in &violations {
        let told = told.entry(violation.of).or_default();
        *told += 1;
        if *told <= TOLD {
            println!("  {} {}", violation.of, violation.what);
        }
    }
    for (of, count) in told.into_iter().filter(|(_, count)| *count > TOLD) {
        println!("  and {} more of {of}", count - TOLD);
    }
    let passes = violations.is_empty();
    let keep = if passes { options.json.clone() } else { Some(kept(options)) };
    if let Some(file) = keep.filter(|_| options.judge.is_none()) {
        history::save(events, &file)?;
        println!("history      {}", file.display());
    }
    Ok(passes)
}

fn kept(options: &Options) -> PathBuf {
    let name = || format!("chaos-{}-{}.jsonl", options.seed, std::process::id());
    options.json.clone().unwrap_or_else(|| std::env::temp_dir().join(name()))
}

/// Tells what a history contains.
fn tally(events: &[Event], case: &Case<'_>) -> String {
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let mut kinds = BTreeMap::<Kind, usize>::new();
    let (mut began, mut failovers) = (0, 0);
    for event in events {
        match event {
            Event::Fault(fault) => *kinds.entry(fault.kind).or_default() += 1,
            Event::Run(Run { term, .. }) => began = *term,
            Event::Healed { term, .. } => failovers = term - began,
            _ => {}
        }
    }
    let attempts: u32 = case.acquires.iter().map(|acquire| acquire.attempts).sum();
    let doubts: u32 = case.acquires.iter().map(|acquire| acquire.doubts).sum();
    let granted = |is: &dyn Fn(&Acquire) -> bool| {
        let granted = case.acquires.iter().filter(|acquire| acquire.outcome == "granted");
        granted.filter(|acquire| is(acquire)).count()
    };
    let (grants, handed) = (granted(&|_| true), granted(&|acquire| acquire.queued.is_some()));
    // Of a record that had been seen to be gone, after an earlier grant of the key.
    let recreations = granted(&|acquire| {
        let first = case.leases.get(acquire.key.as_str()).and_then(|leases| leases.first());
        acquire.anew && first.is_some_and(|first| first.acquire.end < acquire.begin)
    });
    let losses = count(|event| matches!(event, Event::Lost { .. }));
    let takeovers: usize = case.leases.values().map(takeovers).sum();
    let called = |verb: &str, outcome: &str| {
        case.calls.iter().filter(|call| call.verb == verb && call.outcome == outcome).count()
    };
    let (written, fenced) = (called("write", "ok"), called("write", "fenced"));
    let ticks = case.ticked().count();
    let watched = count(|event| matches!(event, Event::Watched { .. }));
    let gaps = count(|event| matches!(event, Event::Missed { .. }));
    let (values, opened) = (case.values().count(), called("prepare", "refused"));
    let (beside_locks, delayed) = (case.beside_locks().count(), case.delayed().len());
    let (kept, outlasting) = (case.refreshed_beside_locks().len(), case.outlasting().count());
    let (blocked, held_on) = (case.blocked().len(), case.after_minimum_holds().count());
    let (worked, after_refusals) = (case.worked().count(), case.after_refusals().count());
    let faults: Vec<_> = kinds.iter().map(|(kind, count)| format!("{} {count}", name(kind))).collect();
    let lines = [
        format!("faults       {} of {} kinds: {}", kinds.values().sum::<usize>(), kinds.len(), faults.join(", ")),
        format!("failovers    {failovers}"),
        format!("attempts     {attempts}"),
        format!("in doubt     {doubts} attempts of which nobody knows whether they were applied"),
        format!("grants       {grants}"),
        format!("handed over  {handed} grants to waiters"),
        format!("re-creations {recreations}"),
        format!("losses       {losses}"),
        format!("taken over   {takeovers} keys after expiry"),
        format!("documents    {written} written"),
        format!("fenced       {fenced} writes refused by the collection"),
        format!("ticks        {ticks} completed"),
        format!("watched      {watched} grants, {gaps} times events were reported as missing"),
        format!("beside locks {beside_locks} acquires of other keys while a record was locked"),
        format!("kept         {kept} leases refreshed while records of other keys were locked for a ttl"),
        format!("delayed      {delayed} leases refreshed while replies were late by a constant time"),
        format!("outlasted    {outlasting} acquires were queued before an outage and waited through it"),
        format!("blocked      {blocked} leases were kept by a thread while others were blocked for a ttl"),
        format!("held on      {held_on} grants after a minimum hold that its holder had released"),
        format!("worked       {worked} times work ran while its handle was shut down"),
        format!("went on      {after_refusals} writes of documents and acquires after refused commits"),
        format!("not opened   {opened} handles, on a collection with a collation"),
        format!("values       {values} confirmed writes of the value of a key"),
        format!("log          {} writes of records and fenced documents judged", case.logged()),
    ];
    lines.join("\n")
}

/// Grants of a key whose holder before had not begun to give it back.
fn takeovers(leases: &Vec<Lease<'_>>) -> usize {
    let mut by_token: Vec<_> = leases.iter().collect();
    by_token.sort_by_key(|lease| lease.token);
    let pairs = by_token.windows(2);
    pairs
        .filter(|pair| pair[0].ends.is_none_or(|(at, how)| how == "orphan" || at > pair[1].acquire.end))
        .filter(|pair| pair[0].is_exclusive() && pair[1].is_exclusive())
        .count()
}
