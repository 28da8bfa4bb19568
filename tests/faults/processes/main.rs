//! Processes that end while they hold a lease, that are stopped or aborted, or whose machine is suspended.
//!
//! The test process starts itself again as each of them, so this file has its own `main`. A push judges orders and outcomes,
//! and the night seconds. The fault runner kills and stops processes, and judges what they report.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod blocking;
mod clocks;
mod stopped;
mod watchdog;

use std::process::ExitCode;

use mongoseal_test_support::{TestDatabase, Turn, by_length, millis, run_trials, secs, trials};

/// A database of a test's own, for a test that is not asynchronous.
fn database(name: &str) -> TestDatabase {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(TestDatabase::new(name))
}

fn main() -> ExitCode {
    let started_again: [(bool, fn()); 4] = [
        (blocking::is_wanted(), blocking::main),
        (clocks::is_wanted(), clocks::main),
        (stopped::is_wanted(), stopped::main),
        (watchdog::is_wanted(), watchdog::main),
    ];
    if let Some((_, main)) = started_again.into_iter().find(|(is_wanted, _)| *is_wanted) {
        main();
        return ExitCode::SUCCESS;
    }
    let mut tests = trials![Turn::Waiting, fn =>
        blocking::a_fenced_write_takes_a_blocking_lease,
        blocking::a_process_ends_at_once_when_main_returns_or_panics_and_when_it_exits,
        blocking::a_process_that_shuts_its_handle_down_leaves_its_key_free,
        blocking::a_process_that_could_not_connect_ends_without_a_panic_of_the_driver,
        stopped::a_holder_that_was_stopped_past_its_ttl_finds_its_lease_lost_when_it_continues,
        watchdog::work_that_blocks_the_runtime_past_the_deadline_is_called_on_once_after_the_slack,
        watchdog::without_work_a_blocked_runtime_is_noticed_because_nobody_ends_the_lease,
        watchdog::a_thread_that_is_blocked_while_the_runtime_goes_on_is_noticed_too,
        watchdog::by_default_the_process_is_aborted_and_says_why,
        watchdog::a_lease_is_refreshed_while_the_thread_that_it_was_granted_on_is_blocked,
        watchdog::work_that_never_yields_is_told_of_the_deadline_by_the_token_that_it_looks_at,
    ];
    // Its strict form, which judges seconds, is of the night.
    tests.extend(trials![by_length(Turn::Waiting, Turn::Night), fn =>
        clocks::a_suspended_machine_wakes_up_without_its_lease,
    ]);
    tests.extend(trials![Turn::Night, fn =>
        watchdog::a_lease_that_is_released_and_work_that_stops_with_its_lease_are_left_alone,
    ]);
    run_trials(tests)
}
