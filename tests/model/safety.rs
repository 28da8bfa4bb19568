//! With all rules in place no promise is broken.

use crate::{config::Config, explore};

/// Explores a configuration, in which nothing may be broken and all must be reached that is named.
fn holds(name: &str, config: Config, reached: &[&str]) {
    let found = explore(name, config);
    let mut names: Vec<&str> = found.keys().copied().collect();
    names.sort_unstable();
    let mut reached = reached.to_vec();
    reached.sort_unstable();
    assert_eq!(names, reached, "{name}: {found:#?}");
}

const BELIEVES: &str = "somebody believes";
const AGAIN: &str = "a collected record is made again, and believed in";

#[test]
fn nothing_breaks_where_requests_stall_and_records_are_collected() {
    holds("plain", Config::PLAIN, &[BELIEVES, AGAIN]);
}

#[test]
fn every_waiter_that_lives_is_granted_the_key() {
    let fair = Config { fair: true, waits: true, until: 8, sends: [12; 3], in_flight: 9, ..Config::PLAIN };
    holds("fair", fair, &[]);
}
