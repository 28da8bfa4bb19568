//! Reads the processor time of processes.

use std::{fs, time::Duration};

use mongoseal_test_support::ReplicaSet;

/// By this process.
pub(crate) fn of_client() -> Duration {
    used("self").expect("the system tells of this process")
}

/// By all members of a set; nothing where they were started elsewhere.
pub(crate) fn of(set: &ReplicaSet) -> Option<Duration> {
    set.process_ids()
        .into_iter()
        .map(|process| used(&process.to_string()))
        .sum::<Option<Duration>>()
        .filter(|used| !used.is_zero())
}

/// By one process, on its own and on the system's behalf.
fn used(process: &str) -> Option<Duration> {
    // Fields 14 and 15 in hundredths of a second: proc_pid_stat(5). The second, in parentheses, may hold
    // spaces.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}
