//! The states of the model, in small numbers only, so that millions of states fit into memory.

use crate::outcomes::Breach;

/// A time in ticks: of the true clock, which the clients' boot clocks follow, or of the server's wall.
pub(crate) type Time = i16;
/// A reading of the hybrid clock: its second, which is a tick, and its ordinal.
pub(crate) type Hybrid = (Time, u16);
/// A fencing token. The model begins early enough in time for those to be small.
pub(crate) type Token = u32;
/// Which lease id: each client has [`IDS`] of its own.
pub(crate) type Lease = u8;
/// A value: the token of the lease that wrote it, and the number of the write under that token. (0, 0) is none.
pub(crate) type Value = (Token, u8);
/// Which grant, in the order in which the server made them: what tokens should tell.
pub(crate) type Grant = u8;

/// How many lease ids a client has.
pub(crate) const IDS: u8 = 2;

pub(crate) fn client_of(lease: Lease) -> usize {
    usize::from(lease / IDS)
}

/// Who holds the key, of the record's holder what the machine looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holds {
    pub(crate) lease: Lease,
    pub(crate) token: Token,
    pub(crate) expires_at: Time,
    /// Whether it shares the key.
    pub(crate) shares: bool,
    /// No part of the record: which grant this is.
    pub(crate) grant: Grant,
}

/// The record. What the machine only hands through is left out: who, since when, how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) version: Token,
    pub(crate) holders: Vec<Holds>,
    pub(crate) queue: Vec<(Lease, Time)>,
    pub(crate) expires_at: Time,
    /// The token and the id of the last write of the value, and the value.
    pub(crate) value: Option<(Token, u8, Value)>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Acquire,
    /// One attempt of several to refresh, with the time at which the client sends it.
    Refresh {
        sent: Time,
    },
    /// The part of a joint refresh that names this key: the token of the holder.
    Keep {
        token: Token,
        sent: Time,
    },
    Release {
        token: Option<Token>,
    },
    Downgrade {
        token: Token,
    },
    /// A write of the value with this number, which follows that with another.
    Put {
        token: Token,
        after: u8,
        number: u8,
    },
}

/// What the server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    Granted {
        token: Token,
        grant: Grant,
        value: Value,
    },
    Queued {
        version: Token,
    },
    /// Also the answer to a joint refresh that changed as many records as it names.
    Refreshed {
        token: Token,
    },
    Downgraded,
    Put,
    /// Another write under the token came before.
    Outdated {
        last: u8,
    },
    No,
}

/// How a request shares a command with another acquire of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Command {
    Alone,
    /// The first of two acquires: the lease of the second.
    First {
        second: Lease,
    },
    /// The second of two acquires: the lease of the first.
    Second {
        first: Lease,
    },
}

/// Where a request is.
///
/// Requests of every verb, alone or two in a command, go from `Sent` to `Parsed` and from there to `Answered`. Any
/// steps can come between. So each verb can stall behind a locked record, and execute long after its parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Under way to the server.
    Sent,
    /// The server has read its clocks for it, and has not looked at the record.
    Parsed { now: Time, hlc: Hybrid, command: Command },
    /// A rule is taken out: the write is over, and a later read of the record gives the answer.
    Written,
    /// The answer is under way.
    Answered(Answer),
}

/// A request. One that nobody awaits is a ghost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) lease: Lease,
    pub(crate) verb: Verb,
    pub(crate) awaited: bool,
    pub(crate) stage: Stage,
}

/// The change stream's event that a waiter was handed the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Notice {
    pub(crate) lease: Lease,
    pub(crate) token: Token,
    pub(crate) grant: Grant,
}

/// A place in the queue: when the request was sent that was answered so, and the version then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) sent: Time,
    pub(crate) version: Token,
}

/// What a client knows of its lease. It believes to hold the key until the deadline. Paused, it may act later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) token: Token,
    pub(crate) deadline: Time,
    /// Whether it believes that it shares the key.
    pub(crate) shares: bool,
    /// How many values it has begun to write, and the last write under its token that it knows of.
    pub(crate) puts: u8,
    pub(crate) last: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Nothing,
    /// It has asked and awaits the answer. With a place, it waits and asks to keep it.
    Asks {
        lease: Lease,
        sent: Time,
        place: Option<Place>,
    },
    Waits {
        lease: Lease,
        place: Place,
    },
    Holds(Held),
    /// It has nothing left to do, or has died.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) doing: Doing,
    /// How many lease ids it has used.
    pub(crate) asked: u8,
    /// How many requests it may still send.
    pub(crate) sends: u8,
}

impl Client {
    pub(crate) fn believes(&self, now: Time) -> bool {
        matches!(self.doing, Doing::Holds(held) if now < held.deadline)
    }

    /// Whether it believes that it may share the key.
    pub(crate) fn shares(&self) -> bool {
        matches!(self.doing, Doing::Holds(Held { shares: true, .. }))
    }

    /// The lease that it is about.
    pub(crate) fn lease(&self) -> Option<Lease> {
        match self.doing {
            Doing::Asks { lease, .. } | Doing::Waits { lease, .. } | Doing::Holds(Held { lease, .. }) => Some(lease),
            Doing::Nothing | Doing::Gone => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) time: Time,
    /// How far the server's wall clock is off.
    pub(crate) skew: Time,
    pub(crate) jumps: u8,
    /// How often another member may still become primary.
    pub(crate) failovers: u8,
    pub(crate) hybrid: Hybrid,
    pub(crate) record: Option<Stored>,
    /// Whether a record was collected.
    pub(crate) collected: bool,
    /// What a deposed primary still has, once there is one.
    pub(crate) deposed: Option<Stored>,
    pub(crate) clients: [Client; 3],
    pub(crate) messages: Vec<Message>,
    pub(crate) notices: Vec<Notice>,
    /// The grants that clients were told of in time, with their tokens.
    pub(crate) known: Vec<(Grant, Token)>,
    pub(crate) grants: Grant,
    /// The last value of each token that was confirmed to its holder, and the oldest that was read under each.
    pub(crate) confirmed: Vec<Value>,
    pub(crate) reads: Vec<(Token, Value)>,
    pub(crate) breach: Option<Breach>,
}

impl State {
    /// The server's wall clock.
    pub(crate) fn wall(&self) -> Time {
        self.time + self.skew
    }

    /// A write moves the hybrid clock on.
    pub(crate) fn wrote(&mut self) {
        self.hybrid = if self.wall() > self.hybrid.0 { (self.wall(), 1) } else { (self.hybrid.0, self.hybrid.1 + 1) };
    }

    pub(crate) fn breaks(&mut self, breach: Breach) {
        self.breach.get_or_insert(breach);
    }

    /// What a client knows of its lease.
    pub(crate) fn held(&mut self, who: usize) -> Option<&mut Held> {
        match &mut self.clients[who].doing {
            Doing::Holds(held) => Some(held),
            _ => None,
        }
    }

    /// A lease in the record.
    pub(crate) fn find(&self, held: &Held) -> Option<&Holds> {
        let mut holders = self.record.iter().flat_map(|record| &record.holders);
        holders.find(|holds| holds.lease == held.lease && holds.token == held.token)
    }

    /// A client was told of a grant. Tokens must be in the order of grants.
    pub(crate) fn learns(&mut self, grant: Grant, token: Token) {
        for (other, theirs) in self.known.clone() {
            if other != grant && theirs == token {
                self.breaks(Breach::TokenTwice);
            } else if (other < grant && theirs > token) || (other > grant && theirs < token) {
                self.breaks(Breach::TokenOutOfOrder);
            }
        }
        if !self.known.contains(&(grant, token)) {
            self.known.push((grant, token));
            self.known.sort_unstable();
        }
    }

    /// A holder has read a value.
    pub(crate) fn reads(&mut self, token: Token, value: Value) {
        if self.confirmed.iter().any(|confirmed| confirmed.0 <= token && *confirmed > value) {
            self.breaks(Breach::OlderValue);
        }
        if !self.reads.iter().any(|(other, _)| *other == token) {
            self.reads.push((token, value));
            self.reads.sort_unstable();
        }
    }

    /// A write of a value is confirmed to the holder.
    pub(crate) fn confirms(&mut self, value: Value) {
        if self.reads.iter().any(|(token, read)| *token > value.0 && *read < value) {
            self.breaks(Breach::OlderValue);
        }
        let last =
            self.confirmed.iter().filter(|confirmed| confirmed.0 == value.0).fold(value, |last, one| last.max(*one));
        self.confirmed.retain(|confirmed| confirmed.0 != value.0);
        self.confirmed.push(last);
        self.confirmed.sort_unstable();
    }

    /// Makes states that differ in nothing that matters one.
    pub(crate) fn settled(mut self) -> Self {
        let clients = self.clients;
        let is_over = |stage| matches!(stage, Stage::Written | Stage::Answered(_));
        self.messages.retain(|message| message.awaited || !is_over(message.stage));
        self.messages.sort_unstable();
        self.notices.retain(|notice| clients[client_of(notice.lease)].lease() == Some(notice.lease));
        self.notices.sort_unstable();
        self
    }
}
