//! Counts the events of a history, and checks whether it contains the situations that the judge needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    faults::Kind,
    judge::{Case, Lease},
    words::{Acquire, Entry, Event, Outcome, Seen, Ticked, name},
    worker::LEADERSHIP,
};

/// Tells what a history contains. Also returns what a run of three minutes with all faults should have seen and this one
/// did not.
pub(crate) fn tally(events: &[Event], case: &Case<'_>) -> (String, Vec<&'static str>) {
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let (mut kinds, mut worked) = (BTreeMap::<Kind, usize>::new(), BTreeSet::new());
    let (mut began, mut failovers, mut revoked, mut repeated) = (None, 0, 0, 0);
    for event in events {
        match event {
            Event::Fault(fault) => *kinds.entry(fault.kind).or_default() += 1,
            Event::Elected { term } => began = Some(*term),
            Event::Healed { term, .. } => failovers = term - began.unwrap_or(*term),
            Event::Revoke(revoke) => revoked += revoke.tokens.len(),
            Event::Works { key, tick, .. } => repeated += usize::from(!worked.insert((key, tick))),
            _ => {}
        }
    }
    let operations = count(|event| match event {
        Event::Acquire(_)
        | Event::Inspect(_)
        | Event::Call(_)
        | Event::Refreshed { .. }
        | Event::Entry(_)
        | Event::Ticked(_)
        | Event::Value(_) => true,
        Event::Revoke(revoke) => revoke.outcome != "begun",
        _ => false,
    });
    let unavailable = count(|event| match event {
        Event::Acquire(acquire) => matches!(acquire.outcome, Outcome::Unavailable { .. }),
        Event::Inspect(inspect) => matches!(inspect.seen, Seen::Unavailable),
        Event::Entry(Entry { outcome, .. }) | Event::Ticked(Ticked { outcome, .. }) => outcome == "unavailable",
        _ => false,
    });
    let attempts: u32 = case.acquires.iter().map(|acquire| acquire.attempts).sum();
    let doubts: u32 = case.acquires.iter().map(|acquire| acquire.doubts).sum();
    let granted = |is: &dyn Fn(&Acquire) -> bool| {
        let granted = case.acquires.iter().filter(|acquire| matches!(acquire.outcome, Outcome::Granted { .. }));
        granted.filter(|acquire| is(acquire)).count()
    };
    let (grants, handed) = (granted(&|_| true), granted(&|acquire| acquire.queued.is_some()));
    let elected = granted(&|acquire| acquire.key == LEADERSHIP);
    // Of a record that had been seen to be gone, after an earlier grant of the key.
    let recreations = granted(&|acquire| {
        let first = case.leases.get(acquire.key.as_str()).and_then(|leases| leases.first());
        acquire.anew && first.is_some_and(|first| first.acquire.end < acquire.begin)
    });
    let losses = count(|event| matches!(event, Event::Lost { cause, .. } if cause != "revoked"));
    let takeovers: usize = case.leases.values().map(takeovers).sum();
    let refused = case.writes.iter().filter(|write| write.accepted == Some(false)).count();
    let written = case.entries.iter().filter(|entry| entry.token.is_some() && entry.outcome == "ok").count();
    let fenced = case.entries.iter().filter(|entry| entry.outcome == "fenced").count();
    let transferred =
        count(|event| matches!(event, Event::Call(call) if call.verb == "transfer" && call.outcome == "ok"));
    let ticks = case.ticked().filter(|ticked| ticked.outcome == "ran").count();
    let watched = count(|event| matches!(event, Event::Watched { .. }));
    let gaps = count(|event| matches!(event, Event::Missed { .. }));
    let values = case.values().filter(|value| value.verb != "read" && value.outcome == "ok").count();
    let opened = case.opened().filter(|(.., outcome)| *outcome == "refused").count();
    let stalls = count(|event| matches!(event, Event::Stall { .. }));
    let (beside_locks, delayed) = (case.beside_locks().count(), case.delayed().count());
    let (kept, outlasting) = (case.refreshed_beside_locks().count(), case.outlasting().count());
    let (blocked, held_on) = (case.blocked().count(), case.after_minimum_holds().count());
    let (worked, after_refusals) = (case.worked().count(), case.after_refusals().count());
    let faults: Vec<_> = kinds.iter().map(|(kind, count)| format!("{} {count}", name(kind))).collect();
    let lines = [
        format!("faults       {} of {} kinds: {}", kinds.values().sum::<usize>(), kinds.len(), faults.join(", ")),
        format!("failovers    {failovers}"),
        format!("operations   {operations}, of which {unavailable} ended in Unavailable"),
        format!("attempts     {attempts}, of which {doubts} left in doubt what was done"),
        format!("grants       {grants}, of which {handed} handed over to waiters"),
        format!("re-creations {recreations}"),
        format!("losses       {losses}, and {takeovers} keys taken over after expiry"),
        format!("refused      {refused} writes, by the fence"),
        format!("documents    {written} written, {fenced} writes refused by the collection"),
        format!("elections    {elected}, {revoked} leases revoked, {transferred} handed on"),
        format!("ticks        {ticks} completed, {repeated} runs of work repeated"),
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
        format!("stalls       {stalls} times a process did not run for 0.1 s"),
    ];
    let sometimes = [
        (losses > 0, "a lease that was lost"),
        (takeovers > 0, "a key taken over after expiry"),
        (doubts > 0, "an answer that left in doubt whether it was done"),
        (refused > 0, "a write that the fence refused"),
        (handed > 0, "a key handed over to a waiter"),
        (failovers > 0, "a failover"),
        // On Redis there are no documents and no schedules, and idle records are kept for longer.
        (fenced > 0 || case.on_redis, "a write that the fence of a collection refused"),
        (recreations > 0 || case.on_redis, "a record created again after its collection"),
        (ticks > 0 || case.on_redis, "a completed tick"),
        (watched > 0 || case.on_redis, "a grant that a watch reported"),
    ];
    (lines.join("\n"), sometimes.into_iter().filter(|(is_seen, _)| !is_seen).map(|(_, what)| what).collect())
}

/// Grants of a key whose holder before had not begun to give it back.
fn takeovers(leases: &Vec<Lease<'_>>) -> usize {
    let mut by_token: Vec<_> = leases.iter().collect();
    by_token.sort_by_key(|lease| lease.token);
    let pairs = by_token.windows(2);
    pairs
        .filter(|pair| pair[0].ends.is_none_or(|(at, how)| how == "orphan" || at > pair[1].acquire.end))
        .filter(|pair| pair[0].lost.is_none_or(|(_, cause, _)| cause != "revoked"))
        .filter(|pair| pair[0].is_exclusive() && pair[1].is_exclusive())
        .count()
}
