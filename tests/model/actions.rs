//! The steps of the clients, of the operator, of the servers and of time: which are possible, and what each does.

use stateright::{Model, Property};

use crate::{
    config::Rule,
    outcomes::Rare,
    server::Server,
    state::{Client, Command, Doing, Held, Message, Phase, Place, Stage, State, Time, Token, Verb, client_of},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Time passes.
    Pass,
    /// The server's wall clock is off by this from now on.
    Jump(Time),
    /// Another member becomes primary. Its wall clock is ahead by this, and the hybrid clock does not go back.
    FailOver(Time),
    /// Another primary takes over, and the old one does not know.
    Depose,
    /// The operator revokes the key.
    Revoke,
    /// The operator resets the schedule to 0.
    Reset,
    /// Another process releases the lease of the holder.
    Dismiss,
    /// A client asks for the key, if it finds its tick not completed.
    Ask(usize),
    /// It asks again, with the same lease id: the reply was lost, or its place must be kept. Or it resends a completion.
    AskAgain(usize),
    /// It asks no more, and takes back what it asked.
    GiveUp(usize),
    /// It dies, and another process begins in its place. Or it drops a lease that is lost.
    Crash(usize),
    /// A holder sends an attempt to refresh. It awaits this one beside its earlier attempts.
    Refresh(usize),
    /// A holder sends such an attempt as a joint refresh.
    RefreshJointly(usize),
    Release(usize),
    /// A holder lets sharers in.
    Downgrade(usize),
    /// A holder writes a value.
    Put(usize),
    /// A holder reads the value.
    Look(usize),
    /// A holder reads the last completed tick after the grant.
    Check(usize),
    /// It begins the work.
    Begin(usize),
    /// The work ends, and it sends the completion.
    Complete(usize),
    /// The server begins with a request, and looks at its clocks.
    Parse(usize),
    /// The server begins with two acquires that wait, in this order, as one command.
    ParseTogether(usize, usize),
    /// It looks at the record. If it does not stall, it looks at its clocks now.
    Execute(usize),
    /// A deposed primary answers.
    ExecuteDeposed(usize),
    /// A rule is taken out: the write of an acquire fails, and a read is to answer in its place.
    Fail(usize),
    /// A rule is taken out: the server reads the record and answers an acquire from what it reads.
    Read(usize),
    /// The answer arrives.
    Receive(usize),
    /// The change stream tells.
    Hear(usize),
    /// The TTL monitor deletes the record.
    Collect,
}

/// What is possible.
impl Server {
    /// Whether, in a fair world, time may pass: all that was sent is answered and all have asked.
    fn is_quiet(state: &State) -> bool {
        let asked = |client: &Client| match client.doing {
            Doing::Nothing => client.asked > 0,
            Doing::Asks { .. } => false,
            Doing::Waits { place } => place.sent == state.time,
            Doing::Holds(held) => state.time < held.deadline,
            Doing::Gone => true,
        };
        state.messages.is_empty() && state.clients.iter().all(asked)
    }

    fn client_actions(&self, state: &State, who: usize, actions: &mut Vec<Action>) {
        let (config, client) = (&self.config, &state.clients[who]);
        let room = state.messages.len() < config.in_flight && client.sends > 0;
        match client.doing {
            Doing::Nothing => {
                let done = state.record.as_ref().and_then(|record| record.done);
                let is_done =
                    config.reads && config.ticks[who] > 0 && done.is_some_and(|(tick, _)| tick >= config.ticks[who]);
                if room && client.asked < config.asks[who] && !is_done {
                    actions.push(Action::Ask(who));
                }
            }
            Doing::Asks { .. } => {
                if room && config.loses[who] {
                    actions.extend([Action::AskAgain(who), Action::GiveUp(who)]);
                }
            }
            Doing::Waits { place } => {
                if room && place.sent < state.time {
                    actions.push(Action::AskAgain(who));
                }
                if room && config.loses[who] {
                    actions.push(Action::GiveUp(who));
                }
            }
            Doing::Holds(held) => self.holder_actions(state, who, held, room, actions),
            Doing::Gone => {}
        }
        if config.crashes && !matches!(client.doing, Doing::Nothing | Doing::Gone) {
            actions.push(Action::Crash(who));
        }
    }

    fn holder_actions(&self, state: &State, who: usize, held: Held, room: bool, actions: &mut Vec<Action>) {
        let config = &self.config;
        let believes = state.clients[who].believes(state.time).is_some();
        let refreshes = room && believes && state.refreshes(who).count() < config.refreshes;
        let lost = config.loses[who] || state.awaited(who).next().is_none();
        let possible = [
            (refreshes && config.alone, Action::Refresh(who)),
            (refreshes && config.jointly, Action::RefreshJointly(who)),
            (room && believes && config.downgrades && !held.shares, Action::Downgrade(who)),
            (room && believes && held.puts < config.values && !held.shares, Action::Put(who)),
            (config.values > 0 && believes, Action::Look(who)),
            // Nor does it keep a lease that is over in mind for ever.
            (!believes && !config.crashes && held.phase != Phase::Completes, Action::Crash(who)),
            match held.phase {
                Phase::Granted if config.ticks[who] > 0 => (true, Action::Check(who)),
                Phase::Granted => (room && believes, Action::Release(who)),
                Phase::Checked => (believes || config.is_without(Rule::BeginsWhileValid), Action::Begin(who)),
                // The work can end while the lease expires.
                Phase::Works => (room, Action::Complete(who)),
                Phase::Completes => (room && lost, Action::AskAgain(who)),
            },
        ];
        actions.extend(possible.into_iter().filter_map(|(is_possible, action)| is_possible.then_some(action)));
    }

    /// What can happen to a request.
    fn message_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let message = &state.messages[at];
        let acquires = message.verb == Verb::Acquire;
        match message.stage {
            Stage::Sent => {
                actions.push(if self.config.stalls { Action::Parse(at) } else { Action::Execute(at) });
                if self.config.together {
                    let joins = |(_, other): &(usize, &Message)| {
                        let acquire = [other.verb, message.verb] == [Verb::Acquire; 2];
                        other.stage == Stage::Sent && other.lease != message.lease && acquire
                    };
                    let others = state.messages.iter().enumerate().filter(joins);
                    actions.extend(others.map(|(other, _)| Action::ParseTogether(at, other)));
                }
                if state.deposed.is_some() && message.awaited {
                    actions.push(Action::ExecuteDeposed(at));
                }
            }
            // The first request of the command executes it.
            Stage::Parsed { command: Command::Second { .. }, .. } => {}
            Stage::Parsed { .. } => {
                actions.push(Action::Execute(at));
                if self.config.is_without(Rule::FailureIsNoAnswer) && acquires {
                    actions.push(Action::Fail(at));
                }
            }
            Stage::Written => actions.push(Action::Read(at)),
            Stage::Answered(_) => actions.push(Action::Receive(at)),
        }
    }
}

/// What steps do.
impl Server {
    fn acquire(state: &mut State, who: usize, place: Option<Place>) {
        state.abandon(who);
        state.clients[who].doing = Doing::Asks { sent: state.time, place };
        state.send(who, Verb::Acquire, true);
    }

    /// It sends the completion, or resends it.
    fn complete(&self, state: &mut State, who: usize) -> Option<()> {
        state.abandon(who);
        let held = state.held(who)?;
        held.phase = Phase::Completes;
        let token = held.token;
        state.send(who, Verb::Complete { token, tick: self.config.ticks[who] }, true);
        Some(())
    }

    /// Ends what a client does, with a last request that it does not await. It does nothing more in a fair world, in which
    /// each needs the key once.
    pub(crate) fn end(&self, state: &mut State, who: usize, last: Option<Verb>) {
        state.abandon(who);
        if let Some(verb) = last {
            state.send(who, verb, false);
        }
        state.clients[who].doing = if self.config.fair { Doing::Gone } else { Doing::Nothing };
    }

    fn read_value(state: &mut State, who: usize) -> Option<()> {
        let token = state.held(who)?.token;
        // The read counts only if the lease holds the key in it.
        state.find(who, token)?;
        let value = state.record.as_ref()?.value.map_or((0, 0), |(_, _, value)| value);
        state.reads(token, value);
        Some(())
    }

    fn operate(state: &mut State, action: &Action) -> Option<()> {
        let record = state.record.as_ref()?;
        let verb = match action {
            Action::Revoke => {
                state.revocations -= 1;
                Verb::Revoke { upto: record.version }
            }
            Action::Reset => {
                state.resets -= 1;
                Verb::Reset
            }
            _ => {
                state.dismissals -= 1;
                Verb::Dismiss { token: record.holders.iter().find(|held| !held.is_released)?.token }
            }
        };
        state.messages.push(Message { lease: 0, verb, awaited: false, stage: Stage::Sent });
        Some(())
    }

    /// The server reads its clocks for a request.
    fn parse(state: &mut State, at: usize, command: Command) {
        state.messages[at].stage = Stage::Parsed { now: state.wall(), hlc: state.hybrid, command };
    }

    /// Notes what is reached with a state.
    fn look(&self, state: &State) {
        let believe = state.clients.iter().filter(|client| client.believes(state.time).is_some()).count();
        let is_again = state.collected && state.record.is_some() && state.known.len() > 1;
        let is_earlier = |(token, value): &(Token, (Token, u8))| value.0 > 0 && value.0 < *token;
        let is_reached = [
            (Rare::Believed, believe > 0),
            (Rare::Shared, believe > 1),
            (Rare::MadeAgain, is_again),
            (Rare::ValueRead, state.reads.iter().any(is_earlier)),
        ];
        self.reached.note(is_reached.into_iter().filter_map(|(rare, is_reached)| is_reached.then_some(rare)));
    }

    fn step(&self, state: &mut State, action: &Action) -> Option<()> {
        match *action {
            Action::Pass => {
                state.time += 1;
                // The hybrid clock follows the true time, if it does.
                if self.config.follows && state.time > state.hybrid.0 {
                    state.hybrid = (state.time, 0);
                }
            }
            Action::Jump(to) => {
                state.jumps -= 1;
                state.skew = to;
            }
            // A request that the old primary has parsed can still execute: a real failover allows less.
            Action::FailOver(ahead) => {
                state.failovers -= 1;
                state.skew = ahead;
            }
            Action::Depose => state.deposed.clone_from(&state.record),
            Action::Revoke | Action::Reset | Action::Dismiss => Self::operate(state, action)?,
            Action::Ask(who) => {
                state.clients[who].asked += 1;
                Self::acquire(state, who, None);
            }
            Action::AskAgain(who) => match state.clients[who].doing {
                Doing::Asks { place, .. } => Self::acquire(state, who, place),
                Doing::Waits { place } => Self::acquire(state, who, Some(place)),
                _ => self.complete(state, who)?,
            },
            Action::GiveUp(who) => self.end(state, who, Some(Verb::Release { token: None })),
            Action::Crash(who) => self.end(state, who, None),
            Action::Refresh(who) => state.send(who, Verb::Refresh { sent: state.time }, true),
            Action::RefreshJointly(who) => {
                let keep = Verb::Keep { token: state.held(who)?.token, sent: state.time };
                state.send(who, keep, true);
            }
            Action::Release(who) => {
                let token = Some(state.held(who)?.token);
                self.end(state, who, Some(Verb::Release { token }));
            }
            Action::Downgrade(who) => {
                let held = state.held(who)?;
                held.shares |= !self.config.is_without(Rule::SharesFromSend);
                let token = held.token;
                state.send(who, Verb::Downgrade { token }, true);
            }
            Action::Put(who) => {
                let held = state.held(who)?;
                held.puts += 1;
                let Held { token, last: after, puts: number, .. } = *held;
                state.send(who, Verb::Put { token, after, number }, true);
            }
            Action::Look(who) => Self::read_value(state, who)?,
            Action::Check(who) => self.check(state, who),
            Action::Begin(who) => {
                let held = state.held(who)?;
                held.phase = Phase::Works;
                let token = held.token;
                self.judge_begin(state, self.config.ticks[who], token);
            }
            Action::Complete(who) => self.complete(state, who)?,
            Action::Parse(at) => Self::parse(state, at, Command::Alone),
            Action::ParseTogether(at, other) => {
                let (first, second) = (state.messages[at].lease, state.messages[other].lease);
                Self::parse(state, at, Command::First { second });
                Self::parse(state, other, Command::Second { first });
            }
            Action::Execute(at) => self.execute(state, at),
            Action::ExecuteDeposed(at) => self.execute_deposed(state, at),
            Action::Fail(at) => state.messages[at].stage = Stage::Written,
            Action::Read(at) => Self::read(state, at),
            Action::Receive(at) => {
                let message = state.messages.remove(at);
                let Stage::Answered(answer) = message.stage else { return None };
                self.receive(state, &message, answer);
            }
            Action::Hear(at) => {
                let notice = state.notices.remove(at);
                self.hear(state, notice);
            }
            Action::Collect => {
                state.record = None;
                state.collected = true;
                state.wrote();
            }
        }
        Some(())
    }
}

impl Model for Server {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let mut state = State {
            jumps: config.jumps,
            failovers: config.failovers,
            revocations: config.revocations,
            resets: config.resets,
            dismissals: config.dismissals,
            clients: config.sends.map(|sends| Client { sends, ..Client::default() }),
            ..State::default()
        };
        if let Some(who) = config.holder {
            let mut steps = vec![Action::Ask(who)];
            while !steps.is_empty() {
                state = self.next_state(&state, steps.swap_remove(0)).unwrap();
                steps.clear();
                (0..state.messages.len()).for_each(|at| self.message_actions(&state, at, &mut steps));
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
        let config = &self.config;
        if state.time < config.until && (!config.fair || Self::is_quiet(state)) {
            actions.push(Action::Pass);
        }
        if state.jumps > 0 {
            actions.extend(config.jumps_to.iter().filter(|to| **to != state.skew).map(|to| Action::Jump(*to)));
        }
        if state.failovers > 0 {
            let others = config.members.iter().filter(|ahead| **ahead != state.skew);
            actions.extend(others.map(|ahead| Action::FailOver(*ahead)));
        }
        if let Some(record) = &state.record {
            let is_done = record.done.is_some_and(|(tick, _)| tick > 0);
            let possible = [
                (config.deposes && state.deposed.is_none(), Action::Depose),
                (state.revocations > 0 && !record.holders.is_empty(), Action::Revoke),
                (state.resets > 0 && is_done, Action::Reset),
                (state.dismissals > 0 && record.holders.iter().any(|held| !held.is_released), Action::Dismiss),
                (record.expires_at + config.retention <= state.wall(), Action::Collect),
            ];
            actions.extend(possible.into_iter().filter_map(|(is_possible, action)| is_possible.then_some(action)));
        }
        (0..state.clients.len()).for_each(|who| self.client_actions(state, who, actions));
        (0..state.messages.len()).for_each(|at| self.message_actions(state, at, actions));
        actions.extend((0..state.notices.len()).map(Action::Hear));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, &action)?;
        if self.config.schedules {
            self.judge_beliefs(&mut state);
            // A holder has no use for one. Without this, there are many more states.
            let clients = state.clients;
            state.notices.retain(|notice| !matches!(clients[client_of(notice.lease)].doing, Doing::Holds(_)));
        } else {
            self.look(&state);
        }
        Some(state.settled())
    }

    /// The checker looks each property up by its name for each state, so there is one for all promises.
    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::always("no promise is broken", |_, state: &State| state.breach.is_none())];
        if self.config.fair {
            properties.push(Property::eventually("every waiter that lives is granted the key", |_, state: &State| {
                state.clients.iter().all(|client| client.doing == Doing::Gone)
            }));
        }
        properties
    }
}
