//! The states of the model, in small numbers only, so that millions of states fit into memory.

use crate::outcomes::Breach;

/// A time in ticks: of the true clock, which the clients' boot clocks follow, or of the server's wall.
pub(crate) type Time = i16;
/// A reading of the hybrid clock: its second, which is a tick, and its ordinal.
pub(crate) type Hybrid = (Time, u16);
/// A fencing token. The model begins early enough in time for those to be small.
pub(crate) type Token = u32;
/// A set of tokens or of ticks of schedules.
pub(crate) type Set = u16;
/// Which lease id: each client has [`IDS`] of its own.
pub(crate) type Lease = u8;
/// A value: the token of the lease that wrote it, and the number of the write under that token. (0, 0) is none.
pub(crate) type Value = (Token, u8);
/// Which grant, in the order in which the server made them: what tokens should tell.
pub(crate) type Grant = u8;

/// How many lease ids a client has.
pub(crate) const IDS: u8 = 4;

pub(crate) fn client_of(lease: Lease) -> usize {
    usize::from(lease / IDS)
}

/// The set of one number.
pub(crate) fn only(number: impl Into<u32>) -> Set {
    1 << number.into()
}

/// Who holds the key, of the record's holder what the machine looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holds {
    pub(crate) lease: Lease,
    pub(crate) token: Token,
    /// Of schedules only.
    pub(crate) since: Time,
    pub(crate) expires_at: Time,
    pub(crate) not_after: Option<Time>,
    /// Whether the lease was released, and its entry keeps the key unavailable.
    pub(crate) is_released: bool,
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
    /// The waiters, with the times at which they leave the queue.
    pub(crate) queue: Vec<(Lease, Time)>,
    /// Not of schedules, whose record is never deleted.
    pub(crate) expires_at: Time,
    /// The token and the id of the last write of the value, and the value.
    pub(crate) value: Option<(Token, u8, Value)>,
    /// The tokens in the history of revocations.
    pub(crate) history: Set,
    /// The last completed tick, and the token that completed it.
    pub(crate) done: Option<(u8, Token)>,
}

impl Stored {
    /// The lease with this token, unless it has expired or was released.
    pub(crate) fn live(&self, token: Token, now: Time) -> Option<&Holds> {
        self.holders.iter().find(|held| held.token == token && !held.is_released && held.expires_at > now)
    }
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
    /// Without a token it takes back an acquire.
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
    Complete {
        token: Token,
        tick: u8,
    },
    /// The operator takes the key from its holder.
    Revoke {
        upto: Token,
    },
    /// The operator resets the schedule to 0.
    Reset,
    /// Another process releases the lease with this token, in a batch.
    Dismiss {
        token: Token,
    },
}

/// What the server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// `left` is the time from the server's clock to the end of the maximum hold.
    Granted {
        token: Token,
        grant: Grant,
        value: Value,
        left: Option<Time>,
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
    Completed {
        changed: bool,
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

/// A request. One that nobody awaits is a ghost, or of the operator, who has the lease id 0.
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

/// How far a client with a lease is that runs a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Granted,
    /// It has found that its tick is not completed.
    Checked,
    Works,
    /// The work has ended. It sends the completion until it knows the outcome.
    Completes,
}

/// What a client knows of its lease. It believes to hold the key until the deadline. Paused, it may act later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) deadline: Time,
    /// No refresh extends the deadline past this.
    pub(crate) limit: Option<Time>,
    pub(crate) phase: Phase,
    /// Whether it believes that it shares the key.
    pub(crate) shares: bool,
    /// How many values it has begun to write, and the last write under its token that it knows of.
    pub(crate) puts: u8,
    pub(crate) last: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    #[default]
    Nothing,
    /// It has asked and awaits the answer. With a place, it waits and asks to keep it.
    Asks {
        sent: Time,
        place: Option<Place>,
    },
    Waits {
        place: Place,
    },
    Holds(Held),
    /// It has nothing left to do, or has died.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) doing: Doing,
    /// How many lease ids it has used.
    pub(crate) asked: u8,
    /// How many requests it may still send.
    pub(crate) sends: u8,
}

impl Client {
    /// The lease that it believes to hold.
    pub(crate) fn believes(&self, now: Time) -> Option<Held> {
        match self.doing {
            Doing::Holds(held) if now < held.deadline && held.phase != Phase::Completes => Some(held),
            _ => None,
        }
    }

    /// Whether it believes that it may share the key.
    pub(crate) fn shares(&self) -> bool {
        matches!(self.doing, Doing::Holds(Held { shares: true, .. }))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) time: Time,
    /// How far the server's wall clock is off.
    pub(crate) skew: Time,
    pub(crate) jumps: u8,
    /// How often another member may still become primary.
    pub(crate) failovers: u8,
    /// How often the operator may still do each.
    pub(crate) revocations: u8,
    pub(crate) resets: u8,
    pub(crate) dismissals: u8,
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
    /// The tokens of the leases that have completed a tick, that were revoked, and that were released.
    pub(crate) completed: Set,
    pub(crate) revoked: Set,
    pub(crate) released: Set,
    /// The ticks that were completed, less those that a reset allows again.
    pub(crate) ticks: Set,
    /// When the minimum hold of the lease ends that was released last.
    pub(crate) held_until: Time,
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

    /// The present lease id of a client, which has asked.
    pub(crate) fn lease(&self, who: usize) -> Lease {
        IDS * u8::try_from(who).unwrap() + self.clients[who].asked - 1
    }

    /// The lease of a client with this token, unless it was released.
    pub(crate) fn find(&self, who: usize, token: Token) -> Option<&Holds> {
        let mut holders = self.record.iter().flat_map(|record| &record.holders);
        holders.find(|holds| holds.lease == self.lease(who) && holds.token == token && !holds.is_released)
    }

    pub(crate) fn send(&mut self, who: usize, verb: Verb, awaited: bool) {
        self.clients[who].sends -= 1;
        self.messages.push(Message { lease: self.lease(who), verb, awaited, stage: Stage::Sent });
    }

    /// Nobody awaits what this client sent any more.
    pub(crate) fn abandon(&mut self, who: usize) {
        for message in self.messages.iter_mut().filter(|message| client_of(message.lease) == who) {
            message.awaited = false;
            // No deadline counts from it.
            if let Verb::Refresh { sent } | Verb::Keep { sent, .. } = &mut message.verb {
                *sent = 0;
            }
        }
    }

    /// What this client sent and awaits.
    pub(crate) fn awaited(&self, who: usize) -> impl Iterator<Item = Verb> {
        let awaited = self.messages.iter().filter(move |message| message.awaited && client_of(message.lease) == who);
        awaited.map(|message| message.verb)
    }

    /// When this client sent the attempts to refresh that it awaits.
    pub(crate) fn refreshes(&self, who: usize) -> impl Iterator<Item = Time> {
        self.awaited(who).filter_map(|verb| match verb {
            Verb::Refresh { sent } | Verb::Keep { sent, .. } => Some(sent),
            _ => None,
        })
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
        let is_over = |stage| matches!(stage, Stage::Written | Stage::Answered(_));
        self.messages.retain(|message| message.awaited || !is_over(message.stage));
        self.messages.sort_unstable();
        let mut notices = std::mem::take(&mut self.notices);
        notices.retain(|notice| {
            let who = client_of(notice.lease);
            !matches!(self.clients[who].doing, Doing::Nothing | Doing::Gone) && self.lease(who) == notice.lease
        });
        notices.sort_unstable();
        self.notices = notices;
        self
    }
}
