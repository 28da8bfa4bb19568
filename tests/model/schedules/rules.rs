//! Each rule is needed: without it the model finds a violated promise.

use super::config::{Config, Rule};
use crate::{
    breaks,
    outcomes::Breach::{
        BelievesFreed, CompletedAgain, CompletedLate, GrantedEarly, KeptTooLong, NotCompleted, PastMaximum, RanAgain,
        Revived, RevokedCompletes, TickLowered,
    },
};

const PLAIN: Config = Config::PLAIN;
const LOSES: Config = Config { loses: true, sends: [3, 2, 0], ..PLAIN };
const HOLDERS: Config = Config { ticks: [0; 3], ..PLAIN };

#[test]
fn without_one_of_these_rules_a_tick_is_completed_or_runs_again_although_it_may_not() {
    // Its lease id is granted again.
    let alone = Config { loses: true, runs: [1, 0, 0], sends: [4, 0, 0], ..PLAIN };
    let deposed = Config { deposes: true, ..PLAIN };
    for (rule, config, promise) in [
        (Rule::CompletionChecksVersion, PLAIN, CompletedLate),
        (Rule::CompletionChecksRevocation, Config { revocations: 1, ..PLAIN }, RevokedCompletes),
        (Rule::CompletionNamesToken, alone, CompletedLate),
        (Rule::CompletionNeverLowers, Config { ticks: [2, 1, 0], reads: false, ..PLAIN }, TickLowered),
        (Rule::CompletionOnce, Config { resets: 1, ..LOSES }, CompletedAgain),
        (Rule::DoneReadAfterGrant, PLAIN, RanAgain),
        (Rule::BeginsWhileValid, PLAIN, RanAgain),
        (Rule::CompletionWrites, Config { deposes: true, ..LOSES }, NotCompleted),
        // A runner reads before its work, and to confirm its completion.
        (Rule::ReadsAreLinearizable, deposed, RanAgain),
        (Rule::ReadsAreLinearizable, Config { deposes: true, ..alone }, NotCompleted),
    ] {
        breaks(&format!("without {rule:?}"), Config { without: Some(rule), ..config }, &[promise]);
    }
}

#[test]
fn without_one_of_these_rules_a_released_lease_comes_back_or_its_key_is_granted_too_early() {
    let minimum = Config { min_hold: 2, ..HOLDERS };
    for (rule, config, promise) in [
        (Rule::ReleaseLeavesEntry, minimum, GrantedEarly),
        (Rule::EntryLosesLease, Config { loses: true, runs: [1, 0, 0], sends: [3, 0, 0], ..minimum }, Revived),
        (Rule::BatchSkipsReleased, Config { refreshes: true, batches: true, dismissals: 1, ..minimum }, Revived),
    ] {
        breaks(&format!("without {rule:?}"), Config { without: Some(rule), ..config }, &[promise]);
    }
}

#[test]
fn without_one_of_these_rules_a_lease_or_a_belief_lasts_past_the_maximum_hold() {
    let maximum = Config { max_hold: 2, ..HOLDERS };
    let refreshes = Config { refreshes: true, ..maximum };
    for (rule, config, promises) in [
        (Rule::RefreshStopsAtMaximum, refreshes, &[KeptTooLong][..]),
        (Rule::MaximumFromLastAcquire, Config { waits: true, stalls: true, ..maximum }, &[BelievesFreed, PastMaximum]),
        (Rule::LastFromAnswer, Config { loses: true, ..maximum }, &[PastMaximum, BelievesFreed]),
        (Rule::LastWithoutGrace, Config { grace: 1, failovers: 2, ..refreshes }, &[BelievesFreed]),
        (Rule::LastFromPlace, Config { waits: true, sends: [2, 3, 0], ..refreshes }, &[PastMaximum, BelievesFreed]),
        (Rule::RefreshStopsAtLast, refreshes, &[PastMaximum, BelievesFreed]),
    ] {
        breaks(&format!("without {rule:?}"), Config { without: Some(rule), ..config }, promises);
    }
}
