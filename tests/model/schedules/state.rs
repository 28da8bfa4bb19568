//! The states of the model, in small numbers only, so that millions of states fit into memory.

use crate::{outcomes::Breach, state::Time};

/// A fencing token, which is the number of its grant.
pub(crate) type Token = u8;
/// A set of tokens or of ticks.
pub(crate) type Set = u16;
/// An acquire of a runner, with its retries. Each runner has [`RUNS`] of its own.
pub(crate) type Attempt = u8;

/// How many attempts a runner has.
pub(crate) const RUNS: u8 = 4;

pub(crate) fn runner_of(attempt: Attempt) -> usize {
    usize::from(attempt / RUNS)
}

/// The set of one number.
pub(crate) fn only(number: u8) -> Set {
    1 << number
}

/// An entry of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) attempt: Attempt,
    pub(crate) token: Token,
    pub(crate) since: Time,
    pub(crate) expires_at: Time,
    pub(crate) not_after: Option<Time>,
    /// Whether the lease was released, and its entry keeps the key unavailable.
    pub(crate) is_released: bool,
}

/// The record, without the fields that no transition of this model reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) version: Token,
    pub(crate) holders: Vec<Entry>,
    /// The waiters, with the times at which they leave the queue.
    pub(crate) queue: Vec<(Attempt, Time)>,
    /// The tokens in the history of revocations.
    pub(crate) history: Set,
    /// The last completed tick, and the token that completed it.
    pub(crate) done: Option<(u8, Token)>,
}

impl Stored {
    /// The lease with this token, unless it has expired or was released.
    pub(crate) fn live(&self, token: Token, now: Time) -> Option<&Entry> {
        self.holders.iter().find(|held| held.token == token && !held.is_released && held.expires_at > now)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Acquire,
    /// A refresh, with the time at which the runner sends it.
    Refresh {
        sent: Time,
    },
    /// The part of a batch refresh that names this key.
    Keep {
        token: Token,
        sent: Time,
    },
    Release {
        token: Token,
    },
    Leave,
    Complete {
        token: Token,
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

/// An answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// `left` is the time from the server's clock to `not_after`.
    Granted {
        token: Token,
        left: Option<Time>,
    },
    Queued {
        version: Token,
    },
    Refreshed {
        token: Token,
    },
    Completed {
        changed: bool,
    },
    No,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    Sent,
    /// The server has read its clock for it, and has not looked at the record.
    Parsed {
        now: Time,
    },
    Answered(Answer),
}

/// A request that is sent. If no runner awaits it, it is a ghost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    /// The attempt that sends it. 0 if the operator sends it.
    pub(crate) attempt: Attempt,
    pub(crate) verb: Verb,
    pub(crate) is_awaited: bool,
    pub(crate) stage: Stage,
}

/// The notification that a waiter was granted the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Notice {
    pub(crate) attempt: Attempt,
    pub(crate) token: Token,
}

/// A place in the queue: when the request was sent that was answered "queued", and the version in that answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) sent: Time,
    pub(crate) version: Token,
}

/// What a runner knows of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) deadline: Time,
    /// No refresh extends the deadline past this.
    pub(crate) last: Option<Time>,
}

/// How far a runner with a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Granted,
    /// It has found that its tick is not completed.
    Checked,
    Works,
    /// The work has ended. It sends the completion until it knows the outcome.
    Completes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Nothing,
    /// It awaits the answer to an acquire. With a place, it waits and renews the place.
    Acquires {
        sent: Time,
        place: Option<Place>,
    },
    Waits {
        place: Place,
    },
    Holds {
        held: Held,
        phase: Phase,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runner {
    pub(crate) doing: Doing,
    /// How many attempts it has begun.
    pub(crate) runs: u8,
    /// How many requests it may still send.
    pub(crate) sends: u8,
}

impl Runner {
    /// The token of the lease that it believes to hold.
    pub(crate) fn believes(&self, now: Time) -> Option<Held> {
        match self.doing {
            Doing::Holds { held, phase } if now < held.deadline && phase != Phase::Completes => Some(held),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) time: Time,
    /// How far the primary's wall clock is ahead.
    pub(crate) ahead: Time,
    /// How often each may still happen.
    pub(crate) failovers: u8,
    pub(crate) revocations: u8,
    pub(crate) resets: u8,
    pub(crate) dismissals: u8,
    pub(crate) record: Option<Stored>,
    /// The record of a deposed primary, once there is one. It has writes that are never confirmed.
    pub(crate) deposed: Option<Stored>,
    pub(crate) runners: [Runner; 3],
    pub(crate) messages: Vec<Message>,
    pub(crate) notices: Vec<Notice>,
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
    /// The primary's wall clock.
    pub(crate) fn wall(&self) -> Time {
        self.time + self.ahead
    }

    pub(crate) fn breaks(&mut self, breach: Breach) {
        self.breach.get_or_insert(breach);
    }

    /// The present attempt of a runner.
    pub(crate) fn attempt(&self, runner: usize) -> Attempt {
        RUNS * u8::try_from(runner).unwrap() + self.runners[runner].runs - 1
    }

    /// What a runner knows of its lease.
    pub(crate) fn held(&self, runner: usize) -> Option<Held> {
        match self.runners[runner].doing {
            Doing::Holds { held, .. } => Some(held),
            _ => None,
        }
    }

    /// Makes states that differ in nothing that matters equal.
    pub(crate) fn settled(mut self) -> Self {
        self.messages.retain(|message| message.is_awaited || !matches!(message.stage, Stage::Answered(_)));
        self.messages.sort_unstable();
        let runners = self.runners;
        self.notices.retain(|notice| {
            let runner = runners[runner_of(notice.attempt)];
            let is_present = runner.runs == notice.attempt % RUNS + 1;
            is_present && matches!(runner.doing, Doing::Acquires { .. } | Doing::Waits { .. })
        });
        self.notices.sort_unstable();
        self
    }
}
