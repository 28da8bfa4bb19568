//! Tests of the fault runner `tests/chaos/src`: it finds no fault in the library, and finds each fault that
//! is built in on purpose. `docs/internals/chaos.md` describes the runner. A push runs it for a minute, and two of the
//! sabotages that `.ci/night` names.
//!
//! Each test has three servers of its own. Runs that break nothing run alone, because some rules judge times. Sabotages run
//! side by side, but for those that such a rule catches.

mod histories;

use std::{
    process::{Command, ExitCode},
    sync::{PoisonError, RwLock},
};

use libtest_mimic::{Arguments, Completion, Trial};
use mongoseal_test_support::{Redis, find_libfaketime};

const RUNNER: &str = env!("CARGO_BIN_EXE_chaos");

/// How many sabotages run side by side. Each keeps two thirds of a processor busy.
const SIDE_BY_SIDE: usize = 2;

/// The invariants by which a sabotage is caught only if the machine has time for it.
const NEED_TIME: [&str; 6] = ["I12", "I13", "I14", "I15", "I17", "I22"];

/// The runs of the library as it is, which break nothing: their options, and how many or more of what these figures count they
/// have seen.
const RUNS: [(&str, &str, &[(&str, usize)]); 11] = [
    // It has all faults, and judges nothing that goes by seconds.
    (PUSHED, "--minutes 1 --without-times", &[("faults", 1), ("attempts", 1), ("grants", 1)]),
    // Without libfaketime the clocks of the members do not differ, and the run says so.
    (
        "a_run_of_three_minutes_breaks_nothing",
        "--minutes 3 --clock-offsets",
        &[
            ("faults", 20),
            // The kinds of faults.
            (" of", 8),
            ("failovers", 1),
            ("attempts", 5_000),
            ("in doubt", 1),
            ("grants", 500),
            ("handed over", 1),
            ("losses", 1),
            ("taken over", 1),
            ("fenced", 1),
            ("re-creations", 100),
            ("ticks", 50),
            ("watched", 100),
            ("not opened", 100),
        ],
    ),
    // In one run, because the start and the end of a run take 20 seconds.
    (
        "locked_records_delays_outages_and_refusals_cost_no_other_key_and_no_wait",
        "--minutes 2 --only lock-record,latency,outage,refuse",
        &[("beside locks", 200), ("delayed", 10), ("outlasted", 3), ("refuse", 3)],
    ),
    // On servers with access control.
    ("failing_logins_end_no_wait_and_no_lease_without_a_cause", "--minutes 0.5 --only login", &[("faults", 3)]),
    // The server ends no transaction by itself within such a run.
    ("refused_commits_leave_nothing_locked", "--minutes 0.4 --only refuse-commits", &[("went on", 3)]),
    // Leases are judged by this only if no other fault concerns them, so the run has no other.
    (
        "blocked_runtimes_cost_no_lease_of_a_handle_with_a_thread",
        "--minutes 0.7 --only block-client",
        &[("blocked", 3)],
    ),
    // What `.ci/on-7` runs. It has few clients, because MongoDB 7 runs under Wine, where it is slow. Elsewhere the run of three
    // minutes has these faults, too.
    (
        "failovers_break_nothing",
        "--minutes 1 --few-clients --only kill,pause,partition,minority,step-down,step-up",
        &[],
    ),
    // Without the faults that lose confirmed writes.
    (
        "a_run_on_redis_without_lost_writes_breaks_nothing",
        "--redis --minutes 0.3 --only kill,pause,partition,minority,deaf-client,promote,swallow-reply,kill-client,\
         pause-client,kill-messages,script-flush,drop,latency,outage",
        &[("faults", 5), ("attempts", 1_000), ("grants", 150)],
    ),
    (
        "two_primaries_of_redis_repeat_no_token_if_clocks_agree",
        "--redis --replicas 0 --minutes 0.25 \
         --only failover,split-brain,promote,kill,pause,kill-client,pause-client,swallow-reply",
        &[],
    ),
    (
        "failovers_of_redis_repeat_no_token_if_they_take_longer_than_clocks_differ",
        "--redis --minutes 0.4 --clock-offsets --only failover,pause-client",
        &[("failovers", 2)],
    ),
    // The clock of the first primary is eight seconds ahead, so the other one issues smaller tokens meanwhile.
    (
        "two_primaries_of_redis_whose_clocks_differ_are_counted",
        "--redis --replicas 0 --minutes 0.4 --only split-brain --clock-offset 8",
        &[("tokens, and", 1)],
    ),
];

/// The run of a push.
const PUSHED: &str = "a_run_of_a_minute_breaks_no_promise_on_a_machine_of_any_speed";

/// The sabotages, the faults that show each soonest, and the invariants that catch it. The log of the servers shows some of
/// them (I27). The others change what a client believes, when it does something, or who does what another may do: the log has
/// none of that.
const SABOTAGES: [(&str, &str, &[&str]); 30] = [
    ("w1", "minority", &["I27"]),
    ("version-only", "stall-collection", &["I27"]),
    ("no-op-success", "stall-collection", &["I1"]),
    ("ignore-write-concern-error", "minority", &["I27"]),
    ("late-reply", "deaf-client", &["I4", "I5"]),
    ("lower-expiry", "delay", &["I27"]),
    ("client-clock", "swallow-reply", &["I4", "I5", "I9"]),
    ("release-by-key", "swallow-reply", &["I4", "I5", "I9"]),
    ("fast-grant", "swallow-reply", &["I27"]),
    ("no-fence", "swallow-reply", &["I27"]),
    ("shared-fate", "lock-record", &["I12"]),
    ("grant-by-read", "lock-record", &["I4", "I5"]),
    ("short-attempts", "latency", &["I13"]),
    ("impatient", "outage", &["I14"]),
    ("no-thread", "block-client", &["I15"]),
    ("own-streams", "kill-client", &["I18"]),
    ("no-own-wait", "kill-client", &["I16"]),
    ("unsent-batch", "kill-client", &["I4", "I5"]),
    ("slow-close", "kill-client", &["I17"]),
    ("once-unchecked", "kill-client", &["I19"]),
    ("early-put", "minority", &["I26"]),
    ("overload-refused", "refuse", &["I14"]),
    ("login-refused", "login", &["I14"]),
    ("checks-skipped", "refuse-checks", &["I25"]),
    ("transaction-left", "refuse-commits", &["I24"]),
    ("shared-refreshes", "locked-records", &["I12", "I20"]),
    ("overdrawn-pool", "locked-records", &["I12", "I20"]),
    ("untold-hold", "lock-record", &["I22"]),
    ("unknown-work", "lock-record", &["I23"]),
    ("lost-position", "split-client,kill-stream", &["I21"]),
];

/// The same on Redis.
const ON_REDIS: [(&str, &str, &[&str]); 4] = [
    ("blind-swap", "kill-client", &["I1", "I2", "I4", "I5", "I9"]),
    ("short-keep", "kill-client", &["I4", "I5", "I9"]),
    ("lost-swap", "kill,partition,minority", &["I4", "I5", "I9"]),
    ("client-clock", "kill-client", &["I4", "I5", "I9"]),
];

/// Two hold a key at once if the clocks of members differ and leases have no grace. A server whose clock is ahead ends the
/// lease before its holder does: another one holds the key meanwhile (I4), a read does not show the holder (I5), or the holder
/// finds its lease lost (I9).
const BETWEEN_CLOCKS: [(&str, &str, &[&str]); 1] = [("no-grace", "step-down,step-up", &["I4", "I5", "I9"])];

/// A run of the library as it is holds it alone, sabotages share it.
static MACHINE: RwLock<()> = RwLock::new(());

/// What a run printed, and how it ended.
fn run(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(RUNNER).args(arguments).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    println!("chaos {}\n{said}", arguments.join(" "));
    (said, output.status.code())
}

/// The number behind the first such words of what was said.
fn figure(said: &str, name: &str) -> usize {
    let (_, rest) = said.split_once(&format!("{name} ")).expect("a run tells its figures");
    rest.trim_start()
        .split([' ', ',', '\n'])
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a figure is a number")
}

/// A run of the library as it is breaks nothing, and has seen so many or more of what these figures count.
fn breaks_nothing(asked: &str, seen: &[(&str, usize)]) {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let (said, code) = run(&[&asked.split(' ').collect::<Vec<_>>()[..], &["--seed", "7"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for (name, least) in seen {
        let found = figure(&said, name);
        assert!(found >= *least, "{found} {name} of {least}");
    }
}

/// A run of a library that is broken so ends by one of these invariants.
fn is_caught(name: &str, only: &str, by: &[&str], more: Option<&str>) {
    let kept = std::env::temp_dir().join(format!("chaos-{name}-{}.jsonl", std::process::id()));
    let file = kept.to_str().expect("the directory has a name");
    let (minutes, seed) = match name {
        // The log is judged when the run is over.
        _ if by == ["I27"] => ("1", "3"),
        // It needs a failover, from a member with a clock that is behind to one with a clock ahead, within a fraction of a
        // second of an expiry: two of three clocks are ahead by this seed.
        "no-grace" => ("15", "13"),
        // It is seen when the run is over.
        "slow-close" => ("0.3", "3"),
        _ => ("6", "3"),
    };
    let is_alone = by.iter().any(|one| NEED_TIME.contains(one));
    let _alone = is_alone.then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner));
    let _beside_others = (!is_alone).then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner));
    let (broken, invariants) = (["--sabotage", name, "--only", only], by.join(","));
    let asked = ["--minutes", minutes, "--seed", seed, "--caught-by", &invariants, "--json", file];
    let (said, code) = run(&[&asked, &broken[..], more.as_slice()].concat());
    assert_eq!(code, Some(1), "{name}: {said}");
    assert!(histories::broken(&said).iter().any(|one| by.contains(one)), "{name} by {by:?}: {said}");
    // A history that was kept is judged alike.
    let (again, code) = run(&["--judge", file]);
    std::fs::remove_file(&kept).unwrap();
    assert_eq!(code, Some(1), "{name}: {again}");
    assert_eq!(figure(&again, "violations"), figure(&said, "violations"));
}

/// Why a run with these options cannot be, if so.
fn missing(options: &str) -> Option<String> {
    let without_clocks = || options.contains("--clock-").then(|| find_libfaketime().err()).flatten();
    let without_redis = || options.contains("--redis").then(Redis::missing).flatten();
    without_clocks().or_else(without_redis)
}

/// A test that is ignored if something is missing for these options, with the reason.
fn test(name: &str, options: &'static str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = missing(options) {
            return Ok(Completion::ignored_with(reason));
        }
        run();
        Ok(Completion::Completed)
    })
}

fn main() -> ExitCode {
    let is_7 = std::env::var("MONGOSEAL_TEST_SERVER").is_ok_and(|version| version == "7");
    let runs = RUNS.into_iter().filter(|(name, ..)| is_7 || *name != "failovers_break_nothing");
    let mut tests: Vec<_> = runs
        .map(|(name, asked, seen)| {
            let needs = if asked.contains("--redis") { asked } else { "" };
            test(name, needs, move || breaks_nothing(asked, seen)).with_ignored_flag(name != PUSHED)
        })
        .collect();
    let tables: [(&[_], _); 3] =
        [(&SABOTAGES, None), (&ON_REDIS, Some("--redis")), (&BETWEEN_CLOCKS, Some("--clock-offsets"))];
    for (table, more) in tables {
        let place = if more == Some("--redis") { "_on_redis" } else { "" };
        tests.extend(table.iter().map(|&(name, only, by)| {
            let caught = move || is_caught(name, only, by, more);
            test(&format!("{name}{place}_is_caught"), more.unwrap_or_default(), caught).with_ignored_flag(true)
        }));
    }
    tests.extend(histories::TESTS.map(|(name, run)| test(name, "", run)));
    let arguments = Arguments { test_threads: Some(SIDE_BY_SIDE), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}
