//! The rules of the runners: when a runner believes that it holds the key, runs its work, and knows that it has completed
//! its tick.

use super::{
    config::Rule,
    server::Server,
    state::{Answer, Attempt, Doing, Held, Message, Phase, Place, Stage, State, Stored, Token, Verb, runner_of},
};
use crate::{outcomes::Rare, state::Time};

impl Server {
    pub(super) fn send(state: &mut State, runner: usize, verb: Verb, is_awaited: bool) {
        state.runners[runner].sends -= 1;
        state.messages.push(Message { attempt: state.attempt(runner), verb, is_awaited, stage: Stage::Sent });
    }

    /// No runner awaits what this runner has sent.
    pub(super) fn abandon(state: &mut State, runner: usize) {
        for message in state.messages.iter_mut().filter(|message| runner_of(message.attempt) == runner) {
            message.is_awaited = false;
            // No deadline counts from it.
            if let Verb::Refresh { sent } | Verb::Keep { sent, .. } = &mut message.verb {
                *sent = 0;
            }
        }
    }

    pub(super) fn awaits(state: &State, runner: usize) -> bool {
        state.messages.iter().any(|message| message.is_awaited && runner_of(message.attempt) == runner)
    }

    /// Sends the acquire of a new attempt, or resends that of the present attempt.
    pub(super) fn acquire(state: &mut State, runner: usize, place: Option<Place>) {
        Self::abandon(state, runner);
        state.runners[runner].doing = Doing::Acquires { sent: state.time, place };
        Self::send(state, runner, Verb::Acquire, true);
    }

    /// Ends what a runner does, with a last request that it does not await.
    pub(super) fn end(state: &mut State, runner: usize, verb: Option<Verb>) {
        Self::abandon(state, runner);
        if let Some(verb) = verb {
            Self::send(state, runner, verb, false);
        }
        state.runners[runner].doing = Doing::Nothing;
    }

    /// Sends the completion, or resends it.
    pub(super) fn complete(state: &mut State, runner: usize, held: Held) {
        Self::abandon(state, runner);
        state.runners[runner].doing = Doing::Holds { held, phase: Phase::Completes };
        Self::send(state, runner, Verb::Complete { token: held.token }, true);
    }

    /// The record that a runner reads. A read is linearizable, so it never comes from a deposed primary.
    fn read<'a>(&self, state: &'a State) -> Option<&'a Stored> {
        let older = state.deposed.as_ref().filter(|_| self.config.is_without(Rule::ReadsAreLinearizable));
        older.or(state.record.as_ref())
    }

    /// Reads the last completed tick after the grant.
    pub(super) fn check(&self, state: &mut State, runner: usize, held: Held) {
        let tick = self.config.ticks[runner];
        let done = self.read(state).and_then(|record| record.done);
        let is_done = done.is_some_and(|(last, _)| last >= tick);
        if is_done && self.config.reads && !self.config.is_without(Rule::DoneReadAfterGrant) {
            // No work has run under the lease, so it is taken back, and its minimum hold does not count.
            let has_room = state.runners[runner].sends > 0;
            Self::end(state, runner, has_room.then_some(Verb::Leave));
            self.reached.note([Rare::FoundDone]);
        } else {
            state.runners[runner].doing = Doing::Holds { held, phase: Phase::Checked };
            // Only a reset lowers the tick to 0.
            if done.is_some_and(|(last, _)| last == 0) {
                self.reached.note([Rare::AllowedByReset]);
            }
        }
    }

    pub(super) fn receive(&self, state: &mut State, message: &Message, answer: Answer) {
        match message.verb {
            Verb::Acquire => self.acquire_answered(state, message.attempt, answer),
            Verb::Refresh { sent } | Verb::Keep { sent, .. } => self.refresh_answered(state, message, sent, answer),
            Verb::Complete { token } => self.completion_answered(state, runner_of(message.attempt), token, answer),
            _ => unreachable!("no runner awaits the answer to {message:?}"),
        }
    }

    fn acquire_answered(&self, state: &mut State, attempt: Attempt, answer: Answer) {
        let runner = runner_of(attempt);
        let Doing::Acquires { sent, .. } = state.runners[runner].doing else {
            unreachable!("a runner awaits an acquire only while it acquires: {state:?}")
        };
        match answer {
            Answer::Granted { token, left } => {
                let last = left.map(|left| self.last_deadline(sent, left));
                if left.is_some_and(|left| left < self.config.max_hold + self.config.grace) {
                    self.reached.note([Rare::ResentGrantCut]);
                }
                self.believe(state, runner, token, sent, last);
            }
            Answer::Queued { version } => {
                state.runners[runner].doing = Doing::Waits { place: Place { sent, version } };
            }
            _ => state.runners[runner].doing = Doing::Nothing,
        }
    }

    /// The last deadline that the answer to an acquire gives: from `left`, the time from the answer to `not_after`.
    fn last_deadline(&self, sent: Time, left: Time) -> Time {
        if self.config.is_without(Rule::LastFromAnswer) {
            sent + self.config.max_hold
        } else if self.config.is_without(Rule::LastWithoutGrace) {
            sent + left
        } else {
            sent + (left - self.config.grace).max(0)
        }
    }

    /// A runner knows of its grant, by an answer or a notification.
    fn believe(&self, state: &mut State, runner: usize, token: Token, sent: Time, last: Option<Time>) {
        let deadline = sent + self.config.ttl;
        let deadline = last.map_or(deadline, |last| last.min(deadline));
        let held = Held { token, deadline, last };
        let holds = Doing::Holds { held, phase: Phase::Granted };
        // An answer after the deadline counts as none.
        state.runners[runner].doing = if state.time < deadline { holds } else { Doing::Nothing };
    }

    /// A notification grants the key to a waiter.
    pub(super) fn notified(&self, state: &mut State, attempt: Attempt, token: Token) {
        let runner = runner_of(attempt);
        let Doing::Waits { place } = state.runners[runner].doing else { return };
        if token > place.version && state.time < place.sent + self.config.ttl {
            let from = if self.config.is_without(Rule::LastFromPlace) { state.time } else { place.sent };
            let last = (self.config.max_hold > 0).then_some(from + self.config.max_hold);
            self.believe(state, runner, token, place.sent, last);
        }
    }

    fn refresh_answered(&self, state: &mut State, message: &Message, sent: Time, answer: Answer) {
        let runner = runner_of(message.attempt);
        let Doing::Holds { mut held, phase } = state.runners[runner].doing else {
            unreachable!("a runner awaits a refresh only while it holds: {message:?}")
        };
        match answer {
            Answer::Refreshed { token } if token == held.token && state.time < held.deadline => {
                let later = held.deadline.max(sent + self.config.ttl);
                let last = held.last.filter(|_| !self.config.is_without(Rule::RefreshStopsAtLast));
                held.deadline = last.map_or(later, |last| later.min(last));
                if held.deadline < later {
                    self.reached.note([Rare::RefreshCut]);
                }
            }
            // The answer of a batch does not tell which lease has ended.
            _ if matches!(message.verb, Verb::Keep { .. }) => {}
            // A refusal may be stale: a linearizable read decides.
            _ => {
                let wall = state.wall();
                if state.record.as_ref().is_none_or(|record| record.live(held.token, wall).is_none()) {
                    held.deadline = held.deadline.min(state.time);
                }
            }
        }
        state.runners[runner].doing = Doing::Holds { held, phase };
    }

    /// An answer that wrote nothing is a hint, so a linearizable read follows it.
    fn completion_answered(&self, state: &mut State, runner: usize, token: Token, answer: Answer) {
        let believes_hint = self.config.is_without(Rule::CompletionWrites);
        if matches!(answer, Answer::Completed { changed } if changed || believes_hint) {
            Self::judge_completed(state, token);
            Self::end(state, runner, None);
            return;
        }
        let wall = state.wall();
        let record = self.read(state);
        if record.and_then(|record| record.done).is_some_and(|(_, by)| by == token) {
            self.reached.note([Rare::ResentCompletion]);
            Self::judge_completed(state, token);
            Self::end(state, runner, None);
        } else if record.is_none_or(|record| record.live(token, wall).is_none()) {
            // The lease is lost. Otherwise the runner resends the completion.
            Self::end(state, runner, None);
        }
    }
}
