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
    /// A holder looked whether it holds, just after `at`. What is valid then was valid at `at`, too.
    Looked { worker: u32, lease: u64, at: Micros, valid: bool },
    /// The store confirmed a refresh, in the background or not.
    Refreshed { worker: u32, lease: u64, begin: Micros, end: Micros },
    /// A holder begins to end its lease.
    Ends { worker: u32, lease: u64, at: Micros, how: String },
    /// A holder found its lease lost.
    Lost { worker: u32, lease: u64, at: Micros, cause: String, newer: Option<u64> },
    /// A call has ended.
    Call(Call),
    /// A record was read.
    Inspect(Inspect),
    /// The work of a tick begins. Its lease was valid then.
    Works { worker: u32, key: String, tick: u64, token: u64, at: Micros },
    /// Work has ended.
    Worked(Worked),
    /// A watch reported a grant. The events of a watch are in the order of the history.
    Watched { worker: u32, watch: String, key: String, token: u64 },
    /// A watch reported that events may be missing.
    Missed { worker: u32, watch: String },
    /// A process did not run.
    Stall { worker: u32, from: Micros, to: Micros },
    /// A worker's write of a document beside all leases was slow, over a network in which nothing is broken for
    /// workers: so the machine was, or the servers.
    Slow { worker: u32, from: Micros, to: Micros },
    /// So many change streams of the process in a slot were open, or connections to Redis.
    Open { slot: u32, count: u64, at: Micros },
    /// A handle of a worker was shut down.
    Shutdown { worker: u32, begin: Micros, end: Micros },
    /// A worker that was told to end did not.
    Stuck { worker: u32, at: Micros },
    /// A fault is over.
    Fault(Fault),
    /// All faults are healed.
    Healed { at: Micros, term: i64 },
    /// What the log of the servers shows: how many writes were read and how many were not, and what breaks a promise or is
    /// another token than the workers were granted.
    Log { read: u64, unread: u64, broken: Vec<String> },
}

/// The run that this is the history of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) retention: Micros,
    /// By how much the wall clocks of the members differ.
    pub(crate) spread: Micros,
    /// Whether the servers are of Redis.
    pub(crate) redis: bool,
    /// How often the servers had elected when the run began.
    pub(crate) term: i64,
}

/// Asking for a key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Acquire {
    pub(crate) worker: u32,
    /// Unique within the worker, and not 0.
    pub(crate) lease: u64,
    pub(crate) key: String,
    /// 0 is exclusive.
    #[serde(default)]
    pub(crate) limit: u32,
    pub(crate) ttl: Micros,
    #[serde(default)]
    pub(crate) grace: Micros,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// How long it may take.
    pub(crate) within: Micros,
    /// `granted`, `held`, `full`, `unavailable`, or the text of any other error.
    pub(crate) outcome: String,
    /// If it was granted.
    #[serde(default)]
    pub(crate) token: u64,
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
    /// The minimum hold of the lease.
    #[serde(default)]
    pub(crate) least: Micros,
}

/// That an acquire was queued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Queued {
    /// When the first answer that said so came.
    pub(crate) since: Micros,
    /// When the last request was sent that was so answered.
    pub(crate) sent: Micros,
}

/// A call that is no acquire: on a lease, about the value or the document of its key, for a tick, or that opens a handle.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) worker: u32,
    /// As in [`Acquire`], of a call that shows whether the lease is held. 0: of another call.
    #[serde(default)]
    pub(crate) lease: u64,
    pub(crate) key: String,
    /// `refresh`, `verify` or `release` a lease; `read`, `put` or `release-with` a value; `write` a document in
    /// MongoDB, at the fence of its collection or in a transaction; run the work of a tick `once`; `prepare` a handle on a
    /// collection that must be refused.
    pub(crate) verb: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    pub(crate) within: Micros,
    /// `ok`, another word of `judge::outcomes::EXPECTED`, or the text of any other error.
    pub(crate) outcome: String,
    /// The token of the lease of a value or a tick, if the work of the tick ran.
    #[serde(default)]
    pub(crate) token: u64,
    /// A value: the token of the lease that wrote it, and the number of the write under that token. (0, 0) is none.
    #[serde(default)]
    pub(crate) content: (u64, u64),
    #[serde(default)]
    pub(crate) tick: u64,
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Inspect {
    pub(crate) worker: u32,
    pub(crate) key: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// `record`, `nothing`, `unavailable`, or the text of any other error.
    pub(crate) outcome: String,
    #[serde(default)]
    pub(crate) version: u64,
    /// The tokens of those whose time is not over.
    #[serde(default)]
    pub(crate) holders: Vec<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) what: String,
    pub(crate) begin: Micros,
    pub(crate) end: Micros,
    /// The slot of the only worker that it concerns, if it concerns one.
    #[serde(default)]
    pub(crate) slot: Option<u32>,
    /// The keys whose records are locked.
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
    /// Whether it locks records.
    pub(crate) fn is_lock(&self) -> bool {
        !self.keys.is_empty()
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self { what, ..Self::default() }
    }
}
