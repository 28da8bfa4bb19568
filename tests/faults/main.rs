//! The library on replica sets with faults. Each test has a set of its own. A push judges counts, orders and
//! outcomes. What judges seconds or holds thousands of leases is of the night.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod deposed;
mod durable;
mod failover;
mod locked;
mod lost_replies;
mod matrix;
mod recovery;
mod round_trip;
mod slow_queries;
mod unreachable;
mod watch;

use std::process::ExitCode;

use mongoseal::{Builder, Mongoseal};
use mongoseal_test_support::{Turn, by_length, millis, run_trials, secs, trials};

/// A handle that has connected.
async fn connect(builder: Builder, uri: String) -> Mongoseal {
    builder.connect(uri).await.unwrap()
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting =>
        deposed::a_deposed_primary_confirms_no_verb,
        failover::a_handle_starts_with_a_member_down_and_a_collection_without_its_index,
        watch::tokens_grow_a_lease_lives_on_and_no_grant_is_left_out_over_step_down_and_kill_of_the_primary,
        watch::no_event_is_left_out_over_kill_and_restart_of_the_only_member,
        watch::a_stream_that_an_election_ends_is_opened_again_where_it_was,
        watch::lost_history_is_reported_as_missed_and_followed_by_what_has_changed,
    ];
    // Their long forms are of the night.
    tests.extend(trials![by_length(Turn::Waiting, Turn::Night) =>
        durable::a_grant_is_there_after_its_only_member_was_killed_right_after_it_was_acknowledged,
        matrix::whatever_becomes_of_a_reply_each_verb_ends_in_time_with_one_token_or_says_that_it_is_not_known,
    ]);
    tests.extend(trials![Turn::Night =>
        failover::a_failover_to_a_member_whose_clock_is_ahead_grants_no_key_before_its_holder_has_stopped,
        locked::locked_records_of_hundreds_of_leases_cost_no_other_lease_and_delay_no_request_of_another_key,
        locked::acquires_of_locked_keys_through_a_pool_of_ten_cost_the_handle_none_of_its_leases,
        locked::thousands_of_leases_outlast_an_outage_of_two_fifths_of_their_ttl,
        locked::thousands_of_leases_outlast_a_failover,
        lost_replies::grants_go_on_while_replies_are_lost_and_sixty_callers_drop_their_acquires,
        recovery::a_refresh_works_again_and_no_lease_of_thirty_seconds_is_lost_after_a_fault_of_any_one_member,
        round_trip::a_constant_round_trip_below_two_fifths_of_the_ttl_neither_loses_a_lease_nor_puts_it_at_risk,
        round_trip::a_burst_of_acquires_or_of_reads_does_not_keep_a_refresh_waiting,
        slow_queries::leases_on_a_client_of_their_own_outlive_slow_queries,
        unreachable::every_call_on_a_dead_network_ends_with_the_operation_timeout,
        unreachable::the_pool_grows_within_ten_seconds_although_two_connections_fell_silent_while_they_opened,
        watch::a_stream_that_is_silent_for_20_seconds_is_opened_again_where_it_was,
        watch::no_event_is_left_out_while_the_watcher_cannot_reach_the_server_for_20_seconds,
    ]);
    run_trials(tests)
}
