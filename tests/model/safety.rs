//! With all rules, the model finds no violated promise.
//!
//! By default it explores for some seconds. `MONGOSEAL_MODEL=full cargo test --workspace --test model` explores for minutes.

use crate::{
    config::Config,
    holds,
    outcomes::Rare::{
        AllowedByReset, Believed, CompletedAfterExpiry, DowngradedTooLate, EarlierConfirmed, EntryRevoked, FoundDone,
        GhostAfterReset, GhostGranted, GrantedAhead, GrantedTogether, KeptTooLate, MadeAgain, PutTooLate, RefreshCut,
        RefusedByEntry, ResentCompletion, ResentGrantCut, Shared, ValueRead,
    },
};

/// Two clients, of whom the first sends another request, too.
const TWO: Config = Config { asks: [1, 1, 0], sends: [2, 1, 0], ..Config::PLAIN };
/// The same with more time.
const LONG: Config = Config { ttls: [2; 3], retention: 2, until: 6, ..TWO };
/// Holders without ticks.
const HOLDERS: Config = Config { ticks: [0; 3], ..Config::SCHEDULE };

#[test]
fn nothing_breaks_where_requests_stall_and_records_are_collected() {
    let full = Config { ttls: [2; 3], retention: 2, until: 6, ..Config::PLAIN };
    holds("stalls", Config::PLAIN, full, &[MadeAgain, Believed]);
}

#[test]
fn nothing_breaks_where_leases_last_for_different_times_and_the_store_waits_longer() {
    let mixed = Config { ttls: [1, 3, 1], grace: 1, retention: 4, until: 9, ..TWO };
    holds("grace", mixed, Config { sends: [2, 2, 0], until: 10, ..mixed }, &[MadeAgain, Believed]);
}

#[test]
fn nothing_breaks_where_replies_are_lost_and_ghosts_come_late() {
    let lost = Config { loses: [true; 3], crashes: true, asks: [1, 1, 0], sends: [2, 2, 0], ..Config::PLAIN };
    let full = Config { asks: [2, 1, 0], sends: [3, 1, 0], ..lost };
    holds("losses", lost, full, &[MadeAgain, Believed]);
}

#[test]
fn nothing_breaks_where_holders_refresh_and_a_primary_is_deposed_and_does_not_know() {
    let deposed = Config { deposes: true, refreshes: 1, ..TWO };
    holds("deposed", deposed, Config { deposes: true, refreshes: 1, sends: [3, 1, 0], ..LONG }, &[MadeAgain, Believed]);
}

#[test]
fn tokens_are_in_order_where_clocks_jump() {
    let jumpy = Config { jumps_to: &[-6, 0], jumps: 2, follows: true, ttls: [2; 3], retention: 2, ..TWO };
    let jumpy = Config { sends: [1, 1, 0], ..jumpy };
    holds("jumps", jumpy, Config { sends: [2, 1, 0], until: 4, ..jumpy }, &[MadeAgain, Believed]);
}

#[test]
fn tokens_are_in_order_where_clocks_jump_by_less_than_the_retention_exceeds_the_ttl() {
    let jumpy = Config { jumps_to: &[-1, 0], jumps: 2, ttls: [2; 3], retention: 3, until: 7, ..TWO };
    let jumpy = Config { sends: [1, 1, 0], ..jumpy };
    let full = Config { jumps_to: &[-1, 0, 1], retention: 4, until: 8, ..jumpy };
    holds("small jumps", jumpy, full, &[MadeAgain, Believed]);
}

#[test]
fn nothing_breaks_where_clients_wait() {
    let waits = Config { waits: true, asks: [1, 1, 1], sends: [2, 1, 1], until: 1, ..Config::PLAIN };
    let full = Config { loses: [true; 3], until: 2, ..waits };
    holds("waits", waits, full, &[Believed]);
}

#[test]
fn nothing_breaks_if_attempts_to_refresh_overlap() {
    let overlap = Config { holder: Some(0), refreshes: 2, sends: [3, 1, 0], until: 3, ..LONG };
    let full = Config { refreshes: 3, members: &[0, 1], failovers: 2, grace: 1, sends: [4, 1, 0], ..overlap };
    holds("overlaps", overlap, full, &[Believed, EarlierConfirmed]);
}

#[test]
fn nothing_breaks_if_a_ghost_executes_between_a_retry_and_the_next_acquire() {
    let retries = Config { holder: Some(1), loses: [true, false, false], asks: [1, 2, 0], sends: [2, 3, 0], ..LONG };
    let full = Config { sends: [3, 3, 0], until: 3, ..retries };
    holds("retries", Config { until: 2, ..retries }, full, &[Believed, GhostGranted]);
}

#[test]
fn nothing_breaks_if_the_clocks_of_members_differ_by_at_most_the_grace() {
    let members = Config { members: &[0, 1], failovers: 2, grace: 1, retention: 2, until: 5, ..TWO };
    let members = Config { holder: Some(0), refreshes: 1, ..members };
    let full = Config { members: &[0, 1, 2], grace: 2, retention: 3, until: 8, ..members };
    holds("members", members, full, &[Believed, MadeAgain, GrantedAhead]);
}

#[test]
fn nothing_breaks_if_waiters_share_a_command() {
    let together = Config { waits: true, together: true, sends: [2, 1, 1], until: 2, ..Config::PLAIN };
    let full = Config { members: &[0, 1], failovers: 1, grace: 1, retention: 2, ..together };
    let full = Config { loses: [false, true, false], ..full };
    let together = Config { holder: Some(0), ..together };
    holds("together", together, full, &[Believed, GrantedTogether]);
}

#[test]
fn nothing_breaks_if_joint_refreshes_stall() {
    let jointly = Config { holder: Some(0), refreshes: 2, jointly: true, ttls: [2, 1, 1], sends: [3, 1, 0], ..LONG };
    let jointly = Config { until: 3, ..jointly };
    let full = Config { deposes: true, sends: [3, 2, 0], until: 4, ..jointly };
    holds("joint refreshes", jointly, full, &[Believed, KeptTooLate]);
}

#[test]
fn nothing_breaks_if_a_holder_lets_sharers_in() {
    let shared = Config { holder: Some(0), downgrades: true, shares: [false, true, true], waits: true, ..LONG };
    let shared = Config { asks: [1; 3], sends: [2, 1, 1], until: 2, ..shared };
    let full = Config { refreshes: 1, sends: [3, 1, 1], ..shared };
    holds("downgrades", shared, full, &[Believed, Shared]);
}

#[test]
fn nothing_breaks_if_a_downgrade_stalls_until_its_lease_id_is_granted_again() {
    let stalled = Config { downgrades: true, loses: [true, false, false], asks: [1, 0, 0], sends: [4, 0, 0], ..TWO };
    let full = Config { shares: [false, true, false], asks: [1, 1, 0], sends: [4, 1, 0], ..stalled };
    holds("stalled downgrades", stalled, full, &[Believed, DowngradedTooLate]);
}

#[test]
fn nothing_breaks_if_holders_write_values() {
    let values = Config { holder: Some(0), values: 2, sends: [3, 2, 0], ttls: [2, 1, 1], until: 3, ..LONG };
    let values = Config { waits: true, asks: [1, 1, 0], ..values };
    let full = Config { loses: [false, true, false], deposes: true, sends: [4, 3, 0], ..values };
    holds("values", values, full, &[Believed, ValueRead, PutTooLate]);
}

#[test]
fn every_waiter_that_lives_is_granted_the_key() {
    let fair = Config { fair: true, crashes: true, waits: true, sends: [12; 3], in_flight: 9, ..LONG };
    let fair = Config { asks: [1; 3], until: 8, ..fair };
    holds("waiters", fair, Config { ttls: [2, 3, 2], retention: 3, together: true, until: 10, ..fair }, &[]);
}

#[test]
fn no_tick_is_completed_twice_if_requests_stall_and_leases_expire() {
    let stalls = Config { stalls: true, asks: [1, 1, 0], ..Config::SCHEDULE };
    let full = Config { asks: [1; 3], sends: [2; 3], until: 3, ..stalls };
    holds("ticks", stalls, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn no_tick_is_completed_twice_if_replies_are_lost_and_ghosts_come_late() {
    let lost = Config { loses: [true; 3], sends: [3, 2, 0], asks: [1, 1, 0], until: 3, ..Config::SCHEDULE };
    let full = Config { stalls: true, ..lost };
    holds("lost completions", lost, full, &[CompletedAfterExpiry, ResentCompletion, FoundDone]);
}

#[test]
fn no_tick_is_completed_twice_if_runners_die_and_wait_in_the_queue() {
    let waits = Config { waits: true, crashes: true, sends: [2, 3, 0], ..Config::SCHEDULE };
    let full = Config { stalls: true, asks: [2, 1, 0], ..waits };
    holds("waiting runners", waits, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn ticks_complete_in_order_if_an_older_tick_runs_late() {
    let older = Config { ticks: [2, 1, 2], loses: [true; 3], sends: [3, 2, 0], until: 3, ..Config::SCHEDULE };
    let full = Config { until: 4, ..older };
    holds("older ticks", older, full, &[CompletedAfterExpiry, FoundDone]);
}

#[test]
fn a_client_that_does_not_read_the_last_tick_neither_completes_it_again_nor_lowers_it() {
    let blind = Config { reads: false, ticks: [2, 1, 1], asks: [1; 3], sends: [2; 3], until: 3, ..Config::SCHEDULE };
    let full = Config { stalls: true, ..blind };
    holds("clients that do not read", blind, full, &[CompletedAfterExpiry]);
}

#[test]
fn a_reset_allows_one_more_completion_and_a_ghost_does_not_undo_it() {
    let resets = Config { loses: [true; 3], resets: 1, sends: [3, 2, 0], until: 3, ..Config::SCHEDULE };
    let full = Config { stalls: true, ..resets };
    holds("resets", resets, full, &[GhostAfterReset, AllowedByReset, FoundDone]);
}

#[test]
fn a_revoked_lease_completes_no_tick() {
    let revoked =
        Config { revocations: 1, min_hold: 3, loses: [true; 3], sends: [3, 2, 0], until: 2, ..Config::SCHEDULE };
    let full = Config { until: 3, ..revoked };
    holds("revocations", revoked, full, &[EntryRevoked, RefusedByEntry]);
}

#[test]
fn no_deposed_primary_confirms_a_completion() {
    let deposed = Config { deposes: true, loses: [true; 3], sends: [3, 2, 0], until: 3, ..Config::SCHEDULE };
    let full = Config { sends: [4, 2, 0], ..deposed };
    holds("deposed", deposed, full, &[ResentCompletion, FoundDone]);
}

#[test]
fn a_minimum_hold_keeps_the_key_unavailable_whatever_request_comes_late() {
    let minimum = Config { min_hold: 3, refreshes: 1, loses: [true; 3], ..HOLDERS };
    let minimum = Config { asks: [2, 1, 0], sends: [4, 1, 0], ..minimum };
    let full = Config { dismissals: 1, ..minimum };
    holds("minimum hold", minimum, full, &[RefusedByEntry]);
}

#[test]
fn a_minimum_hold_ends_the_belief_of_a_holder_that_another_process_released() {
    let dismissed =
        Config { min_hold: 3, refreshes: 1, jointly: true, alone: false, dismissals: 1, stalls: true, ..HOLDERS };
    let dismissed = Config { sends: [3, 1, 0], ..dismissed };
    let full = Config { waits: true, ..dismissed };
    holds("dismissals", dismissed, full, &[RefusedByEntry]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_its_acquire_is_resent() {
    let maximum = Config { max_hold: 3, refreshes: 1, loses: [true; 3], sends: [4, 1, 0], until: 5, ..HOLDERS };
    let full = Config { asks: [2, 1, 0], until: 4, ..maximum };
    holds("maximum hold", maximum, full, &[RefreshCut, ResentGrantCut]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_it_waits() {
    let waits = Config { max_hold: 2, refreshes: 1, waits: true, stalls: true, sends: [2, 3, 0], ..HOLDERS };
    let full = Config { loses: [true; 3], until: 3, ..waits };
    holds("maximum hold of waiters", waits, full, &[RefreshCut]);
}

#[test]
fn no_holder_believes_past_its_maximum_hold_if_the_clocks_of_members_differ_by_the_grace() {
    let members =
        Config { max_hold: 3, grace: 1, members: &[0, 1], failovers: 2, refreshes: 1, sends: [3, 1, 0], ..HOLDERS };
    let members = Config { loses: [true; 3], until: 5, ..members };
    let full = Config { stalls: true, until: 3, ..members };
    holds("maximum hold and failovers", members, full, &[RefreshCut, ResentGrantCut]);
}
