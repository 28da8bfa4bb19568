//! The configuration of an exploration: the runners, the limits, the possible faults, and the rule that is left out.

use super::{
    server::Server,
    state::{Attempt, State, runner_of},
};
use crate::{
    Exploration,
    outcomes::{Breach, Reached},
    state::Time,
};

/// A rule that a test takes out, to see that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// An expired lease completes its tick only if its token is the version.
    CompletionChecksVersion,
    /// A revoked lease completes nothing.
    CompletionChecksRevocation,
    /// A completion names the token, and not only the lease id.
    CompletionNamesToken,
    /// A completion never lowers the tick.
    CompletionNeverLowers,
    /// A lease completes at most once, also if a reset lowered the tick since.
    CompletionOnce,
    /// A runner reads the last completed tick after the grant, and not only before its acquire.
    DoneReadAfterGrant,
    /// A runner begins the work only if its lease is valid.
    BeginsWhileValid,
    /// A runner believes a completion only if its write changed the record. Otherwise it reads.
    CompletionWrites,
    /// Reads never come from a deposed primary.
    ReadsAreLinearizable,
    /// A release before the end of the minimum hold leaves an entry.
    ReleaseLeavesEntry,
    /// That entry loses its lease id.
    EntryLosesLease,
    /// A batch refresh finds no released entry.
    BatchSkipsReleased,
    /// No refresh moves the expiry past the end of the maximum hold.
    RefreshStopsAtMaximum,
    /// The maximum hold counts from the last acquire of a waiter, as its offer does, and not from the parse of the
    /// request that hands the key over.
    MaximumFromLastAcquire,
    /// The last deadline comes from `not_after` in the answer, and not from the send of the last acquire.
    LastFromAnswer,
    /// The last deadline leaves out the grace.
    LastWithoutGrace,
    /// If a notification grants the key, the last deadline counts from the send of the last acquire.
    LastFromPlace,
    /// A confirmed refresh does not extend the deadline past the last deadline.
    RefreshStopsAtLast,
}

/// One exploration.
#[allow(clippy::struct_excessive_bools, reason = "each is whether one thing happens, with or without the others")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// When it ends.
    pub(crate) until: Time,
    pub(crate) ttl: Time,
    pub(crate) grace: Time,
    /// The minimum and the maximum hold. 0: none.
    pub(crate) min_hold: Time,
    pub(crate) max_hold: Time,
    /// How often each runner acquires the key, and how many requests it sends.
    pub(crate) runs: [u8; 3],
    pub(crate) sends: [u8; 3],
    /// The tick of each runner. 0: it has none, and holds the key as any holder does.
    pub(crate) ticks: [u8; 3],
    /// Whether the runners read the last completed tick. A client that does not read it must not break the schedule of the
    /// clients that do.
    pub(crate) reads: bool,
    /// Whether acquires wait.
    pub(crate) waits: bool,
    /// Whether replies are lost: then a runner resends its request or gives up, and leaves ghosts behind.
    pub(crate) loses: bool,
    /// Whether the server stalls between the parse of a request and its execution.
    pub(crate) stalls: bool,
    /// Whether runners die.
    pub(crate) crashes: bool,
    /// Whether holders refresh, and whether they do so in batches.
    pub(crate) refreshes: bool,
    pub(crate) batches: bool,
    /// How often the operator revokes the key, resets the schedule to 0, and releases the lease of a runner.
    pub(crate) revocations: u8,
    pub(crate) resets: u8,
    pub(crate) dismissals: u8,
    /// Whether a primary may be deposed and not know.
    pub(crate) deposes: bool,
    /// How often a member becomes primary whose clock is ahead by the grace.
    pub(crate) failovers: u8,
    pub(crate) without: Option<Rule>,
}

impl Exploration for Config {
    type Server = Server;

    fn server(self, reached: Reached) -> Server {
        Server::new(self, reached)
    }

    fn breach(state: &State) -> Option<Breach> {
        state.breach
    }
}

impl Config {
    /// Two runners of tick 1 with a lease each. Their requests and answers are late.
    pub(crate) const PLAIN: Self = Self {
        until: 4,
        ttl: 2,
        grace: 0,
        min_hold: 0,
        max_hold: 0,
        runs: [1, 1, 0],
        sends: [2, 2, 0],
        ticks: [1; 3],
        reads: true,
        waits: false,
        loses: false,
        stalls: false,
        crashes: false,
        refreshes: false,
        batches: false,
        revocations: 0,
        resets: 0,
        dismissals: 0,
        deposes: false,
        failovers: 0,
        without: None,
    };

    pub(crate) fn is_without(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// The tick of the runner whose attempt it is.
    pub(crate) fn tick(&self, attempt: Attempt) -> u8 {
        self.ticks[runner_of(attempt)]
    }
}
