//! The commands to a worker and its reports, one line of JSON each.

use std::time::Duration;

use mongodb::bson::{Bson, Document};
use mongoseal::{FencingToken, LeaseId, store::Clock};
use serde::{Deserialize, Serialize};

/// A reading of [`Clock::Boot`], which all processes of a machine share.
pub(crate) fn now() -> Duration {
    Clock::Boot.now().since_origin()
}

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// To ask for the key, on a task of its own.
    Ask(Ask),
    /// To release what this waiter holds.
    Release {
        /// Which.
        waiter: u32,
    },
    /// To run the ticks of a schedule, on a task of its own.
    Schedule(Schedule),
    /// To begin no further turn.
    Finish,
    /// To shut the handle down.
    ShutDown,
}

/// To ask for a key, and to hold it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Who asks, among all workers of a test.
    pub(crate) waiter: u32,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    /// When to drop the acquire where it stands.
    pub(crate) drop_after: Option<Duration>,
    /// How long to hold the key; else until told to release it.
    pub(crate) hold: Option<Duration>,
    /// How often to do all this.
    pub(crate) turns: u32,
}

impl Ask {
    /// To wait for ever, once, and to release at once.
    pub(crate) fn new(waiter: u32, ttl: Duration) -> Self {
        Self { waiter, ttl, wait: Duration::MAX, drop_after: None, hold: Some(Duration::ZERO), turns: 1 }
    }

    /// To hold the key until told to release it.
    pub(crate) fn and_holds(self) -> Self {
        Self { hold: None, ..self }
    }
}

/// To run the ticks of a schedule, one after another, each as soon as it is due.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The key.
    pub(crate) key: String,
    /// The number of the first tick and of the last.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When tick 0 is due, and the time between two ticks.
    pub(crate) begin: Duration,
    pub(crate) every: Duration,
    pub(crate) ttl: Duration,
    /// How long to wait for a tick that another process runs. If not at all, the tick is skipped.
    pub(crate) wait: Option<Duration>,
    /// The work of a tick takes from one millisecond to so many.
    pub(crate) work: u64,
    /// Whether to stay between the end of the work and the completion, for ever.
    pub(crate) stays: bool,
}

/// What a worker tells. Times are those of [`now`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It is connected.
    Ready,
    /// This waiter asks now.
    Asks { waiter: u32, at: Duration },
    /// This waiter was granted the key, and believed so at this time.
    Granted { waiter: u32, token: FencingToken, lease: String, at: Duration },
    /// This waiter was given a lease that was not valid any more.
    Stale { waiter: u32, token: FencingToken },
    /// This waiter's lease was lost; it last believed to hold the key at this time.
    Lost { waiter: u32, token: FencingToken, last: Duration },
    /// This waiter begins to release its lease; it last believed to hold the key at this time.
    Releases { waiter: u32, token: FencingToken, last: Duration },
    /// What this waiter's release came to.
    Released { waiter: u32, answer: String },
    /// This waiter was told that the key is held, and its wait is over.
    Held { waiter: u32 },
    /// This waiter dropped its acquire.
    Dropped { waiter: u32 },
    /// This waiter was refused for another reason.
    Failed { waiter: u32, error: String },
    /// This waiter has taken its turns.
    Done { waiter: u32 },
    /// The work of a tick begins; and when, if its lease was valid then.
    Runs { schedule: String, tick: u64, token: FencingToken, at: Option<Duration> },
    /// The work has ended, and its tick is not completed.
    Worked { schedule: String, tick: u64 },
    /// `run` has returned that the work ran and that its tick is completed.
    Ran { schedule: String, tick: u64, token: FencingToken, at: Duration },
    /// Another process ran the tick, and this one did not wait.
    Skips { schedule: String, tick: u64 },
    /// The lease was lost, or it is not known whether the tick is completed.
    Unfinished { schedule: String, tick: u64, error: String },
    /// No tick of the schedule is left.
    Through { schedule: String },
    /// The handle was shut down.
    ShutDown,
    /// The process has ended.
    Gone,
}

/// The lease id of a record's entry, as [`Word::Granted`] tells it.
pub(crate) fn lease(entry: &Document) -> String {
    match entry.get("lease") {
        Some(Bson::Binary(id)) => LeaseId::from_bytes(id.bytes.as_slice().try_into().unwrap()).expose(),
        other => panic!("a lease id is written as {other:?}"),
    }
}
