//! What a client makes of an answer.

use crate::{
    config::Rule,
    outcomes::Rare,
    server::Server,
    state::{Answer, Doing, Held, Message, Place, State, Time, Value, Verb, client_of},
};

impl Server {
    pub(crate) fn receive(&self, state: &mut State, message: &Message, answer: Answer) {
        match message.verb {
            Verb::Acquire => self.acquire_answered(state, message, answer),
            Verb::Refresh { sent } | Verb::Keep { sent, .. } => self.refresh_answered(state, message, sent, answer),
            Verb::Downgrade { .. } => self.downgrade_answered(state, message, answer),
            Verb::Put { token, number, .. } => Self::put_answered(state, message, (token, number), answer),
            Verb::Release { .. } => unreachable!("no client awaits the answer to a release"),
        }
    }

    fn acquire_answered(&self, state: &mut State, message: &Message, answer: Answer) {
        let who = client_of(message.lease);
        let Doing::Asks { lease, sent, .. } = state.clients[who].doing else {
            unreachable!("a client awaits an acquire only while it asks: {message:?}")
        };
        match answer {
            Answer::Granted { token, grant, value } => {
                self.believe(state, lease, (token, grant), sent);
                if self.config.values > 0 && state.clients[who].lease() == Some(lease) {
                    state.reads(token, value);
                }
            }
            Answer::Queued { version } => {
                state.clients[who].doing = Doing::Waits { lease, place: Place { sent, version } };
            }
            _ => state.clients[who].doing = Doing::Nothing,
        }
    }

    fn put_answered(state: &mut State, message: &Message, value: Value, answer: Answer) {
        let Some(held) = state.held(client_of(message.lease)) else {
            unreachable!("a client awaits a write of a value only while it holds: {message:?}")
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
    fn downgrade_answered(&self, state: &mut State, message: &Message, answer: Answer) {
        if let Some(held) = state.held(client_of(message.lease))
            && self.config.without == Some(Rule::SharesFromSend)
        {
            held.shares |= answer == Answer::Downgraded;
        }
    }

    /// The first confirmation of several attempts counts. A later confirmation can only move the deadline on.
    fn refresh_answered(&self, state: &mut State, message: &Message, sent: Time, answer: Answer) {
        let who = client_of(message.lease);
        let Some(held) = state.held(who).copied() else {
            unreachable!("a client awaits a refresh only while it holds: {message:?}")
        };
        let last = Self::refreshes(state, who).fold(sent, Time::max);
        let holds = match answer {
            Answer::Refreshed { token } => token == held.token && state.time < held.deadline,
            // A joint refresh does not tell which lease is over: the client refreshes by itself from now on.
            _ if matches!(message.verb, Verb::Keep { .. }) => return,
            // A refusal may be stale: a linearizable read tells.
            _ => state.find(&held).is_some_and(|holds| holds.expires_at > state.wall()),
        };
        if !holds {
            Self::abandon(state, who);
            state.clients[who].doing = Doing::Nothing;
        } else if matches!(answer, Answer::Refreshed { .. }) {
            self.reached.note((last > sent).then_some(Rare::EarlierConfirmed));
            let from = if self.config.without == Some(Rule::OwnSend) { last } else { sent };
            let deadline = held.deadline.max(from + self.config.ttl(held.lease));
            state.clients[who].doing = Doing::Holds(Held { deadline, ..held });
            self.exclude(state, who);
        }
    }
}
