//! The runner of `examples/chaos`: it finds nothing in the library, and something in each that is broken
//! on purpose. `docs/chaos.md` says what it does.
//!
//! The tests run one at a time: each has three servers of its own.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
    sync::LazyLock,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongoseal_test_support::{built, find_libfaketime};
use serde_json::{Value, json};

static RUNNER: LazyLock<PathBuf> = LazyLock::new(|| built("chaos"));

/// What a run printed, and how it ended.
fn run(arguments: &[&str]) -> Result<(String, Option<i32>), Failed> {
    let output = Command::new(&*RUNNER).args(arguments).output()?;
    let said = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    println!("chaos {}\n{said}", arguments.join(" "));
    Ok((said, output.status.code()))
}

/// The number at the beginning of a line of what was said.
fn figure(said: &str, name: &str) -> Result<usize, Failed> {
    let line = said.lines().find_map(|line| line.strip_prefix(name)).ok_or("a run tells its figures")?;
    let number = line.trim_start().split([' ', ',']).next().unwrap_or_default();
    Ok(number.parse()?)
}

/// Without libfaketime the clocks of the members do not differ, and the run says so.
fn a_run_of_two_minutes_breaks_nothing() -> Result<(), Failed> {
    let (said, code) = run(&["--minutes", "2", "--seed", "7", "--clock-offsets"])?;
    assert_eq!(code, Some(0), "{said}");
    let kinds = said.split(" of ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let figures = [("faults", 20), ("attempts", 5_000), ("grants", 500), ("re-creations", 100)]
        .map(|(name, least)| figure(&said, name).map(|found| (name, found, least)));
    for figure in figures {
        let (name, found, least) = figure?;
        assert!(found >= least, "{found} {name} of {least}");
    }
    assert!(kinds.parse::<usize>()? >= 8, "{kinds} kinds of faults");
    Ok(())
}

fn locked_records_and_delays_cost_other_keys_and_leases_nothing() -> Result<(), Failed> {
    let (said, code) = run(&["--minutes", "1", "--seed", "7", "--only", "lock-record,latency"])?;
    assert_eq!(code, Some(0), "{said}");
    for (name, least) in [("beside locks", 200), ("delayed", 10)] {
        let found = figure(&said, name)?;
        assert!(found >= least, "{found} {name} of {least}");
    }
    Ok(())
}

fn waits_outlast_outages() -> Result<(), Failed> {
    let (said, code) = run(&["--minutes", "1", "--seed", "7", "--only", "outage"])?;
    assert_eq!(code, Some(0), "{said}");
    let found = figure(&said, "outlasted")?;
    assert!(found >= 3, "{found} outlasted");
    Ok(())
}

/// Longer than a waiter keeps its place, and than a call may take.
fn waits_outlast_an_outage_of_a_quarter_of_a_minute() -> Result<(), Failed> {
    let (said, code) = run(&["--minutes", "1", "--seed", "7", "--only", "outage", "--outage", "15"])?;
    assert_eq!(code, Some(0), "{said}");
    let found = figure(&said, "outlasted")?;
    assert!(found >= 3, "{found} outlasted");
    Ok(())
}

fn blocked_runtimes_cost_no_lease_of_a_handle_with_a_thread() -> Result<(), Failed> {
    let (said, code) = run(&["--minutes", "0.7", "--seed", "7", "--only", "block-client"])?;
    assert_eq!(code, Some(0), "{said}");
    let found = figure(&said, "blocked")?;
    assert!(found >= 3, "{found} kept");
    Ok(())
}

/// Two hold a key at once if the clocks of members differ and leases have no grace.
fn no_grace_is_caught() -> Result<Completion, Failed> {
    if let Err(reason) = find_libfaketime() {
        return Ok(Completion::ignored_with(reason));
    }
    // A server whose clock is ahead ends the lease before its holder does: another one holds the key meanwhile (I4), a read
    // does not show the holder (I5), or the holder is told so (I9).
    is_caught("no-grace", "step-down,step-up", &["I4", "I5", "I9"], &["--clock-offsets"])?;
    Ok(Completion::Completed)
}

/// A run of a library that is broken so fails by one of these invariants.
fn is_caught(name: &str, only: &str, by: &[&str], more: &[&str]) -> Result<(), Failed> {
    let kept = std::env::temp_dir().join(format!("chaos-{name}-{}.jsonl", std::process::id()));
    let file = kept.to_str().ok_or("the directory has a name")?;
    // A run ends when the sabotage is caught. Without grace it needs a failover, from a member with a clock that is behind to
    // one with a clock ahead, within a fraction of a second of an expiry: two of three clocks are ahead by seed 13.
    let (minutes, seed) = match name {
        "no-grace" => ("6", "13"),
        // It is seen when the run is over.
        "slow-close" => ("0.3", "3"),
        _ => ("2", "3"),
    };
    let asked = ["--minutes", minutes, "--seed", seed, "--sabotage", name, "--only", only, "--json", file];
    let (said, code) = run(&[&asked, more].concat())?;
    assert_eq!(code, Some(1), "{name}: {said}");
    let invariants: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("  I")?.split(' ').next())
        .map(|no| format!("I{no}"))
        .collect();
    assert!(invariants.iter().any(|one| by.contains(&one.as_str())), "{name} by {by:?}: {said}");
    // A history that was kept is judged alike.
    let (again, code) = run(&["--judge", file])?;
    std::fs::remove_file(&kept)?;
    assert_eq!(code, Some(1), "{name}: {again}");
    assert_eq!(figure(&again, "violations")?, figure(&said, "violations")?);
    Ok(())
}

/// What a judge says of a history made by hand.
fn judged(name: &str, events: &[Value]) -> Result<String, Failed> {
    let run = json!({ "event": "run", "seed": 1, "sabotage": null, "only": [], "retention": 4_000_000, "begin": 0 });
    let lines: Vec<_> = std::iter::once(&run).chain(events).map(Value::to_string).collect();
    let file = std::env::temp_dir().join(format!("chaos-{name}-{}.jsonl", std::process::id()));
    std::fs::write(&file, lines.join("\n"))?;
    let said = run_quietly(&["--judge", file.to_str().ok_or("the directory has a name")?]);
    std::fs::remove_file(&file)?;
    said
}

fn run_quietly(arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(&*RUNNER).args(arguments).output()?;
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// An acquire of `k` for two seconds, granted; times in milliseconds.
fn grant(lease: u64, token: u64, begin: u64, end: u64) -> Value {
    json!({
        "event": "acquire", "worker": 1, "lease": lease, "key": "k", "limit": 0, "ttl": 2_000_000, "grace": 0,
        "group": null, "begin": begin * 1000, "end": end * 1000, "within": 3_000_000,
        "outcome": { "granted": { "token": token } }, "attempts": 1, "doubts": 0, "queued": null,
        "anew": false, "probe": false,
    })
}

fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

fn write(lease: u64, token: u64, at: u64, accepted: bool) -> Value {
    json!({
        "event": "write", "worker": 1, "lease": lease, "key": "k", "limit": 0, "token": token, "at": at * 1000,
        "valid": true, "accepted": accepted,
    })
}

fn inspect(worker: u32, at: u64, seen: &Value) -> Value {
    json!({
        "event": "inspect", "worker": worker, "key": "k", "begin": at * 1000, "end": at * 1000 + 500,
        "within": 3_000_000, "seen": seen,
    })
}

fn call(verb: &str, outcome: &str, begin: u64, end: u64) -> Value {
    json!({
        "event": "call", "worker": 1, "lease": 1, "key": "k", "token": 5, "verb": verb, "begin": begin * 1000,
        "end": end * 1000, "within": 3_000_000, "outcome": outcome,
    })
}

fn ends(at: u64) -> Value {
    json!({ "event": "ends", "worker": 1, "lease": 1, "key": "k", "token": 5, "at": at * 1000, "how": "release" })
}

fn lost(at: u64, cause: &str, newer: Option<u64>) -> Value {
    json!({
        "event": "lost", "worker": 1, "lease": 1, "key": "k", "token": 5, "at": at * 1000, "cause": cause,
        "newer": newer,
    })
}

fn record(version: u64, holders: &[u64]) -> Value {
    json!({ "record": { "version": version, "holders": holders } })
}

/// A write of the document of `k` by the holder of this token, that found so many writes, the last by another.
fn entry(token: Option<u64>, at: u64, count: i64, last: u64) -> Value {
    json!({
        "event": "entry", "worker": 1, "lease": 1, "key": "k", "token": token, "begin": at * 1000,
        "end": at * 1000 + 500, "within": 3_000_000, "outcome": "ok", "before": [count, last],
    })
}

fn revoke(tokens: &[u64], begin: u64, end: u64) -> Value {
    json!({
        "event": "revoke", "worker": 3, "key": "k", "begin": begin * 1000, "end": end * 1000,
        "outcome": if tokens.is_empty() { "begun" } else { "ok" }, "tokens": tokens,
    })
}

fn fault(begin: u64, end: u64) -> Value {
    json!({ "event": "fault", "kind": "pause", "what": "", "begin": begin * 1000, "end": end * 1000 })
}

/// A transaction has locked the record of another key, or of this one.
fn lock(key: &str, begin: u64, end: u64) -> Value {
    with(with(fault(begin, end), "kind", json!("lock-record")), "key", json!(key))
}

/// Replies are late by 400 ms.
fn delay(begin: u64, end: u64) -> Value {
    with(with(fault(begin, end), "kind", json!("latency")), "by", json!(400_000))
}

fn held_by(lease: u64, at: u64) -> Value {
    inspect(2, at, &json!({ "record": { "version": 5, "holders": [5], "asked": [[1, lease]] } }))
}

/// One that asked, knew itself queued, and was granted the key before its wait of three seconds was over.
fn waited(lease: u64, token: u64, asked: u64, granted: u64) -> Value {
    let first = [asked * 1000, (asked + 5) * 1000];
    let queued = json!({ "first": first, "position": 0, "sent": asked * 1000, "kept": true });
    with(with(grant(lease, token, asked, granted), "queued", queued), "within", json!(6_000_000))
}

/// A name, the invariants that it breaks, and what happened.
type History = (&'static str, &'static [&'static str], Vec<Value>);

fn histories_of_fences_doubts_and_revocations() -> Vec<History> {
    let first = || grant(1, 5, 10, 20);
    let unanswered = with(first(), "outcome", json!({ "unavailable": { "message": "late" } }));
    vec![
        ("written", &[], vec![entry(Some(5), 10, 0, 0), entry(Some(6), 20, 2, 5), entry(None, 30, 3, 6)]),
        ("written-over", &["I3"], vec![entry(Some(5), 10, 0, 0), entry(Some(6), 20, 0, 0)]),
        ("written-back", &["I3"], vec![entry(Some(6), 10, 0, 0), entry(Some(5), 20, 1, 6)]),
        ("written-between", &["I3"], vec![entry(Some(6), 10, 0, 0), entry(Some(7), 20, 2, 5)]),
        ("gone-back", &["I3"], vec![entry(Some(5), 10, 4, 3), entry(Some(6), 20, 2, 3)]),
        ("gone-at-last", &["I3"], vec![entry(Some(5), 10, 4, 3), entry(None, 20, 4, 3)]),
        ("in-doubt", &["I6"], vec![unanswered.clone(), held_by(1, 9000)]),
        ("held-up", &[], vec![unanswered.clone(), fault(1, 6000), held_by(1, 9000)]),
        ("held-up-again", &[], vec![unanswered.clone(), fault(3000, 6000), fault(1, 4000), held_by(1, 9000)]),
        ("not-held-up", &["I6"], vec![unanswered.clone(), fault(3000, 6000), held_by(1, 9000)]),
        ("lapses", &[], vec![unanswered, held_by(1, 4000)]),
        ("taken", &[], vec![first(), revoke(&[5], 30, 40), lost(41, "revoked", None), grant(2, 6, 45, 50)]),
        ("taken-unsaid", &[], vec![first(), revoke(&[], 30, 40), lost(35, "revoked", None)]),
        ("not-taken", &["I9"], vec![first(), lost(41, "revoked", None)]),
        ("taken-and-kept", &["I5"], vec![first(), revoke(&[5], 30, 40), call("verify", "ok", 50, 60)]),
        ("taken-and-there", &["I5"], vec![first(), revoke(&[5], 30, 40), inspect(1, 50, &record(5, &[5]))]),
        ("handed-on", &["I5"], vec![first(), call("transfer", "ok", 30, 40), inspect(1, 50, &record(6, &[5]))]),
    ]
}

fn histories_of_locks_delays_and_outages() -> Vec<History> {
    let first = || grant(1, 5, 5000, 6500);
    let unavailable = json!({ "unavailable": { "message": "late" } });
    let unanswered = with(grant(1, 5, 5000, 5500), "outcome", unavailable.clone());
    // It waits for three seconds.
    let gives_up = |at: u64| vec![with(waited(1, 5, 1000, at), "outcome", unavailable.clone()), fault(2000, 3400)];
    let other = |slot: u32| {
        let ready = json!({ "event": "ready", "worker": 1, "slot": 0 });
        vec![first(), lock("other", 4900, 9000), ready, with(fault(4000, 5000), "slot", json!(slot))]
    };
    let slow = |from: u64, to: u64| json!({ "event": "slow", "worker": 1, "from": from * 1000, "to": to * 1000 });
    let refreshed = || with(first(), "refreshes", json!(true));
    let expired = || lost(8600, "expired", None);
    vec![
        ("beside", &["I12"], vec![first(), lock("other", 4900, 9000)]),
        ("beside-early", &[], vec![first(), lock("other", 5100, 9000)]),
        ("beside-quick", &[], vec![grant(1, 5, 5000, 5900), lock("other", 4900, 9000)]),
        ("beside-waiting", &[], vec![with(first(), "within", json!(6_000_000)), lock("other", 4900, 9000)]),
        ("beside-unanswered", &["I12"], vec![unanswered, lock("other", 4900, 9000)]),
        ("beside-itself", &[], vec![first(), lock("k", 4900, 9000)]),
        ("beside-slow", &[], vec![first(), lock("other", 4900, 9000), slow(6000, 6400)]),
        ("beside-little", &["I12"], vec![first(), lock("other", 4900, 9000), slow(6000, 6100)]),
        ("beside-fault", &[], vec![first(), lock("other", 4900, 9000), fault(1000, 3000)]),
        ("beside-own", &[], other(0)),
        ("beside-another", &["I12"], other(1)),
        ("impatient", &["I14"], gives_up(3500)),
        ("patient", &[], gives_up(4100)),
        ("delayed", &["I13"], vec![refreshed(), delay(4000, 9000), expired()]),
        ("delayed-by-hand", &[], vec![first(), delay(4000, 9000), expired()]),
        ("delayed-before", &[], vec![refreshed(), delay(4000, 8000), expired()]),
        ("delayed-slow", &[], vec![refreshed(), delay(4000, 9000), expired(), slow(7000, 7400)]),
        ("delayed-fault", &[], vec![refreshed(), delay(4000, 9000), expired(), fault(3500, 3900)]),
    ]
}

fn histories_of_ends() -> Vec<History> {
    let refused = || with(with(grant(2, 6, 9000, 9010), "outcome", json!("held")), "key", json!("own/1-2"));
    let healed = json!({ "event": "healed", "at": 100_000, "term": 1 });
    let shutdown = |begin: u64, end: u64| {
        vec![json!({ "event": "shutdown", "worker": 1, "begin": begin * 1000, "end": end * 1000 }), healed.clone()]
    };
    vec![
        ("own", &["I16"], vec![refused()]),
        ("own-of-another", &[], vec![with(refused(), "key", json!("k"))]),
        ("own-fault", &[], vec![refused(), fault(1000, 2000)]),
        ("shutdown", &["I17"], shutdown(200, 1300)),
        ("shutdown-quick", &[], shutdown(200, 1100)),
        ("shutdown-before", &[], shutdown(50, 1300)),
        ("streams", &["I18"], vec![json!({ "event": "streams", "slot": 1, "count": 7, "at": 100_000 })]),
        ("few-streams", &[], vec![json!({ "event": "streams", "slot": 1, "count": 6, "at": 100_000 })]),
    ]
}

fn each_invariant_is_broken_by_a_history_made_for_it_and_no_other() -> Result<(), Failed> {
    let first = || grant(1, 5, 10, 20);
    let stall = json!({ "event": "stall", "worker": 1, "from": 100_000, "to": 1_000_000 });
    let drop = json!({ "event": "fault", "kind": "drop", "what": "", "begin": 30_000, "end": 40_000 });
    let probe = with(with(grant(9, 9, 10, 20), "probe", json!(true)), "outcome", json!("held"));
    let odd = with(first(), "outcome", json!({ "other": { "message": "odd" } }));
    let mut histories: Vec<History> = vec![
        (
            "nothing",
            &[],
            vec![first(), write(1, 5, 21, true), ends(30), call("release", "ours", 30, 40), grant(2, 6, 50, 60)],
        ),
        ("twice", &["I1"], vec![first(), grant(2, 5, 15, 25)]),
        ("back", &["I2"], vec![first(), ends(21), grant(2, 4, 30, 40)]),
        ("fence", &["I3"], vec![first(), grant(2, 6, 15, 25), write(2, 6, 26, true), write(1, 5, 27, true)]),
        ("refused", &[], vec![first(), grant(2, 6, 15, 25), write(2, 6, 26, true), write(1, 5, 27, false)]),
        (
            "overlap",
            &["I4"],
            vec![
                first(),
                ends(29),
                grant(2, 6, 30, 40),
                write(1, 5, 21, true),
                write(2, 6, 45, true),
                write(1, 5, 50, false),
            ],
        ),
        ("soon", &["I4"], vec![first(), grant(2, 6, 1000, 1010)]),
        ("in-time", &[], vec![first(), grant(2, 6, 2010, 2020)]),
        ("version", &["I5"], vec![first(), inspect(1, 30, &record(4, &[]))]),
        ("gone", &["I5"], vec![first(), inspect(1, 3000, &json!("nothing"))]),
        ("dropped", &[], vec![first(), drop.clone(), inspect(1, 3000, &json!("nothing"))]),
        ("collected", &[], vec![first(), inspect(1, 6100, &json!("nothing"))]),
        (
            "holder",
            &["I5"],
            vec![first(), write(1, 5, 21, true), write(1, 5, 90, true), inspect(1, 50, &record(5, &[]))],
        ),
        (
            "missed",
            &["I5"],
            vec![first(), call("refresh-group", "missed", 30, 40), write(1, 5, 21, true), write(1, 5, 90, true)],
        ),
        ("given", &["I5"], vec![first(), call("release", "ours", 30, 40), inspect(1, 50, &record(5, &[5]))]),
        ("left", &["I6"], vec![first(), inspect(0, 9000, &record(5, &[5]))]),
        ("late", &["I8"], vec![first(), call("refresh", "unavailable", 100, 3400)]),
        ("paused", &[], vec![first(), stall, call("refresh", "unavailable", 100, 3400)]),
        ("odd", &["I8"], vec![odd]),
        ("old", &["I9"], vec![first(), ends(29), grant(2, 6, 30, 40), call("verify", "ok", 50, 60)]),
        ("robbed", &["I9"], vec![first(), lost(500, "taken-over", Some(6))]),
        ("expired", &["I9"], vec![first(), lost(500, "expired", None)]),
        ("lapsed", &[], vec![first(), lost(2100, "expired", None)]),
        ("removed", &["I9"], vec![first(), lost(3000, "removed", None)]),
        ("deleted", &[], vec![first(), drop, lost(3000, "removed", None)]),
        ("stuck", &["I10"], vec![first(), json!({ "event": "stuck", "worker": 1, "at": 9_000_000 })]),
        ("held", &["I10"], vec![probe]),
        ("queue-left", &[], vec![with(waited(1, 6, 10, 60), "within", json!(3_000_000)), waited(2, 5, 25, 50)]),
        ("queue-taken", &[], vec![waited(1, 6, 10, 60), waited(2, 5, 25, 50), revoke(&[4], 30, 40)]),
        ("queue", &["I11"], vec![waited(1, 6, 10, 60), waited(2, 5, 25, 50)]),
    ];
    histories.extend(histories_of_fences_doubts_and_revocations());
    histories.extend(histories_of_locks_delays_and_outages());
    histories.extend(histories_of_ends());
    for (name, wanted, events) in histories {
        let said = judged(name, &events)?;
        let found: Vec<_> = said.lines().filter_map(invariant).collect();
        assert_eq!(found, wanted, "{name}: {said}");
    }
    Ok(())
}

/// The invariant that a line says is broken.
fn invariant(line: &str) -> Option<&str> {
    let name = line.strip_prefix("  ")?.split(' ').next()?;
    name.starts_with('I').then_some(name)
}

fn main() -> ExitCode {
    let sabotages: [(&str, &str, &[&str]); 18] = [
        ("w1", "minority", &["I1", "I2", "I4", "I5", "I9"]),
        ("version-only", "stall-collection", &["I1", "I2"]),
        ("no-op-success", "stall-collection", &["I1"]),
        ("ignore-write-concern-error", "minority", &["I1", "I2", "I4", "I5", "I9"]),
        ("late-reply", "deaf-client", &["I4"]),
        ("lower-expiry", "pause-client", &["I5"]),
        ("client-clock", "swallow-reply", &["I4"]),
        ("release-by-key", "swallow-reply", &["I4", "I9"]),
        ("no-fence", "swallow-reply", &["I3"]),
        ("shared-fate", "lock-record", &["I12"]),
        ("grant-by-read", "lock-record", &["I4"]),
        ("short-attempts", "latency", &["I13"]),
        ("impatient", "outage", &["I14"]),
        ("no-thread", "block-client", &["I15"]),
        ("own-streams", "kill-client", &["I18"]),
        ("no-own-wait", "kill-client", &["I16"]),
        ("unsent-batch", "kill-client", &["I4", "I5"]),
        ("slow-close", "kill-client", &["I17"]),
    ];
    let mut tests: Vec<_> = sabotages
        .into_iter()
        .map(|(name, only, by)| Trial::test(format!("{name}_is_caught"), move || is_caught(name, only, by, &[])))
        .collect();
    tests.push(Trial::ignorable_test("no-grace_is_caught", no_grace_is_caught));
    let by_hand = each_invariant_is_broken_by_a_history_made_for_it_and_no_other;
    tests.push(Trial::test("each_invariant_is_broken_by_a_history_made_for_it_and_no_other", by_hand));
    let beside = locked_records_and_delays_cost_other_keys_and_leases_nothing;
    tests.push(Trial::test("locked_records_and_delays_cost_other_keys_and_leases_nothing", beside));
    tests.push(Trial::test("waits_outlast_outages", waits_outlast_outages));
    let quarter = waits_outlast_an_outage_of_a_quarter_of_a_minute;
    tests.push(Trial::test("waits_outlast_an_outage_of_a_quarter_of_a_minute", quarter));
    let blocked = blocked_runtimes_cost_no_lease_of_a_handle_with_a_thread;
    tests.push(Trial::test("blocked_runtimes_cost_no_lease_of_a_handle_with_a_thread", blocked));
    tests.push(Trial::test("a_run_of_two_minutes_breaks_nothing", a_run_of_two_minutes_breaks_nothing));
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}
