//! The events of a history, one line of JSON each. Times are microseconds of `CLOCK_BOOTTIME`, which all processes of a
//! machine share.

use mongoseal::store::Clock;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use crate::{faults::Kind, sabotage::Sabotage};

/// Microseconds on the clock of the machine.
pub(crate) type Micros = u64;

pub(crate) fn now() -> Micros {
    micros(Clock::Boot.now().since_origin())
}

pub(crate) fn micros(duration: std::time::Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The name of a fault or a sabotage, as in a history and on the command line.
pub(crate) fn name(named: impl Serialize) -> String {
    serde_json::to_value(named).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// What has this name. An error lists the names that there are.
pub(crate) fn named<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_value(Json::from(name)).map_err(|error| error.to_string())
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    /// What run it is.
    Run(Run),
    /// A worker process has connected and begins.
    Ready { worker: u32, slot: u32 },
    /// An acquire has ended.
    Acquire(Acquire),
    /// A holder looked whether it holds, and wrote to the fenced resource.
    Write(Write),
    /// The store confirmed a refresh, in the background or not.
    Refreshed { worker: u32, lease: u64, key: String, token: u64, begin: Micros, end: Micros },
    /// A holder begins to end its lease.
    Ends { worker: u32, lease: u64, key: String, token: u64, at: Micros, how: String },
    /// A holder found its lease lost.
    Lost { worker: u32, lease: u64, key: String, token: u64, at: Micros, cause: String, newer: Option<u64> },
    /// A call on a lease: refresh, verify, release or transfer.
    Call(Call),
    /// A record was read.
    Inspect(Inspect),
    /// A document was written.
    Entry(Entry),
    /// Told when it begins, and again when it has ended.
    Revoke(Revoke),
    /// The work of a tick begins. Its lease was valid then.
    Works { worker: u32, key: String, tick: u64, token: u64, at: Micros },
    /// A call for a tick has ended.
    Ticked(Ticked),
    /// The history of a schedule: the tick and the token of each run.
    Runs { key: String, runs: Vec<(u64, u64)>, at: Micros },
    /// The value of a key was read or written.
    Value(Value),
    /// Work has ended.
    Worked(Worked),
    /// A watch reported a grant. The events of a watch are in the order of the history.
    Watched { worker: u32, watch: String, key: String, token: u64, at: Micros },
    /// A watch reported that events may be missing.
    Missed { worker: u32, watch: String, at: Micros },
    /// A process did not run.
    Stall { worker: u32, from: Micros, to: Micros },
    /// A worker's write of a document beside all leases was slow, over a network in which nothing is broken for
    /// workers: so the machine was, or the servers.
    Slow { worker: u32, from: Micros, to: Micros },
    /// So many change streams of the process in a slot were open.
    Streams { slot: u32, count: u64, at: Micros },
    /// So many connections of the process in a slot were open.
    Connections { slot: u32, count: u64, at: Micros },
    /// A worker opened a handle on a collection that must be refused: `refused`, `unavailable`, `opened`, or another error.
    Opened { worker: u32, begin: Micros, end: Micros, outcome: String },
    /// A handle of a worker was shut down.
    Shutdown { worker: u32, begin: Micros, end: Micros },
    /// A worker that was told to end did not.
    Stuck { worker: u32, at: Micros },
    /// A fault is over.
    Fault(Fault),
    /// All faults are healed.
    Healed { at: Micros, term: i64 },
    /// How often the set had elected when the run began.
    Elected { term: i64 },
    /// What the log of the servers shows: how many writes were read and how many were not, and what breaks a promise or is
    /// another token than the workers were granted.
    Log { read: u64, unread: u64, broken: Vec<String> },
}

/// The run that this is the history of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) only: Vec<Kind>,
    pub(crate) retention: Micros,
    pub(crate) begin: Micros,
    /// By how much the wall clocks of the members differ.
    #[serde(default)]
    pub(crate) spread: Micros,
    /// Whether the servers are of Redis.
    #[serde(default)]
    pub(crate) redis: bool,
}

/// Asking for a key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Acquire {
    pub(crate) worker: u32,
    /// Unique within the worker.
    pub(crate) lease: u64,
    pub(crate) key: String,
    /// 0 is exclusive.
    #[serde(default)]
    pub(crate) limit: u32,
    pub(crate) ttl: Micros,
    #[serde(default)]
    pub(crate) grace: Micros,
    pub(crate) group: Option<String>,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// How long it may take.
    pub(crate) within: Micros,
    pub(crate) outcome: Outcome,
    /// How many requests were sent.
    #[serde(default)]
    pub(crate) attempts: u32,
    /// How many of those had no answer that says whether they were applied.
    #[serde(default)]
    pub(crate) doubts: u32,
    pub(crate) queued: Option<Queued>,
    /// Whether the record was seen to be gone just before.
    #[serde(default)]
    pub(crate) anew: bool,
    /// Whether it is the check at the end that the key can be had.
    #[serde(default)]
    pub(crate) probe: bool,
    /// Whether the handle refreshes the lease in the background.
    #[serde(default)]
    pub(crate) refreshes: bool,
    /// When the transfer began by which the lease was granted.
    pub(crate) since: Option<Micros>,
    /// The minimum hold of the lease.
    #[serde(default)]
    pub(crate) least: Micros,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Granted {
        token: u64,
    },
    #[default]
    Held,
    Full,
    Unavailable {
        message: String,
    },
    Other {
        message: String,
    },
}

/// That an acquire was queued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Queued {
    /// When the first request was sent that was so answered, and when the answer came.
    pub(crate) first: (Micros, Micros),
    pub(crate) position: usize,
    /// When the last request was sent that was so answered.
    pub(crate) sent: Micros,
    /// Whether it never can have lost its place.
    pub(crate) kept: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    pub(crate) worker: u32,
    pub(crate) lease: u64,
    pub(crate) key: String,
    pub(crate) token: u64,
    /// When, just before it was looked.
    pub(crate) at: Micros,
    /// Whether the holder believed to hold the key. What is valid then was valid at `at`, too.
    pub(crate) valid: bool,
    /// What the gate of the resource said; the resource of a shared key has none.
    pub(crate) accepted: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) worker: u32,
    pub(crate) lease: u64,
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) verb: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    pub(crate) within: Micros,
    /// `ok`, `ours`, `unknown`, `gone`, `lost`, `unavailable`, or an error that nobody expects.
    pub(crate) outcome: String,
}

/// A write of the document of a key in MongoDB, at the fence of its collection or in a transaction. Each
/// counts one more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) worker: u32,
    pub(crate) lease: u64,
    pub(crate) key: String,
    /// Who writes; nobody, where it is only looked at, when all is over.
    pub(crate) token: Option<u64>,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    pub(crate) within: Micros,
    /// `ok`, `fenced`, `lost`, `unavailable`, or an error that nobody expects.
    pub(crate) outcome: String,
    /// What was there before: how many writes, and the token of the last, 0 where there was none.
    pub(crate) before: Option<(i64, u64)>,
}

/// A key taken from its holders.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Revoke {
    pub(crate) worker: u32,
    pub(crate) key: String,
    pub(crate) begin: Micros,
    /// When it ended, or is to have ended.
    pub(crate) end: Micros,
    /// `begun`, `ok`, `unavailable`, or an error that nobody expects.
    pub(crate) outcome: String,
    /// What was taken.
    pub(crate) tokens: Vec<u64>,
}

/// A call that runs the work of a tick, unless the tick is completed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ticked {
    pub(crate) worker: u32,
    pub(crate) key: String,
    pub(crate) tick: u64,
    /// The token under which the work ran, if it ran.
    pub(crate) token: Option<u64>,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// `ran`, `done`, `busy`, `lost`, `unavailable`, or the text of an unexpected answer.
    pub(crate) outcome: String,
}

/// A call that reads or writes the value of a key under a lease. A value is the token of the lease that wrote it, and the
/// number of the write under that token: (0, 0) is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) worker: u32,
    pub(crate) key: String,
    /// The token of the lease.
    pub(crate) token: u64,
    /// `read`, `put` or `release-with`.
    pub(crate) verb: String,
    pub(crate) content: (u64, u64),
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// `ok`, `lost`, `unavailable`, or the text of an unexpected answer.
    pub(crate) outcome: String,
}

/// Work under a lease has ended, in the shutdown of its handle or before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Worked {
    pub(crate) worker: u32,
    pub(crate) key: String,
    pub(crate) token: u64,
    /// When the acquire of its lease began, and how long that lease lasts without a refresh.
    pub(crate) since: Micros,
    pub(crate) ttl: Micros,
    pub(crate) end: Micros,
}

/// A linearizable read of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Inspect {
    pub(crate) worker: u32,
    pub(crate) key: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    pub(crate) within: Micros,
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Seen {
    Nothing,
    Record {
        version: u64,
        /// The tokens of those whose time is not over.
        holders: Vec<u64>,
        /// Which acquires they came of, by worker and lease.
        #[serde(default)]
        asked: Vec<(u32, u64)>,
    },
    /// No leader, whether there is a record or not.
    Nobody,
    Unavailable,
    Other {
        message: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) what: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// The slot of the only worker that it concerns, if it concerns one.
    #[serde(default)]
    pub(crate) slot: Option<u32>,
    /// The key whose record is locked.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// The keys whose records are locked together.
    #[serde(default)]
    pub(crate) keys: Vec<String>,
    /// The constant delay of replies.
    #[serde(default)]
    pub(crate) by: Option<Micros>,
    /// If the primary changed: up to which difference of the clocks the tokens of all keys still grow.
    #[serde(default)]
    pub(crate) bound: Option<Micros>,
}

impl Fault {
    /// The keys whose records are locked.
    pub(crate) fn locked(&self) -> impl Iterator<Item = &str> {
        self.key.iter().chain(&self.keys).map(String::as_str)
    }

    /// Whether it locks records.
    pub(crate) fn is_lock(&self) -> bool {
        self.locked().next().is_some()
    }
}
