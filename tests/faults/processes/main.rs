//! Waiters and holders in processes of their own, which are killed, stopped and aborted, return from `main`, or whose
//! clocks jump.
//!
//! The test process starts itself again as each of them, so this file has its own `main`. A push judges orders and outcomes,
//! and the night seconds.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod blocking;
mod clocks;
mod crew;
mod endings;
mod failover;
mod fleet;
mod killed;
mod order;
mod schedule;
mod stopped;
mod ticker;
mod watchdog;
mod words;
mod worker;

use std::process::ExitCode;

use mongoseal_test_support::{TestDatabase, Turn, by_length, eventually, millis, run_trials, secs, trials};

/// A database of a test's own, for a test that is not asynchronous.
fn database(name: &str) -> TestDatabase {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(TestDatabase::new(name))
}

fn main() -> ExitCode {
    let started_again: [(bool, fn()); 4] = [
        (worker::is_wanted(), worker::main),
        (blocking::is_wanted(), blocking::main),
        (clocks::is_wanted(), clocks::main),
        (watchdog::is_wanted(), watchdog::main),
    ];
    if let Some((_, main)) = started_again.into_iter().find(|(is_wanted, _)| *is_wanted) {
        main();
        return ExitCode::SUCCESS;
    }
    // Their strict forms, which judge seconds, are of the night.
    let mut tests = trials![by_length(Turn::Waiting, Turn::Night) =>
        order::waiters_of_three_processes_are_granted_the_key_in_the_order_they_came,
        killed::a_waiter_killed_at_the_head_of_the_queue_costs_the_next_its_offer_at_most,
        killed::a_waiter_killed_in_the_middle_of_the_queue_costs_nobody_more_than_its_offer,
        killed::a_waiter_killed_when_it_was_just_granted_costs_the_next_a_ttl_and_the_grace,
        killed::a_killed_holder_s_key_goes_down_the_queue_when_its_time_is_over,
        stopped::a_waiter_stopped_past_its_offer_does_not_believe_and_waits_on,
        stopped::a_key_handed_to_a_stopped_waiter_is_believed_no_longer_than_its_offer,
        schedule::a_tick_whose_runner_is_killed_between_its_work_and_its_completion_runs_again,
        endings::a_shut_down_handle_s_waiters_and_lease_make_way_at_once,
    ];
    tests.extend(trials![by_length(Turn::Waiting, Turn::Night), fn =>
        clocks::a_suspended_machine_wakes_up_without_its_lease,
    ]);
    tests.extend(trials![Turn::Waiting, fn =>
        clocks::a_client_whose_wall_clock_jumps_by_an_hour_notices_nothing,
        blocking::a_fenced_write_takes_a_blocking_lease,
        blocking::a_process_ends_at_once_when_main_returns_or_panics_and_when_it_exits,
        blocking::a_process_that_shuts_its_handle_down_leaves_its_key_free,
        blocking::a_process_that_could_not_connect_ends_without_a_panic_of_the_driver,
        watchdog::work_that_blocks_the_runtime_past_the_deadline_is_called_on_once_after_the_slack,
        watchdog::without_work_a_blocked_runtime_is_noticed_because_nobody_ends_the_lease,
        watchdog::a_thread_that_is_blocked_while_the_runtime_goes_on_is_noticed_too,
        watchdog::by_default_the_process_is_aborted_and_says_why,
        watchdog::work_that_never_yields_is_told_of_the_deadline_by_the_token_that_it_looks_at,
    ]);
    tests.extend(trials![Turn::Night, fn =>
        blocking::a_lease_survives_a_caller_that_computes_without_a_pause,
        watchdog::a_lease_is_refreshed_while_the_thread_that_it_was_granted_on_is_blocked,
        watchdog::a_lease_that_is_released_and_work_that_stops_with_its_lease_are_left_alone,
    ]);
    tests.extend(trials![Turn::Night =>
        endings::a_wait_that_ends_in_the_instant_of_the_hand_over_leaves_nothing_held,
        endings::a_wait_dropped_in_the_instant_of_the_hand_over_leaves_nothing_held,
        order::a_thousand_waiters_of_four_processes_are_all_served_in_their_order,
        failover::all_are_served_while_the_primary_steps_down_in_the_middle_of_hand_overs,
        schedule::eight_processes_complete_each_tick_exactly_once_and_run_it_once,
        schedule::each_tick_is_completed_exactly_once_while_runners_are_killed_and_stopped,
        schedule::each_tick_is_completed_exactly_once_while_the_primary_steps_down,
        schedule::a_tick_that_no_process_waits_for_is_completed_once_or_skipped,
    ]);
    run_trials(tests)
}
