//! The possible next actions: steps of the clients, and deliveries or losses of messages.

use crate::{client::Action, config::Rule, server::Server, state::*};

impl Server {
    /// Whether, in a fair world, time may pass: all that was sent is answered and all have asked.
    pub(crate) fn is_quiet(state: &State) -> bool {
        let asked = |client: &Client| match client.doing {
            Doing::Nothing => client.asked > 0,
            Doing::Asks { .. } => false,
            Doing::Waits { place, .. } => place.sent == state.time,
            Doing::Holds(held) => state.time < held.deadline,
            Doing::Gone => true,
        };
        state.messages.is_empty() && state.clients.iter().all(asked)
    }

    pub(crate) fn client_actions(&self, state: &State, who: usize, actions: &mut Vec<Action>) {
        let config = &self.config;
        let client = &state.clients[who];
        let room = state.messages.len() < config.in_flight && client.sends > 0;
        match client.doing {
            Doing::Nothing => {
                if room && client.asked < config.asks[who] {
                    actions.push(Action::Ask(who));
                }
            }
            Doing::Asks { .. } => {
                if room && config.loses[who] {
                    actions.extend([Action::AskAgain(who), Action::GiveUp(who)]);
                }
            }
            Doing::Waits { place, .. } => {
                if room && place.sent < state.time {
                    actions.push(Action::AskAgain(who));
                }
                if room && config.loses[who] {
                    actions.push(Action::GiveUp(who));
                }
            }
            Doing::Holds(held) => {
                let believes = client.believes(state.time);
                if room && believes && Self::refreshes(state, who).count() < config.refreshes {
                    actions.push(Action::Refresh(who));
                    if config.jointly {
                        actions.push(Action::RefreshJointly(who));
                    }
                }
                if room && believes {
                    actions.push(Action::Release(who));
                }
                if room && believes && config.downgrades && !held.shares {
                    actions.push(Action::Downgrade(who));
                }
                if room && believes && held.puts < config.values && !held.shares {
                    actions.push(Action::Put(who));
                }
                if config.values > 0 && believes {
                    actions.push(Action::Look(who));
                }
                // Nor does it keep a lease that is over in mind for ever.
                if !believes && !config.crashes {
                    actions.push(Action::Crash(who));
                }
            }
            Doing::Gone => {}
        }
        if config.crashes && !matches!(client.doing, Doing::Nothing | Doing::Gone) {
            actions.push(Action::Crash(who));
        }
    }

    /// What can happen to a request.
    pub(crate) fn message_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let message = &state.messages[at];
        let acquires = message.verb == Verb::Acquire;
        match message.stage {
            Stage::Sent => {
                actions.push(Action::Parse(at));
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
                if self.config.without == Some(Rule::FailureIsNoAnswer) && acquires {
                    actions.push(Action::Fail(at));
                }
            }
            Stage::Written => actions.push(Action::Read(at)),
            Stage::Answered(_) => actions.push(Action::Receive(at)),
        }
    }
}
