//! With all rules, the model finds no violated promise.

use super::config::Config;
use crate::{
    holds,
    outcomes::Rare::{
        AllowedByReset, CompletedAfterExpiry, EntryRevoked, FoundDone, GhostAfterReset, RefreshCut, RefusedByEntry,
        ResentCompletion, ResentGrantCut,
    },
};

/// Holders without ticks.
const HOLDERS: Config = Config { ticks: [0; 3], ..Config::PLAIN };

#[test]
fn no_tick_is_completed_twice_if_requests_stall_and_leases_expire() {
    let stalls = Config { stalls: true, runs: [1, 1, 0], ..Config::PLAIN };
    let full = Config { runs: [1; 3], sends: [2; 3], until: 3, ..stalls };
    holds("ticks", stalls, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn no_tick_is_completed_twice_if_replies_are_lost_and_ghosts_come_late() {
    let lost = Config { loses: true, sends: [3, 2, 0], runs: [1, 1, 0], until: 3, ..Config::PLAIN };
    let full = Config { stalls: true, ..lost };
    holds("lost completions", lost, full, &[CompletedAfterExpiry, ResentCompletion, FoundDone]);
}

#[test]
fn no_tick_is_completed_twice_if_runners_die_and_wait_in_the_queue() {
    let waits = Config { waits: true, crashes: true, sends: [2, 3, 0], ..Config::PLAIN };
    let full = Config { stalls: true, runs: [2, 1, 0], ..waits };
    holds("waiting runners", waits, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn ticks_complete_in_order_if_an_older_tick_runs_late() {
    let older = Config { ticks: [2, 1, 2], loses: true, sends: [3, 2, 0], until: 3, ..Config::PLAIN };
    let full = Config { until: 4, ..older };
    holds("older ticks", older, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn a_client_that_does_not_read_the_last_tick_neither_completes_it_again_nor_lowers_it() {
    let blind = Config { reads: false, ticks: [2, 1, 1], runs: [1; 3], sends: [2; 3], until: 3, ..Config::PLAIN };
    let full = Config { stalls: true, ..blind };
    holds("clients that do not read", blind, full, &[CompletedAfterExpiry]);
}

#[test]
fn a_reset_allows_one_more_completion_and_a_ghost_does_not_undo_it() {
    let resets = Config { loses: true, resets: 1, sends: [3, 2, 0], until: 3, ..Config::PLAIN };
    let full = Config { stalls: true, ..resets };
    holds("resets", resets, full, &[GhostAfterReset, AllowedByReset, FoundDone]);
}

#[test]
fn a_revoked_lease_completes_no_tick() {
    let revoked = Config { revocations: 1, min_hold: 3, loses: true, sends: [3, 2, 0], until: 2, ..Config::PLAIN };
    let full = Config { until: 3, ..revoked };
    holds("revocations", revoked, full, &[EntryRevoked, RefusedByEntry]);
}

#[test]
fn no_deposed_primary_confirms_a_completion() {
    let deposed = Config { deposes: true, loses: true, sends: [3, 2, 0], until: 3, ..Config::PLAIN };
    let full = Config { sends: [4, 2, 0], ..deposed };
    holds("deposed", deposed, full, &[ResentCompletion, FoundDone]);
}

#[test]
fn a_minimum_hold_keeps_the_key_unavailable_whatever_request_comes_late() {
    let minimum = Config { min_hold: 3, refreshes: true, loses: true, ..HOLDERS };
    let minimum = Config { runs: [2, 1, 0], sends: [4, 1, 0], ..minimum };
    let full = Config { dismissals: 1, ..minimum };
    holds("minimum hold", minimum, full, &[RefusedByEntry]);
}

#[test]
fn a_minimum_hold_ends_the_belief_of_a_holder_that_another_process_released() {
    let dismissed = Config { min_hold: 3, refreshes: true, batches: true, dismissals: 1, stalls: true, ..HOLDERS };
    let dismissed = Config { sends: [3, 1, 0], ..dismissed };
    let full = Config { waits: true, ..dismissed };
    holds("dismissals", dismissed, full, &[RefusedByEntry]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_its_acquire_is_resent() {
    let maximum = Config { max_hold: 3, refreshes: true, loses: true, sends: [4, 1, 0], until: 5, ..HOLDERS };
    let full = Config { runs: [2, 1, 0], until: 4, ..maximum };
    holds("maximum hold", maximum, full, &[RefreshCut, ResentGrantCut]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_it_waits() {
    let waits = Config { max_hold: 2, refreshes: true, waits: true, stalls: true, sends: [2, 3, 0], ..HOLDERS };
    let full = Config { loses: true, until: 3, ..waits };
    holds("maximum hold of waiters", waits, full, &[RefreshCut]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_the_clocks_of_members_differ_by_the_grace() {
    let members = Config { max_hold: 3, grace: 1, failovers: 2, refreshes: true, sends: [3, 1, 0], ..HOLDERS };
    let members = Config { loses: true, until: 5, ..members };
    let full = Config { stalls: true, until: 3, ..members };
    holds("maximum hold and failovers", members, full, &[RefreshCut, ResentGrantCut]);
}
