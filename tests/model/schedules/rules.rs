//! Each rule is needed: without it the model finds a violated promise.

use super::{
    config::{Config, Rule},
    explore,
    state::Breach::{self, *},
};

/// Without the rule one of these promises is broken, in a few steps.
fn breaks(config: Config, rule: Rule, promises: &[Breach]) {
    let found = explore(&format!("without {rule:?}"), Config { without: Some(rule), ..config });
    let broken = found.iter().find(|(name, _)| promises.iter().any(|promise| promise.promise() == **name));
    let Some((name, steps)) = broken else { panic!("without {rule:?} nothing breaks: {found:#?}") };
    println!("without {rule:?} {name:?} breaks in {} steps: {}", steps.len(), steps.join(", "));
}

const LOSES: Config = Config { loses: true, sends: [3, 2, 0], ..Config::PLAIN };
const HOLDERS: Config = Config { ticks: [0; 3], ..Config::PLAIN };

#[test]
fn an_expired_lease_completes_its_tick_only_if_no_later_lease_was_granted() {
    breaks(Config::PLAIN, Rule::CompletionChecksVersion, &[CompletedLate]);
}

#[test]
fn a_completion_looks_for_a_revocation() {
    breaks(Config { revocations: 1, ..Config::PLAIN }, Rule::CompletionChecksRevocation, &[RevokedCompletes]);
}

#[test]
fn a_completion_names_the_token_and_not_only_the_lease_id() {
    let repeated = Config { loses: true, runs: [1, 0, 0], sends: [4, 0, 0], ..Config::PLAIN };
    breaks(repeated, Rule::CompletionNamesToken, &[CompletedLate]);
}

#[test]
fn a_completion_never_lowers_the_tick() {
    let older = Config { ticks: [2, 1, 0], reads: false, ..Config::PLAIN };
    breaks(older, Rule::CompletionNeverLowers, &[TickLowered]);
}

#[test]
fn a_lease_completes_once_also_if_a_reset_lowers_the_tick() {
    breaks(Config { resets: 1, ..LOSES }, Rule::CompletionOnce, &[CompletedAgain]);
}

#[test]
fn a_runner_reads_the_last_completed_tick_after_the_grant() {
    breaks(Config::PLAIN, Rule::DoneReadAfterGrant, &[RanAgain]);
}

#[test]
fn a_runner_begins_the_work_only_if_its_lease_is_valid() {
    breaks(Config::PLAIN, Rule::BeginsWhileValid, &[RanAgain]);
}

#[test]
fn a_completion_that_wrote_nothing_is_a_hint() {
    breaks(Config { deposes: true, ..LOSES }, Rule::CompletionWrites, &[NotCompleted]);
}

#[test]
fn a_runner_reads_before_its_work_from_no_deposed_primary() {
    breaks(Config { deposes: true, ..Config::PLAIN }, Rule::ReadsAreLinearizable, &[RanAgain]);
}

#[test]
fn a_runner_confirms_its_completion_by_no_read_from_a_deposed_primary() {
    let alone = Config { runs: [1, 0, 0], sends: [4, 0, 0], ..LOSES };
    breaks(Config { deposes: true, ..alone }, Rule::ReadsAreLinearizable, &[NotCompleted]);
}

#[test]
fn a_release_before_the_end_of_the_minimum_hold_leaves_an_entry() {
    breaks(Config { min_hold: 2, ..HOLDERS }, Rule::ReleaseLeavesEntry, &[GrantedEarly]);
}

#[test]
fn the_entry_of_a_released_lease_loses_its_lease_id() {
    let repeated = Config { min_hold: 2, loses: true, runs: [1, 0, 0], sends: [3, 0, 0], ..HOLDERS };
    breaks(repeated, Rule::EntryLosesLease, &[Revived]);
}

#[test]
fn a_batch_refresh_finds_no_released_lease() {
    let batches = Config { min_hold: 2, refreshes: true, batches: true, dismissals: 1, ..HOLDERS };
    breaks(batches, Rule::BatchSkipsReleased, &[Revived]);
}

#[test]
fn no_refresh_moves_the_expiry_past_the_end_of_the_maximum_hold() {
    breaks(Config { max_hold: 2, refreshes: true, ..HOLDERS }, Rule::RefreshStopsAtMaximum, &[KeptTooLong]);
}

#[test]
fn the_maximum_hold_counts_from_the_last_acquire_of_a_waiter() {
    let waits = Config { max_hold: 2, waits: true, stalls: true, ..HOLDERS };
    breaks(waits, Rule::MaximumFromLastAcquire, &[BelievesFreed, PastMaximum]);
}

#[test]
fn the_last_deadline_of_a_resent_acquire_comes_from_the_answer() {
    let resent = Config { max_hold: 2, loses: true, ..HOLDERS };
    breaks(resent, Rule::LastFromAnswer, &[PastMaximum, BelievesFreed]);
}

#[test]
fn the_last_deadline_leaves_out_the_grace() {
    let members = Config { max_hold: 2, grace: 1, failovers: 2, refreshes: true, ..HOLDERS };
    breaks(members, Rule::LastWithoutGrace, &[BelievesFreed]);
}

#[test]
fn the_last_deadline_of_a_notified_waiter_counts_from_its_last_acquire() {
    let waits = Config { max_hold: 2, waits: true, refreshes: true, sends: [2, 3, 0], ..HOLDERS };
    breaks(waits, Rule::LastFromPlace, &[PastMaximum, BelievesFreed]);
}

#[test]
fn a_confirmed_refresh_does_not_extend_the_deadline_past_the_last() {
    breaks(Config { max_hold: 2, refreshes: true, ..HOLDERS }, Rule::RefreshStopsAtLast, &[PastMaximum, BelievesFreed]);
}
