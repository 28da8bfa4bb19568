//! Checks each request's effect on other clients, and that rare outcomes are reached.

use crate::{
    outcomes::{Breach, Rare},
    state::{Answer, Holds, Lease, Message, Stage, State, Stored, Time, Value, Verb},
};

/// Whether a command did to others what it may not.
pub(crate) fn misdeed(before: Option<&Stored>, after: Option<&Stored>, now: Time, asked: &[Message]) -> Option<Breach> {
    let (had, holders) = (held(before), held(after));
    let queued = before.map(|before| before.queue.as_slice()).unwrap_or_default();
    let queue = after.map(|after| &after.queue);
    for held in had {
        let may = |what: fn(Verb, Holds) -> bool| {
            asked.iter().any(|message| message.lease == held.lease && what(message.verb, *held))
        };
        let touched = match holders.iter().find(|holder| holder.grant == held.grant) {
            Some(holder) => {
                (holder.expires_at != held.expires_at && !may(may_prolong))
                    || (holder.shares != held.shares && !may(may_share))
            }
            None => held.expires_at > now && !may(may_end),
        };
        if touched {
            return Some(Breach::NewerTouched);
        }
    }
    let asks = |lease: Lease| asked.iter().find(|message| message.lease == lease);
    let waiting = queued.iter().filter(|(lease, until)| *until > now && asks(*lease).is_none());
    let waiting: Vec<Lease> = waiting.map(|(lease, _)| *lease).collect();
    let is_new = |holder: &&Holds| had.iter().all(|held| held.grant != holder.grant);
    let granted: Vec<Lease> = holders.iter().filter(is_new).map(|holder| holder.lease).collect();
    let waits_on = |lease: &Lease| queue.is_some_and(|queue| queue.iter().any(|(other, _)| other == lease));
    if waiting.iter().any(|lease| !waits_on(lease) && !granted.contains(lease)) {
        return Some(Breach::NewerTouched);
    }
    // First the waiters of the queue in their order, those that ask again among them; then the other acquires.
    let stays = |(lease, until): &&(Lease, Time)| {
        *until > now && asks(*lease).is_none_or(|message| message.verb == Verb::Acquire)
    };
    let acquires = asked.iter().filter(|message| message.verb == Verb::Acquire);
    let line = queued.iter().filter(stays).map(|(lease, _)| *lease).chain(acquires.map(|one| one.lease));
    (!granted.iter().copied().eq(line.take(granted.len()))).then_some(Breach::OutOfTurn)
}

fn held(record: Option<&Stored>) -> &[Holds] {
    record.map(|record| record.holders.as_slice()).unwrap_or_default()
}

/// Whether a request for the lease of this holder may push its expiry out.
fn may_prolong(verb: Verb, held: Holds) -> bool {
    match verb {
        Verb::Acquire | Verb::Refresh { .. } => true,
        Verb::Keep { token, .. } => token == held.token,
        _ => false,
    }
}

/// Whether a request for the lease of this holder may end it.
fn may_end(verb: Verb, held: Holds) -> bool {
    matches!(verb, Verb::Release { token } if token.is_none_or(|token| token == held.token))
}

/// Whether a request for the lease of this holder may let other holders in.
fn may_share(verb: Verb, held: Holds) -> bool {
    matches!(verb, Verb::Downgrade { token } if token == held.token)
}

/// What this command does, if few orders of steps lead to it.
pub(crate) fn rare(
    state: &State,
    before: Option<&Stored>,
    now: Time,
    asked: &[Message],
    answers: &[Answer],
) -> Option<Rare> {
    let held = held(before).first().copied();
    match (asked, answers) {
        (_, [Answer::Granted { .. }, Answer::Queued { .. }]) => Some(Rare::GrantedTogether),
        ([message], [Answer::Granted { grant, .. }]) if *grant == state.grants => {
            let retry = Message { awaited: true, stage: Stage::Answered(Answer::No), ..*message };
            let is_ahead = |held: Holds| now >= held.expires_at && held.expires_at > state.time;
            if !message.awaited && state.messages.contains(&retry) {
                Some(Rare::GhostGranted)
            } else {
                held.is_some_and(is_ahead).then_some(Rare::GrantedAhead)
            }
        }
        ([Message { lease, verb: Verb::Keep { .. }, .. }], _) => {
            held.is_some_and(|held| held.lease != *lease && now < state.wall()).then_some(Rare::KeptTooLate)
        }
        ([Message { verb: Verb::Put { token, number, .. }, .. }], _) => {
            let later = |(of, _, value): (_, _, Value)| of == *token && value.1 > *number;
            before.and_then(|before| before.value).is_some_and(later).then_some(Rare::PutTooLate)
        }
        ([Message { lease, verb: Verb::Downgrade { token }, .. }], _) => {
            held.is_some_and(|held| held.lease == *lease && held.token != *token).then_some(Rare::DowngradedTooLate)
        }
        _ => None,
    }
}
