//! With all rules, the model finds no violated promise.
//!
//! By default it explores for some seconds. `MONGOSEAL_MODEL=full cargo test --workspace --test model` explores
//! 29 million states, in minutes.

use crate::{config::Config, explore};

const BELIEVES: &str = "somebody believes";
const AGAIN: &str = "a collected record is made again, and believed in";
const EARLIER: &str = "an earlier refresh is confirmed while a later one is awaited";
const GHOST: &str = "an abandoned attempt is granted the key after a retry is refused";
const AHEAD: &str = "a clock that is ahead grants the key";
const TOGETHER: &str = "one command grants the key and queues a waiter";
const TOO_LATE: &str = "a stalled joint refresh meets another's lease";
const STALLED: &str = "a stalled downgrade meets a later grant";
const VALUE_READ: &str = "a holder reads the value of an earlier one";
const VALUE_LATE: &str = "a stalled write of a value meets a later one";
const SHARED: &str = "a downgraded holder and a sharer believe";

/// Explores a configuration, or where there is time another, in which nothing may be broken and all must be
/// reached that is named.
fn holds(name: &str, config: Config, full: Config, reached: &[&str]) {
    let is_full = std::env::var("MONGOSEAL_MODEL").is_ok_and(|how_much| how_much == "full");
    let found = explore(name, if is_full { full } else { config });
    let may_be_reached =
        [BELIEVES, AGAIN, EARLIER, GHOST, AHEAD, TOGETHER, TOO_LATE, STALLED, SHARED, VALUE_READ, VALUE_LATE];
    let broken: Vec<&str> = found.keys().copied().filter(|name| !may_be_reached.contains(name)).collect();
    assert!(broken.is_empty(), "{name}: {broken:?} in {found:#?}");
    assert!(reached.iter().all(|name| found.contains_key(name)), "{name}: only {found:#?}");
}

/// Two clients, of whom the first sends another request, too.
const TWO: Config = Config { asks: [1, 1, 0], sends: [2, 1, 0], ..Config::PLAIN };
/// The same with more time.
const LONG: Config = Config { ttls: [2; 3], retention: 2, until: 6, ..TWO };

#[test]
fn nothing_breaks_where_requests_stall_and_records_are_collected() {
    let full = Config { ttls: [2; 3], retention: 2, until: 6, ..Config::PLAIN };
    holds("stalls", Config::PLAIN, full, &[AGAIN, BELIEVES]);
}

#[test]
fn nothing_breaks_where_leases_last_for_different_times_and_the_store_waits_longer() {
    let mixed = Config { ttls: [1, 3, 1], grace: 1, retention: 4, until: 9, ..TWO };
    holds("grace", mixed, Config { sends: [2, 2, 0], until: 10, ..mixed }, &[AGAIN, BELIEVES]);
}

#[test]
fn nothing_breaks_where_replies_are_lost_and_ghosts_come_late() {
    let lost = Config { loses: [true; 3], crashes: true, asks: [1, 1, 0], sends: [2, 2, 0], ..Config::PLAIN };
    let full = Config { asks: [2, 1, 0], sends: [3, 1, 0], ..lost };
    holds("losses", lost, full, &[AGAIN, BELIEVES]);
}

#[test]
fn nothing_breaks_where_holders_refresh_and_write_after_a_pause() {
    let writes = Config { refreshes: 1, writes: true, ..TWO };
    holds("writes", writes, Config { sends: [3, 2, 0], until: 4, ..writes }, &[AGAIN, BELIEVES]);
}

#[test]
fn nothing_breaks_where_a_primary_is_deposed_and_does_not_know() {
    let deposed = Config { deposes: true, refreshes: 1, ..TWO };
    holds("deposed", deposed, Config { deposes: true, refreshes: 1, sends: [3, 1, 0], ..LONG }, &[AGAIN, BELIEVES]);
}

#[test]
fn tokens_are_in_order_where_clocks_jump() {
    let jumpy = Config { jumps_to: &[-6, 0], jumps: 2, ticks: true, ttls: [2; 3], retention: 2, ..TWO };
    let jumpy = Config { sends: [1, 1, 0], ..jumpy };
    holds("jumps", jumpy, Config { sends: [2, 1, 0], until: 4, ..jumpy }, &[AGAIN, BELIEVES]);
}

#[test]
fn tokens_are_in_order_where_clocks_jump_by_less_than_the_retention_exceeds_the_ttl() {
    let jumpy = Config { jumps_to: &[-1, 0], jumps: 2, ttls: [2; 3], retention: 3, until: 7, ..TWO };
    let jumpy = Config { sends: [1, 1, 0], ..jumpy };
    let full = Config { jumps_to: &[-1, 0, 1], retention: 4, until: 8, ..jumpy };
    holds("small jumps", jumpy, full, &[AGAIN, BELIEVES]);
}

#[test]
fn nothing_breaks_where_clients_wait() {
    let waits = Config { waits: true, asks: [1, 1, 1], sends: [2, 1, 1], until: 1, ..Config::PLAIN };
    let full = Config { loses: [true; 3], until: 2, ..waits };
    holds("waits", waits, full, &[BELIEVES]);
}

#[test]
fn nothing_breaks_if_attempts_to_refresh_overlap() {
    let overlap = Config { holder: Some(0), refreshes: 2, sends: [3, 1, 0], until: 3, ..LONG };
    let full = Config { refreshes: 3, members: &[0, 1], failovers: 2, grace: 1, sends: [4, 1, 0], ..overlap };
    holds("overlaps", overlap, full, &[BELIEVES, EARLIER]);
}

#[test]
fn nothing_breaks_if_a_ghost_executes_between_a_retry_and_the_next_acquire() {
    let retries = Config { holder: Some(1), loses: [true, false, false], asks: [1, 2, 0], sends: [2, 3, 0], ..LONG };
    let full = Config { sends: [3, 3, 0], until: 3, ..retries };
    holds("retries", Config { until: 2, ..retries }, full, &[BELIEVES, GHOST]);
}

#[test]
fn nothing_breaks_if_the_clocks_of_members_differ_by_at_most_the_grace() {
    let members = Config { members: &[0, 1], failovers: 2, grace: 1, retention: 2, until: 5, ..TWO };
    let members = Config { holder: Some(0), refreshes: 1, ..members };
    let full = Config { members: &[0, 1, 2], grace: 2, retention: 3, until: 8, ..members };
    holds("members", members, full, &[BELIEVES, AGAIN, AHEAD]);
}

#[test]
fn nothing_breaks_if_waiters_share_a_command() {
    let together = Config { waits: true, together: true, sends: [2, 1, 1], until: 2, ..Config::PLAIN };
    let full = Config { members: &[0, 1], failovers: 1, grace: 1, retention: 2, ..together };
    let full = Config { loses: [false, true, false], ..full };
    let together = Config { holder: Some(0), ..together };
    holds("together", together, full, &[BELIEVES, TOGETHER]);
}

#[test]
fn nothing_breaks_if_joint_refreshes_stall() {
    let jointly = Config { holder: Some(0), refreshes: 2, jointly: true, ttls: [2, 1, 1], sends: [3, 1, 0], ..LONG };
    let jointly = Config { until: 3, ..jointly };
    let full = Config { deposes: true, sends: [3, 2, 0], until: 4, ..jointly };
    holds("joint refreshes", jointly, full, &[BELIEVES, TOO_LATE]);
}

#[test]
fn nothing_breaks_if_a_holder_lets_sharers_in() {
    let shared = Config { holder: Some(0), downgrades: true, shares: [false, true, true], waits: true, ..LONG };
    let shared = Config { asks: [1; 3], sends: [2, 1, 1], until: 2, ..shared };
    let full = Config { refreshes: 1, sends: [3, 1, 1], ..shared };
    holds("downgrades", shared, full, &[BELIEVES, SHARED]);
}

#[test]
fn nothing_breaks_if_a_downgrade_stalls_until_its_lease_id_is_granted_again() {
    let stalled = Config { downgrades: true, loses: [true, false, false], asks: [1, 0, 0], sends: [4, 0, 0], ..TWO };
    let full = Config { shares: [false, true, false], asks: [1, 1, 0], sends: [4, 1, 0], ..stalled };
    holds("stalled downgrades", stalled, full, &[BELIEVES, STALLED]);
}

#[test]
fn nothing_breaks_if_holders_write_values() {
    let values = Config { holder: Some(0), values: 2, sends: [3, 2, 0], ttls: [2, 1, 1], until: 3, ..LONG };
    let values = Config { waits: true, asks: [1, 1, 0], ..values };
    let full = Config { loses: [false, true, false], deposes: true, sends: [4, 3, 0], ..values };
    holds("values", values, full, &[BELIEVES, VALUE_READ, VALUE_LATE]);
}

#[test]
fn every_waiter_that_lives_is_granted_the_key() {
    let fair = Config { fair: true, crashes: true, waits: true, sends: [12; 3], in_flight: 9, ..LONG };
    let fair = Config { asks: [1; 3], until: 8, ..fair };
    holds("waiters", fair, Config { ttls: [2, 3, 2], retention: 3, together: true, until: 10, ..fair }, &[]);
}
