//! The configuration of an exploration: the number of requests, the time, the limits, the possible faults, and the rule that
//! is left out.

use mongoseal::Sharing;

use crate::state::Time;

/// A rule of the protocol that a test takes out, to see that the model notices. The second half is of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A token is no smaller than the hybrid clock.
    ClockInTokens,
    /// A token is larger than the record's version.
    VersionInTokens,
    /// The record's expiry never goes back.
    ExpiryNeverBack,
    /// The record's expiry waits for the hybrid clock.
    HybridInExpiry,
    /// A reply after the deadline of what it grants is thrown away.
    LateReplies,
    /// That somebody holds the key is told by a write only.
    SuccessWrites,
    /// Whoever is handed the key keeps it from when it was last heard of, and not only from when the request
    /// was parsed that handed it over.
    ClaimsFromLastAsk,
    /// A release names whose lease it ends, and not only the key.
    ReleaseNamesToken,
    /// A release names the token, and not only the lease id, which may have been granted anew.
    ReleaseNamesGrant,
    /// A confirmed refresh counts its deadline from its own send, and not from the last send.
    OwnSend,
    /// The write of an acquire gives its answer, and not a read after that write.
    AnswerIsOwnWrite,
    /// If the write of an acquire fails, no read answers in its place.
    FailureIsNoAnswer,
    /// The grace is at least as long as the clocks of two members differ.
    GraceCoversOffset,
    /// A joint refresh names tokens, and not only keys.
    JointNamesToken,
    /// A joint refresh succeeds only if it changed as many records as it names.
    JointCounts,
    /// A downgrade names the token, and not only the lease id.
    DowngradeNamesToken,
    /// A holder believes from the send of its downgrade on that it shares the key, and not only from the answer on.
    SharesFromSend,
    /// A write of a value names the lease and the token under which it is made.
    PutNamesLease,
    /// A write of a value names the write that it follows.
    PutFollows,
    /// Each of two acquires in one command has an answer of its own.
    EachItsAnswer,
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
    /// A client reads the last completed tick after the grant, and not only before its acquire.
    DoneReadAfterGrant,
    /// A client begins the work only if its lease is valid.
    BeginsWhileValid,
    /// A client believes a completion only if its write changed the record. Otherwise it reads.
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

/// The limit of those who share the key: all clients.
pub(crate) const SHARED: Sharing = Sharing::UpTo(3);

/// One exploration.
#[allow(clippy::struct_excessive_bools, reason = "each says whether one thing happens, with or without the others")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Whether it is about ticks and hold limits, which need a state of their own. Then no record is deleted, so that the
    /// version alone numbers tokens: a token is the number of its grant.
    pub(crate) schedules: bool,
    /// When it ends.
    pub(crate) until: Time,
    /// Of each client.
    pub(crate) ttls: [Time; 3],
    pub(crate) grace: Time,
    /// How long an idle record is kept.
    pub(crate) retention: Time,
    /// Which client holds the key when the exploration begins.
    pub(crate) holder: Option<usize>,
    /// How many lease ids each client uses, and how many requests it sends.
    pub(crate) asks: [u8; 3],
    pub(crate) sends: [u8; 3],
    /// How many requests are on their way at most.
    pub(crate) in_flight: usize,
    /// The minimum and the maximum hold. 0: none.
    pub(crate) min_hold: Time,
    pub(crate) max_hold: Time,
    /// The tick that each client runs. 0: it has none, and holds the key as any holder does.
    pub(crate) ticks: [u8; 3],
    /// Whether the clients read the last completed tick. One that does not read it must not break the schedule of those that
    /// do.
    pub(crate) reads: bool,
    /// How often the operator revokes the key, resets the schedule to 0, and releases the lease of a client.
    pub(crate) revocations: u8,
    pub(crate) resets: u8,
    pub(crate) dismissals: u8,
    /// Whether acquires wait.
    pub(crate) waits: bool,
    /// Whether the server stalls between the parse of a request and its execution.
    pub(crate) stalls: bool,
    /// Which clients lose replies, so that they ask again or give up, and leave ghosts behind.
    pub(crate) loses: [bool; 3],
    /// Whether clients die.
    pub(crate) crashes: bool,
    /// How many attempts to refresh one lease are in flight at most.
    pub(crate) refreshes: usize,
    /// Whether holders also refresh jointly, and whether they refresh alone.
    pub(crate) jointly: bool,
    pub(crate) alone: bool,
    /// Whether two acquires that wait may share a command.
    pub(crate) together: bool,
    /// Which clients share the key, and whether the others downgrade their leases.
    pub(crate) shares: [bool; 3],
    pub(crate) downgrades: bool,
    /// How many values each holder writes.
    pub(crate) values: u8,
    /// Whether a primary may be deposed and not know.
    pub(crate) deposes: bool,
    /// To which error the server's wall clock may jump, and how often.
    pub(crate) jumps_to: &'static [Time],
    pub(crate) jumps: u8,
    /// By how much the wall clock of each member is ahead that may become primary, and how many failovers happen.
    pub(crate) members: &'static [Time],
    pub(crate) failovers: u8,
    /// Whether the hybrid clock follows the true time without a write, as other members tell it.
    pub(crate) follows: bool,
    /// Whether time stands still until all requests are answered and all waiters have asked: then nobody
    /// who lives may wait for long.
    pub(crate) fair: bool,
    pub(crate) without: Option<Rule>,
}

impl Config {
    /// Nothing goes wrong but what always may: requests, answers and clients are late, the server stalls,
    /// and the record is collected.
    pub(crate) const PLAIN: Self = Self {
        schedules: false,
        until: 3,
        ttls: [1; 3],
        grace: 0,
        retention: 1,
        holder: None,
        asks: [1, 1, 1],
        sends: [2, 1, 1],
        in_flight: 3,
        min_hold: 0,
        max_hold: 0,
        ticks: [0; 3],
        reads: true,
        revocations: 0,
        resets: 0,
        dismissals: 0,
        waits: false,
        stalls: true,
        loses: [false; 3],
        crashes: false,
        refreshes: 0,
        jointly: false,
        alone: true,
        together: false,
        shares: [false; 3],
        downgrades: false,
        values: 0,
        deposes: false,
        jumps_to: &[],
        jumps: 0,
        members: &[],
        failovers: 0,
        follows: false,
        fair: false,
        without: None,
    };

    /// Two clients run tick 1 under a lease each. Their requests and answers are late.
    pub(crate) const SCHEDULE: Self = Self {
        schedules: true,
        until: 4,
        ttls: [2; 3],
        retention: 1_000,
        asks: [1, 1, 0],
        sends: [2, 2, 0],
        in_flight: 99,
        ticks: [1; 3],
        stalls: false,
        ..Self::PLAIN
    };

    pub(crate) fn is_without(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// How much longer than its ttl the server keeps a lease.
    pub(crate) fn grace(&self) -> Time {
        if self.is_without(Rule::GraceCoversOffset) { 0 } else { self.grace }
    }

    pub(crate) fn without(self, rule: Rule) -> Self {
        Self { without: Some(rule), ..self }
    }

    /// Whether two may never believe at once: while clocks do not jump. A failover to a member whose clock is
    /// ahead is no jump, as long as the grace covers the difference. Of schedules, the record tells who may believe.
    pub(crate) fn excludes(&self) -> bool {
        !self.schedules && self.jumps == 0 && self.members.iter().all(|ahead| *ahead <= self.grace)
    }
}
