//! Each rule is needed: without it the model finds a violated promise.

use crate::{
    breaks,
    config::{Config, Rule},
    outcomes::Breach::{
        BelievesFreed, CompletedAgain, CompletedLate, GrantedEarly, KeptTooLong, NewerTouched, NotCompleted,
        OlderValue, PastMaximum, RanAgain, Revived, RevokedCompletes, TickLowered, TokenOutOfOrder, TokenTwice,
        TwoBelieve,
    },
};

/// Three clients with a request each, and one of them with a release.
const FEW: Config = Config::PLAIN;
/// Two with a request each.
const TWO: Config = Config { asks: [1, 1, 0], sends: [1, 1, 0], ..FEW };
/// Leases last for two ticks.
const TTL_2: Config = Config { ttls: [2; 3], retention: 2, ..TWO };
/// The first client holds the key, and refreshes its lease.
const REFRESHES: Config = Config { holder: Some(0), refreshes: 1, sends: [2, 1, 0], ..TTL_2 };
/// Two clients run a tick.
const SCHEDULE: Config = Config::SCHEDULE;
const LOSES: Config = Config { loses: [true; 3], sends: [3, 2, 0], ..SCHEDULE };
/// Clients without a tick, whose holds have limits.
const HOLDERS: Config = Config { ticks: [0; 3], ..SCHEDULE };

#[test]
fn an_idle_record_is_kept_for_the_longest_ttl() {
    breaks("with a retention below the ttl", Config { ttls: [1, 4, 1], ..TWO }, &[TokenOutOfOrder, TokenTwice]);
}

#[test]
fn a_clock_does_not_jump_forward_by_more_than_the_retention_exceeds_the_ttl() {
    let jumpy = Config { jumps_to: &[-4, 0], jumps: 2, until: 5, ..TTL_2 };
    breaks("with a jump above the retention", jumpy, &[TokenOutOfOrder, TokenTwice]);
}

#[test]
fn without_one_of_these_rules_tokens_are_out_of_order() {
    for (rule, config) in [
        (Rule::ExpiryNeverBack, FEW),
        (Rule::HybridInExpiry, Config { jumps_to: &[-6, 0], jumps: 2, follows: true, ..TTL_2 }),
        (Rule::LateReplies, TWO),
        (Rule::ClockInTokens, TWO),
        (Rule::VersionInTokens, Config { sends: [2, 1, 0], ..TWO }),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), &[TokenOutOfOrder, TokenTwice]);
    }
}

#[test]
fn without_one_of_these_rules_two_believe() {
    // The second client holds the key, may release it, and asks anew. The first asks, and asks again.
    let retries = Config { holder: Some(1), loses: [true, false, false], asks: [1, 2, 0], until: 2, ..TTL_2 };
    let deposed = Config { deposes: true, refreshes: 1, sends: [2, 1, 0], ..TTL_2 };
    let shared = Config { holder: Some(0), shares: [false, true, true], sends: [2, 1, 0], ..TTL_2 };
    for (rule, config) in [
        (Rule::SuccessWrites, deposed),
        (Rule::ClaimsFromLastAsk, Config { waits: true, ttls: [2; 3], retention: 2, until: 2, ..FEW }),
        (Rule::OwnSend, Config { refreshes: 2, sends: [3, 1, 0], until: 2, ..REFRESHES }),
        (Rule::AnswerIsOwnWrite, Config { sends: [2, 3, 0], ..retries }),
        (Rule::FailureIsNoAnswer, Config { holder: None, asks: [1, 1, 0], sends: [2, 1, 0], ..retries }),
        (Rule::GraceCoversOffset, Config { members: &[0, 1], failovers: 1, grace: 1, retention: 2, ..TWO }),
        (
            Rule::JointCounts,
            Config { holder: Some(1), jointly: true, asks: [1; 3], sends: [2, 1, 1], ttls: [2, 1, 1], ..deposed },
        ),
        (Rule::EachItsAnswer, Config { waits: true, together: true, ..TWO }),
        (Rule::SharesFromSend, Config { downgrades: true, ..shared }),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), &[TwoBelieve]);
    }
}

#[test]
fn without_one_of_these_rules_a_request_touches_the_lease_of_another() {
    // Acquires may be late, so a lease id can be granted again.
    let repeated = Config { loses: [true; 3], asks: [1, 0, 0], sends: [4, 0, 0], ..FEW };
    for (rule, config) in [
        (Rule::ReleaseNamesToken, Config { loses: [true; 3], asks: [1, 1, 0], ..FEW }),
        (Rule::ReleaseNamesGrant, repeated),
        (Rule::JointNamesToken, Config { jointly: true, ttls: [2, 1, 1], ..REFRESHES }),
        (Rule::DowngradeNamesToken, Config { downgrades: true, ..repeated }),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), &[NewerTouched]);
    }
}

#[test]
fn without_one_of_these_rules_a_holder_reads_an_older_value() {
    // Two holders write a value each, one after the other; the first may write another.
    let values = Config { holder: Some(0), values: 2, sends: [3, 1, 0], ..TTL_2 };
    for (rule, config) in
        [(Rule::PutNamesLease, Config { sends: [2, 2, 0], values: 1, ..values }), (Rule::PutFollows, values)]
    {
        breaks(&format!("without {rule:?}"), config.without(rule), &[OlderValue]);
    }
}

#[test]
fn without_one_of_these_rules_a_tick_is_completed_or_runs_again_although_it_may_not() {
    // Its lease id is granted again.
    let alone = Config { loses: [true; 3], asks: [1, 0, 0], sends: [4, 0, 0], ..SCHEDULE };
    let deposed = Config { deposes: true, ..SCHEDULE };
    for (rule, config, promise) in [
        (Rule::CompletionChecksVersion, SCHEDULE, CompletedLate),
        (Rule::CompletionChecksRevocation, Config { revocations: 1, ..SCHEDULE }, RevokedCompletes),
        (Rule::CompletionNamesToken, alone, CompletedLate),
        (Rule::CompletionNeverLowers, Config { ticks: [2, 1, 0], reads: false, ..SCHEDULE }, TickLowered),
        (Rule::CompletionOnce, Config { resets: 1, ..LOSES }, CompletedAgain),
        (Rule::DoneReadAfterGrant, SCHEDULE, RanAgain),
        (Rule::BeginsWhileValid, SCHEDULE, RanAgain),
        (Rule::CompletionWrites, Config { deposes: true, ..LOSES }, NotCompleted),
        // A client reads before its work, and to confirm its completion.
        (Rule::ReadsAreLinearizable, deposed, RanAgain),
        (Rule::ReadsAreLinearizable, Config { deposes: true, ..alone }, NotCompleted),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), &[promise]);
    }
}

#[test]
fn without_one_of_these_rules_a_released_lease_comes_back_or_its_key_is_granted_too_early() {
    let minimum = Config { min_hold: 2, ..HOLDERS };
    for (rule, config, promise) in [
        (Rule::ReleaseLeavesEntry, minimum, GrantedEarly),
        (Rule::EntryLosesLease, Config { loses: [true; 3], asks: [1, 0, 0], sends: [3, 0, 0], ..minimum }, Revived),
        (
            Rule::BatchSkipsReleased,
            Config { refreshes: 1, jointly: true, alone: false, dismissals: 1, ..minimum },
            Revived,
        ),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), &[promise]);
    }
}

#[test]
fn without_one_of_these_rules_a_lease_or_a_belief_lasts_past_the_maximum_hold() {
    let maximum = Config { max_hold: 2, ..HOLDERS };
    let refreshes = Config { refreshes: 1, ..maximum };
    for (rule, config, promises) in [
        (Rule::RefreshStopsAtMaximum, refreshes, &[KeptTooLong][..]),
        (Rule::MaximumFromLastAcquire, Config { waits: true, stalls: true, ..maximum }, &[BelievesFreed, PastMaximum]),
        (Rule::LastFromAnswer, Config { loses: [true; 3], ..maximum }, &[PastMaximum, BelievesFreed]),
        (Rule::LastWithoutGrace, Config { grace: 1, members: &[0, 1], failovers: 2, ..refreshes }, &[BelievesFreed]),
        (Rule::LastFromPlace, Config { waits: true, sends: [2, 3, 0], ..refreshes }, &[PastMaximum, BelievesFreed]),
        (Rule::RefreshStopsAtLast, refreshes, &[PastMaximum, BelievesFreed]),
    ] {
        breaks(&format!("without {rule:?}"), config.without(rule), promises);
    }
}
