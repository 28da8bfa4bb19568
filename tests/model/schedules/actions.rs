//! The possible next steps: of the runners, of the operator, of the servers and of time.

use stateright::{Model, Property};

use super::{
    config::Rule,
    server::Server,
    state::{Doing, Message, Phase, Runner, Stage, State, Verb},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Time passes.
    Pass,
    /// A member becomes primary whose wall clock is ahead by the grace, or is right.
    FailOver,
    /// Another primary takes over, and the old one does not know.
    Depose,
    /// The operator revokes the key.
    Revoke,
    /// The operator resets the schedule to 0.
    Reset,
    /// Another process releases the lease of the holder.
    Dismiss,
    /// A runner acquires the key, if it finds its tick not completed.
    Acquire(usize),
    /// It resends an acquire or a completion, or a waiter renews its place.
    Resend(usize),
    /// It takes back its acquire.
    GiveUp(usize),
    /// It dies, or drops a lease that is lost.
    Crash(usize),
    Refresh(usize),
    RefreshInBatch(usize),
    Release(usize),
    /// It reads the last completed tick after the grant.
    Check(usize),
    /// It begins the work.
    Begin(usize),
    /// The work ends, and the runner sends the completion.
    Complete(usize),
    /// The server reads its clock for a request.
    Parse(usize),
    /// The server looks at the record. If it does not stall, it reads its clock now.
    Execute(usize),
    /// A deposed primary executes the request.
    ExecuteDeposed(usize),
    /// The answer arrives.
    Receive(usize),
    /// The notification of a grant arrives.
    Notify(usize),
}

impl Server {
    fn runner_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let (config, runner) = (&self.config, &state.runners[at]);
        let room = runner.sends > 0;
        match runner.doing {
            Doing::Nothing => {
                let done = state.record.as_ref().and_then(|record| record.done);
                let is_done =
                    config.reads && config.ticks[at] > 0 && done.is_some_and(|(tick, _)| tick >= config.ticks[at]);
                if room && runner.runs < config.runs[at] && !is_done {
                    actions.push(Action::Acquire(at));
                }
            }
            Doing::Acquires { .. } => {
                if room && config.loses {
                    actions.extend([Action::Resend(at), Action::GiveUp(at)]);
                }
            }
            Doing::Waits { place } => {
                if room && place.sent < state.time {
                    actions.push(Action::Resend(at));
                }
                if room && config.loses {
                    actions.push(Action::GiveUp(at));
                }
            }
            Doing::Holds { phase, .. } => self.holder_actions(state, at, phase, actions),
        }
        if config.crashes && runner.doing != Doing::Nothing {
            actions.push(Action::Crash(at));
        }
    }

    fn holder_actions(&self, state: &State, at: usize, phase: Phase, actions: &mut Vec<Action>) {
        let (config, runner) = (&self.config, &state.runners[at]);
        let (room, believes) = (runner.sends > 0, runner.believes(state.time).is_some());
        match phase {
            Phase::Granted if config.ticks[at] > 0 => actions.push(Action::Check(at)),
            Phase::Granted => {
                if room && believes {
                    actions.push(Action::Release(at));
                }
            }
            Phase::Checked => {
                if believes || config.is_without(Rule::BeginsWhileValid) {
                    actions.push(Action::Begin(at));
                }
            }
            // The work can end while the lease expires.
            Phase::Works => {
                if room {
                    actions.push(Action::Complete(at));
                }
            }
            Phase::Completes => {
                if room && (config.loses || !Self::awaits(state, at)) {
                    actions.push(Action::Resend(at));
                }
            }
        }
        if config.refreshes && room && believes && !Self::awaits(state, at) {
            actions.push(if config.batches { Action::RefreshInBatch(at) } else { Action::Refresh(at) });
        }
        if !believes && !config.crashes && phase != Phase::Completes {
            actions.push(Action::Crash(at));
        }
    }

    fn message_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let message = &state.messages[at];
        match message.stage {
            Stage::Sent => {
                actions.push(if self.config.stalls { Action::Parse(at) } else { Action::Execute(at) });
                if state.deposed.is_some() && message.is_awaited {
                    actions.push(Action::ExecuteDeposed(at));
                }
            }
            Stage::Parsed { .. } => actions.push(Action::Execute(at)),
            Stage::Answered(_) => actions.push(Action::Receive(at)),
        }
    }

    fn operate(state: &mut State, verb: Verb) {
        state.messages.push(Message { attempt: 0, verb, is_awaited: false, stage: Stage::Sent });
    }
}

impl Model for Server {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let runner = |at: usize| Runner { doing: Doing::Nothing, runs: 0, sends: config.sends[at] };
        vec![State {
            time: 0,
            ahead: 0,
            failovers: config.failovers,
            revocations: config.revocations,
            resets: config.resets,
            dismissals: config.dismissals,
            record: None,
            deposed: None,
            runners: [runner(0), runner(1), runner(2)],
            messages: Vec::new(),
            notices: Vec::new(),
            completed: 0,
            revoked: 0,
            released: 0,
            ticks: 0,
            held_until: 0,
            breach: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
        if state.time < self.config.until {
            actions.push(Action::Pass);
        }
        if state.failovers > 0 {
            actions.push(Action::FailOver);
        }
        if let Some(record) = &state.record {
            if self.config.deposes && state.deposed.is_none() {
                actions.push(Action::Depose);
            }
            if state.revocations > 0 && !record.holders.is_empty() {
                actions.push(Action::Revoke);
            }
            if state.resets > 0 && record.done.is_some_and(|(tick, _)| tick > 0) {
                actions.push(Action::Reset);
            }
            if state.dismissals > 0 && record.holders.iter().any(|entry| !entry.is_released) {
                actions.push(Action::Dismiss);
            }
        }
        (0..state.runners.len()).for_each(|at| self.runner_actions(state, at, actions));
        (0..state.messages.len()).for_each(|at| self.message_actions(state, at, actions));
        actions.extend((0..state.notices.len()).map(Action::Notify));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Pass => state.time += 1,
            Action::FailOver => {
                state.failovers -= 1;
                state.ahead = self.config.grace - state.ahead;
            }
            Action::Depose => state.deposed.clone_from(&state.record),
            Action::Revoke => {
                state.revocations -= 1;
                let upto = state.record.as_ref()?.version;
                Self::operate(&mut state, Verb::Revoke { upto });
            }
            Action::Reset => {
                state.resets -= 1;
                Self::operate(&mut state, Verb::Reset);
            }
            Action::Dismiss => {
                state.dismissals -= 1;
                let token = state.record.as_ref()?.holders.iter().find(|entry| !entry.is_released)?.token;
                Self::operate(&mut state, Verb::Dismiss { token });
            }
            Action::Acquire(at) => {
                state.runners[at].runs += 1;
                Self::acquire(&mut state, at, None);
            }
            Action::Resend(at) => match state.runners[at].doing {
                Doing::Acquires { place, .. } => Self::acquire(&mut state, at, place),
                Doing::Waits { place } => Self::acquire(&mut state, at, Some(place)),
                Doing::Holds { held, .. } => Self::complete(&mut state, at, held),
                Doing::Nothing => return None,
            },
            Action::GiveUp(at) => Self::end(&mut state, at, Some(Verb::Leave)),
            Action::Crash(at) => Self::end(&mut state, at, None),
            Action::Parse(at) => state.messages[at].stage = Stage::Parsed { now: state.wall() },
            Action::Execute(at) => {
                let now = match state.messages[at].stage {
                    Stage::Parsed { now } => now,
                    _ => state.wall(),
                };
                self.execute(&mut state, at, now);
            }
            Action::ExecuteDeposed(at) => self.execute_deposed(&mut state, at),
            Action::Receive(at) => {
                let message = state.messages.remove(at);
                let Stage::Answered(answer) = message.stage else { return None };
                self.receive(&mut state, &message, answer);
            }
            Action::Notify(at) => {
                let notice = state.notices.remove(at);
                self.notified(&mut state, notice.attempt, notice.token);
            }
            Action::Refresh(at) => {
                let sent = state.time;
                Self::send(&mut state, at, Verb::Refresh { sent }, true);
            }
            Action::RefreshInBatch(at) => {
                let keep = Verb::Keep { token: state.held(at)?.token, sent: state.time };
                Self::send(&mut state, at, keep, true);
            }
            Action::Release(at) => {
                let token = state.held(at)?.token;
                Self::end(&mut state, at, Some(Verb::Release { token }));
            }
            Action::Check(at) => {
                let held = state.held(at)?;
                self.check(&mut state, at, held);
            }
            Action::Begin(at) => {
                let held = state.held(at)?;
                self.judge_begin(&mut state, self.config.ticks[at], held.token);
                state.runners[at].doing = Doing::Holds { held, phase: Phase::Works };
            }
            Action::Complete(at) => {
                let held = state.held(at)?;
                Self::complete(&mut state, at, held);
            }
        }
        self.judge_beliefs(&mut state);
        Some(state.settled())
    }

    /// The checker looks each property up by its name for each state, so there is one for all promises.
    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("no promise is broken", |_, state: &State| state.breach.is_none())]
    }
}
