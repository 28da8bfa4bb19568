//! The clients of the model: the engine's rules for when a client believes that it holds the key, and the client's
//! steps.

use stateright::{Model, Property};

use crate::{
    config::Rule,
    outcomes::{Breach, Rare},
    server::Server,
    state::{
        Client, Command, Doing, Grant, Held, IDS, Lease, Message, Place, Stage, State, Time, Token, Verb, client_of,
    },
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
    /// A client asks for the key.
    Ask(usize),
    /// It asks again, with the same lease id: the reply was lost, or its place must be kept.
    AskAgain(usize),
    /// It asks no more, and takes back what it asked.
    GiveUp(usize),
    /// It dies, and another process begins in its place.
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
    /// The server begins with a request, and looks at its clocks.
    Parse(usize),
    /// The server begins with two acquires that wait, in this order, as one command.
    ParseTogether(usize, usize),
    /// It goes on, and looks at the record.
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

impl Server {
    fn send(state: &mut State, who: usize, lease: Lease, verb: Verb, awaited: bool) {
        state.clients[who].sends -= 1;
        state.messages.push(Message { lease, verb, awaited, stage: Stage::Sent });
    }

    fn acquire(state: &mut State, who: usize, lease: Lease, place: Option<Place>) {
        Self::abandon(state, who);
        state.clients[who].doing = Doing::Asks { lease, sent: state.time, place };
        Self::send(state, who, lease, Verb::Acquire, true);
    }

    /// It does nothing more in a fair world, in which each needs the key once.
    fn end(&self, state: &mut State, who: usize) {
        Self::abandon(state, who);
        state.clients[who].doing = if self.config.fair { Doing::Gone } else { Doing::Nothing };
    }

    /// The hybrid clock follows the true time, if it does.
    fn follow(&self, state: &mut State) {
        if self.config.ticks && state.time > state.hybrid.0 {
            state.hybrid = (state.time, 0);
        }
    }

    /// Nobody awaits what this client sent any more.
    pub(crate) fn abandon(state: &mut State, who: usize) {
        for message in state.messages.iter_mut().filter(|message| client_of(message.lease) == who) {
            message.awaited = false;
            // No deadline counts from it.
            if let Verb::Refresh { sent } | Verb::Keep { sent, .. } = &mut message.verb {
                *sent = 0;
            }
        }
    }

    /// When this client sent the attempts to refresh that it awaits.
    pub(crate) fn refreshes(state: &State, who: usize) -> impl Iterator<Item = Time> {
        let awaited = state.messages.iter().filter(move |message| message.awaited && client_of(message.lease) == who);
        awaited.filter_map(|message| match message.verb {
            Verb::Refresh { sent } | Verb::Keep { sent, .. } => Some(sent),
            _ => None,
        })
    }

    /// The server reads its clocks for a request.
    fn parse(state: &mut State, at: usize, command: Command) {
        state.messages[at].stage = Stage::Parsed { now: state.wall(), hlc: state.hybrid, command };
    }

    /// A client is told that it holds the key, by an answer to what it sent at some time.
    pub(crate) fn believe(&self, state: &mut State, lease: Lease, (token, grant): (Token, Grant), sent: Time) {
        let who = client_of(lease);
        let deadline = sent + self.config.ttl(lease);
        if state.time >= deadline && self.config.without != Some(Rule::LateReplies) {
            state.clients[who].doing = Doing::Nothing;
            return;
        }
        let shares = self.config.shares[who];
        state.clients[who].doing = Doing::Holds(Held { lease, token, deadline, shares, puts: 0, last: 0 });
        state.learns(grant, token);
        self.exclude(state, who);
    }

    /// Notes what is reached with a state.
    fn look(&self, state: &State) {
        let believe = state.clients.iter().filter(|client| client.believes(state.time)).count();
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

    pub(crate) fn exclude(&self, state: &mut State, who: usize) {
        let shares = state.clients[who].shares();
        let others = state.clients.iter().enumerate().filter(|(other, _)| *other != who);
        if self.config.excludes()
            && state.clients[who].believes(state.time)
            && others.into_iter().any(|(_, other)| other.believes(state.time) && !(shares && other.shares()))
        {
            state.breaks(Breach::TwoBelieve);
        }
    }
}

impl Model for Server {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |who: usize| Client { doing: Doing::Nothing, asked: 0, sends: self.config.sends[who] };
        let mut state = State {
            time: 0,
            skew: 0,
            jumps: self.config.jumps,
            failovers: self.config.failovers,
            hybrid: (0, 0),
            record: None,
            collected: false,
            deposed: None,
            clients: [client(0), client(1), client(2)],
            messages: Vec::new(),
            notices: Vec::new(),
            known: Vec::new(),
            grants: 0,
            confirmed: Vec::new(),
            reads: Vec::new(),
            breach: None,
        };
        if let Some(who) = self.config.holder {
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
        if config.deposes && state.deposed.is_none() && state.record.is_some() {
            actions.push(Action::Depose);
        }
        for who in 0..state.clients.len() {
            self.client_actions(state, who, actions);
        }
        for at in 0..state.messages.len() {
            self.message_actions(state, at, actions);
        }
        actions.extend((0..state.notices.len()).map(Action::Hear));
        if state.record.as_ref().is_some_and(|record| record.expires_at + config.retention <= state.wall()) {
            actions.push(Action::Collect);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Pass => {
                state.time += 1;
                self.follow(&mut state);
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
            Action::Ask(who) => {
                let lease = IDS * u8::try_from(who).unwrap() + state.clients[who].asked;
                state.clients[who].asked += 1;
                Self::acquire(&mut state, who, lease, None);
            }
            Action::AskAgain(who) => match state.clients[who].doing {
                Doing::Asks { lease, place, .. } => Self::acquire(&mut state, who, lease, place),
                Doing::Waits { lease, place } => Self::acquire(&mut state, who, lease, Some(place)),
                _ => return None,
            },
            Action::GiveUp(who) => {
                let lease = state.clients[who].lease()?;
                Self::abandon(&mut state, who);
                state.clients[who].doing = Doing::Nothing;
                Self::send(&mut state, who, lease, Verb::Release { token: None }, false);
            }
            Action::Crash(who) => self.end(&mut state, who),
            Action::Refresh(who) => {
                let (lease, sent) = (state.held(who)?.lease, state.time);
                Self::send(&mut state, who, lease, Verb::Refresh { sent }, true);
            }
            Action::RefreshJointly(who) => {
                let (Held { lease, token, .. }, sent) = (*state.held(who)?, state.time);
                Self::send(&mut state, who, lease, Verb::Keep { token, sent }, true);
            }
            Action::Release(who) => {
                let Held { lease, token, .. } = *state.held(who)?;
                self.end(&mut state, who);
                Self::send(&mut state, who, lease, Verb::Release { token: Some(token) }, false);
            }
            Action::Downgrade(who) => {
                let held = state.held(who)?;
                held.shares |= self.config.without != Some(Rule::SharesFromSend);
                let Held { lease, token, .. } = *held;
                Self::send(&mut state, who, lease, Verb::Downgrade { token }, true);
            }
            Action::Put(who) => {
                let held = state.held(who)?;
                held.puts += 1;
                let Held { lease, token, last: after, puts: number, .. } = *held;
                Self::send(&mut state, who, lease, Verb::Put { token, after, number }, true);
            }
            Action::Look(who) => {
                let held = *state.held(who)?;
                // The read counts only if the lease holds the key in it.
                state.find(&held)?;
                let value = state.record.as_ref()?.value.map_or((0, 0), |(_, _, value)| value);
                state.reads(held.token, value);
            }
            Action::Parse(at) => Self::parse(&mut state, at, Command::Alone),
            Action::ParseTogether(at, other) => {
                let (first, second) = (state.messages[at].lease, state.messages[other].lease);
                Self::parse(&mut state, at, Command::First { second });
                Self::parse(&mut state, other, Command::Second { first });
            }
            Action::Execute(at) => self.execute(&mut state, at),
            Action::ExecuteDeposed(at) => self.execute_deposed(&mut state, at),
            Action::Fail(at) => state.messages[at].stage = Stage::Written,
            Action::Read(at) => Self::read(&mut state, at),
            Action::Receive(at) => {
                let message = state.messages.remove(at);
                let Stage::Answered(answer) = message.stage else { return None };
                self.receive(&mut state, &message, answer);
            }
            Action::Hear(at) => {
                let notice = state.notices.remove(at);
                if let Doing::Waits { lease, place } = state.clients[client_of(notice.lease)].doing
                    && notice.token > place.version
                    && state.time < place.sent + self.config.ttl(lease)
                {
                    self.believe(&mut state, lease, (notice.token, notice.grant), place.sent);
                }
            }
            Action::Collect => {
                state.record = None;
                state.collected = true;
                state.wrote();
            }
        }
        self.look(&state);
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
