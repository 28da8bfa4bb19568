//! The rules of the clients: what a client makes of an answer, when it believes that it holds the key, and when it knows that
//! it has completed its tick.

use crate::{
    config::Rule,
    outcomes::{Breach, Rare},
    server::Server,
    state::{
        Answer, Doing, Grant, Held, Message, Notice, Phase, Place, State, Stored, Time, Token, Value, Verb, client_of,
    },
};

impl Server {
    pub(crate) fn receive(&self, state: &mut State, message: &Message, answer: Answer) {
        let who = client_of(message.lease);
        match message.verb {
            Verb::Acquire => self.acquire_answered(state, who, answer),
            Verb::Refresh { sent } => self.refresh_answered(state, who, sent, answer, false),
            Verb::Keep { sent, .. } => self.refresh_answered(state, who, sent, answer, true),
            Verb::Downgrade { .. } => self.downgrade_answered(state, who, answer),
            Verb::Put { token, number, .. } => Self::put_answered(state, who, (token, number), answer),
            Verb::Complete { token, .. } => self.completion_answered(state, who, token, answer),
            _ => unreachable!("no client awaits the answer to {message:?}"),
        }
    }

    fn acquire_answered(&self, state: &mut State, who: usize, answer: Answer) {
        let Doing::Asks { sent, .. } = state.clients[who].doing else {
            unreachable!("a client awaits an acquire only while it asks: {state:?}")
        };
        match answer {
            Answer::Granted { token, grant, value, left } => {
                self.believe(state, who, (token, grant), sent, left.map(|left| self.limit(sent, left)));
                if left.is_some_and(|left| left < self.config.max_hold + self.config.grace) {
                    self.reached.note([Rare::ResentGrantCut]);
                }
                if self.config.values > 0 && state.held(who).is_some() {
                    state.reads(token, value);
                }
            }
            Answer::Queued { version } => state.clients[who].doing = Doing::Waits { place: Place { sent, version } },
            _ => state.clients[who].doing = Doing::Nothing,
        }
    }

    /// The last deadline that the answer to an acquire gives: from `left`, the time from the answer to `not_after`.
    fn limit(&self, sent: Time, left: Time) -> Time {
        if self.config.is_without(Rule::LastFromAnswer) {
            sent + self.config.max_hold
        } else if self.config.is_without(Rule::LastWithoutGrace) {
            sent + left
        } else {
            sent + (left - self.config.grace).max(0)
        }
    }

    /// A notification grants the key to a waiter.
    pub(crate) fn hear(&self, state: &mut State, notice: Notice) {
        let who = client_of(notice.lease);
        let Doing::Waits { place } = state.clients[who].doing else { return };
        if notice.token > place.version && state.time < place.sent + self.config.ttls[who] {
            let from = if self.config.is_without(Rule::LastFromPlace) { state.time } else { place.sent };
            let limit = (self.config.max_hold > 0).then_some(from + self.config.max_hold);
            self.believe(state, who, (notice.token, notice.grant), place.sent, limit);
        }
    }

    /// A client is told that it holds the key, by an answer to what it sent at some time.
    fn believe(&self, state: &mut State, who: usize, (token, grant): (Token, Grant), sent: Time, limit: Option<Time>) {
        let deadline = sent + self.config.ttls[who];
        let deadline = limit.map_or(deadline, |limit| limit.min(deadline));
        if state.time >= deadline && !self.config.is_without(Rule::LateReplies) {
            state.clients[who].doing = Doing::Nothing;
            return;
        }
        let shares = self.config.shares[who];
        let held = Held { token, deadline, limit, phase: Phase::Granted, shares, puts: 0, last: 0 };
        state.clients[who].doing = Doing::Holds(held);
        if !self.config.schedules {
            state.learns(grant, token);
        }
        self.exclude(state, who);
    }

    fn exclude(&self, state: &mut State, who: usize) {
        let shares = state.clients[who].shares();
        let believes = |who: usize| state.clients[who].believes(state.time).is_some();
        let mut others = (0..state.clients.len()).filter(|other| *other != who);
        if self.config.excludes()
            && believes(who)
            && others.any(|other| believes(other) && !(shares && state.clients[other].shares()))
        {
            state.breaks(Breach::TwoBelieve);
        }
    }

    fn put_answered(state: &mut State, who: usize, value: Value, answer: Answer) {
        let Some(held) = state.held(who) else {
            unreachable!("a client awaits a write of a value only while it holds: {value:?}")
        };
        match answer {
            Answer::Put => {
                held.last = value.1;
                state.confirms(value);
            }
            Answer::Outdated { last } => held.last = last,
            _ => {}
        }
    }

    /// It knew before that it may share the key, unless that rule is taken out.
    fn downgrade_answered(&self, state: &mut State, who: usize, answer: Answer) {
        if let Some(held) = state.held(who)
            && self.config.is_without(Rule::SharesFromSend)
        {
            held.shares |= answer == Answer::Downgraded;
        }
    }

    /// The first confirmation of several attempts counts. A later confirmation can only move the deadline on.
    fn refresh_answered(&self, state: &mut State, who: usize, sent: Time, answer: Answer, jointly: bool) {
        let (time, last) = (state.time, state.refreshes(who).fold(sent, Time::max));
        let Some(mut held) = state.held(who).copied() else {
            unreachable!("a client awaits a refresh only while it holds: {state:?}")
        };
        let is_confirmed = matches!(answer, Answer::Refreshed { token } if token == held.token && time < held.deadline);
        if is_confirmed {
            self.reached.note((last > sent).then_some(Rare::EarlierConfirmed));
            let from = if self.config.is_without(Rule::OwnSend) { last } else { sent };
            let later = held.deadline.max(from + self.config.ttls[who]);
            let limit = held.limit.filter(|_| !self.config.is_without(Rule::RefreshStopsAtLast));
            held.deadline = limit.map_or(later, |limit| limit.min(later));
            self.reached.note((held.deadline < later).then_some(Rare::RefreshCut));
            state.clients[who].doing = Doing::Holds(held);
            self.exclude(state, who);
            return;
        }
        // A joint refresh does not tell which lease is over: the client refreshes by itself from now on. Another refusal may
        // be stale: a linearizable read tells.
        let lives = jointly || state.find(who, held.token).is_some_and(|holds| holds.expires_at > state.wall());
        if self.config.schedules && !lives {
            // Its work goes on.
            held.deadline = held.deadline.min(time);
            state.clients[who].doing = Doing::Holds(held);
        } else if !self.config.schedules && (!lives || matches!(answer, Answer::Refreshed { .. })) {
            state.abandon(who);
            state.clients[who].doing = Doing::Nothing;
        }
    }

    /// The record that a client reads. A read is linearizable, so it never comes from a deposed primary.
    fn read_record<'a>(&self, state: &'a State) -> Option<&'a Stored> {
        let older = state.deposed.as_ref().filter(|_| self.config.is_without(Rule::ReadsAreLinearizable));
        older.or(state.record.as_ref())
    }

    /// Reads the last completed tick after the grant.
    pub(crate) fn check(&self, state: &mut State, who: usize) {
        let done = self.read_record(state).and_then(|record| record.done);
        let is_done = done.is_some_and(|(last, _)| last >= self.config.ticks[who]);
        if is_done && self.config.reads && !self.config.is_without(Rule::DoneReadAfterGrant) {
            // No work has run under the lease, so it is taken back, and its minimum hold does not count.
            let has_room = state.clients[who].sends > 0;
            self.end(state, who, has_room.then_some(Verb::Release { token: None }));
            self.reached.note([Rare::FoundDone]);
        } else {
            state.held(who).unwrap().phase = Phase::Checked;
            // Only a reset lowers the tick to 0.
            if done.is_some_and(|(last, _)| last == 0) {
                self.reached.note([Rare::AllowedByReset]);
            }
        }
    }

    /// An answer that wrote nothing is a hint, so a linearizable read follows it.
    fn completion_answered(&self, state: &mut State, who: usize, token: Token, answer: Answer) {
        let believes_hint = self.config.is_without(Rule::CompletionWrites);
        let record = self.read_record(state);
        let is_told = matches!(answer, Answer::Completed { changed } if changed || believes_hint);
        let is_read = !is_told && record.and_then(|record| record.done).is_some_and(|(_, by)| by == token);
        let is_lost = record.is_none_or(|record| record.live(token, state.wall()).is_none());
        self.reached.note(is_read.then_some(Rare::ResentCompletion));
        if is_told || is_read {
            Self::judge_completed(state, token);
        }
        // Otherwise the client resends the completion.
        if is_told || is_read || is_lost {
            self.end(state, who, None);
        }
    }
}
