//! Tests of the judge with handwritten histories: each violates one invariant, and the judge reports only that one.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::RUNNER;

/// The beginning of each history.
pub(super) fn run_event() -> Value {
    json!({ "event": "run", "seed": 1, "sabotage": null, "only": [], "retention": 4_000_000, "begin": 0 })
}

/// A history of a run of this kind breaks these invariants and no other.
pub(super) fn breaks_these(run: &Value, name: &str, wanted: &[&str], events: &[Value]) {
    let lines: Vec<_> = std::iter::once(run).chain(events).map(Value::to_string).collect();
    let mut judge = Command::new(RUNNER);
    judge.args(["--judge", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut judge = judge.spawn().unwrap();
    judge.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let output = judge.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{name}: {output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(broken(&said), wanted, "{name}: {said}");
}

/// The invariants that are broken, as a judge says.
pub(super) fn broken(said: &str) -> Vec<&str> {
    let names = said.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| name.starts_with('I')).collect()
}

/// An acquire of `k` for two seconds, granted; times in milliseconds.
pub(super) fn grant(lease: u64, token: u64, begin: u64, end: u64) -> Value {
    json!({
        "event": "acquire", "worker": 1, "lease": lease, "key": "k", "ttl": 2_000_000,
        "begin": begin * 1000, "end": end * 1000, "within": 3_000_000, "outcome": { "granted": { "token": token } },
    })
}

/// A write beside all leases that was slow; times in milliseconds.
fn slow(from: u64, to: u64) -> Value {
    json!({ "event": "slow", "worker": 1, "from": from * 1000, "to": to * 1000 })
}

pub(super) fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

pub(super) fn write(lease: u64, token: u64, at: u64, accepted: bool) -> Value {
    json!({
        "event": "write", "worker": 1, "lease": lease, "key": "k", "token": token, "at": at * 1000,
        "valid": true, "accepted": accepted,
    })
}

pub(super) fn inspect(worker: u32, at: u64, seen: &Value) -> Value {
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

pub(super) fn ends(at: u64) -> Value {
    json!({ "event": "ends", "worker": 1, "lease": 1, "key": "k", "token": 5, "at": at * 1000, "how": "release" })
}

pub(super) fn lost(at: u64, cause: &str, newer: Option<u64>) -> Value {
    json!({
        "event": "lost", "worker": 1, "lease": 1, "key": "k", "token": 5, "at": at * 1000, "cause": cause,
        "newer": newer,
    })
}

pub(super) fn record(version: u64, holders: &[u64]) -> Value {
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

pub(super) fn fault(begin: u64, end: u64) -> Value {
    json!({ "event": "fault", "kind": "pause", "what": "", "begin": begin * 1000, "end": end * 1000 })
}

/// A transaction has locked the record of another key, or of this one.
fn lock(key: &str, begin: u64, end: u64) -> Value {
    with(with(fault(begin, end), "kind", json!("lock-record")), "key", json!(key))
}

/// A transaction has locked the records of these keys.
fn locks(keys: &[&str]) -> Value {
    with(with(fault(6000, 9000), "kind", json!("locked-records")), "keys", json!(keys))
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
    let stalled = |from: u64, to: u64| json!({ "event": "stall", "worker": 1, "from": from * 1000, "to": to * 1000 });
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
        ("held-up-right-after", &[], vec![unanswered.clone(), fault(400, 6000), held_by(1, 9000)]),
        ("not-held-up", &["I6"], vec![unanswered.clone(), fault(3000, 6000), held_by(1, 9000)]),
        ("stalled", &[], vec![unanswered.clone(), stalled(300, 6000), held_by(1, 9000)]),
        ("stalled-later", &["I6"], vec![unanswered.clone(), stalled(3000, 6000), held_by(1, 9000)]),
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
    let refreshed = || with(grant(1, 5, 5000, 5500), "refreshes", json!(true));
    let long_acquired = || with(first(), "refreshes", json!(true));
    let expired = || lost(8600, "expired", None);
    let of_fleet = |event: Value| with(event, "key", json!("fleet/001"));
    // By more than a third of the ttl.
    let longer = |delay: Value| with(delay, "by", json!(700_000));
    vec![
        ("beside", &["I12"], vec![first(), lock("other", 4900, 9000)]),
        (
            "beside-as-before",
            &[],
            vec![with(grant(3, 7, 1000, 4500), "key", json!("before")), first(), lock("other", 4900, 9000)],
        ),
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
        ("locked-out", &["I20"], vec![refreshed(), lock("other", 6000, 9000), expired()]),
        ("locked-out-of-many", &["I20"], vec![refreshed(), locks(&["one", "two"]), expired()]),
        ("locked-out-by-hand", &[], vec![grant(1, 5, 5000, 5500), lock("other", 6000, 9000), expired()]),
        ("locked-itself", &[], vec![refreshed(), lock("k", 6000, 9000), expired()]),
        ("locked-itself-of-many", &[], vec![refreshed(), locks(&["one", "k"]), expired()]),
        ("locked-out-before", &[], vec![refreshed(), lock("other", 6000, 8000), expired()]),
        ("locked-out-slow", &[], vec![refreshed(), lock("other", 6000, 9000), expired(), slow(7000, 7060)]),
        ("locked-out-little", &["I20"], vec![refreshed(), lock("other", 6000, 9000), expired(), slow(7000, 7040)]),
        ("locked-out-fault", &[], vec![refreshed(), lock("other", 6000, 9000), expired(), fault(6500, 7000)]),
        ("impatient", &["I14"], gives_up(3500)),
        ("patient", &[], gives_up(4100)),
        ("delayed", &["I13"], vec![refreshed(), delay(4000, 9000), expired()]),
        ("delayed-acquire", &[], vec![long_acquired(), delay(4000, 9000), expired()]),
        ("delayed-by-hand", &[], vec![first(), delay(4000, 9000), expired()]),
        ("delayed-before", &[], vec![refreshed(), delay(4000, 8000), expired()]),
        ("delayed-slow", &[], vec![refreshed(), delay(4000, 9000), expired(), slow(7000, 7400)]),
        ("delayed-little", &["I13"], vec![refreshed(), delay(4000, 9000), expired(), slow(7000, 7060)]),
        (
            "delayed-fleet",
            &["I13"],
            vec![of_fleet(refreshed()), delay(4000, 9000), of_fleet(expired()), slow(7000, 7010)],
        ),
        (
            "delayed-fleet-slow",
            &[],
            vec![of_fleet(refreshed()), delay(4000, 9000), of_fleet(expired()), slow(7000, 7060)],
        ),
        ("delayed-long", &["I13"], vec![refreshed(), longer(delay(4000, 9000)), expired()]),
        ("delayed-at-first", &["I13"], vec![refreshed(), delay(7000, 9000), expired()]),
        ("delayed-long-at-first", &[], vec![refreshed(), longer(delay(7000, 9000)), expired()]),
        ("delayed-fault", &[], vec![refreshed(), delay(4000, 9000), expired(), fault(3500, 3900)]),
    ]
}

/// What began after commits were refused from 1 s to 5 s, and what was opened.
fn histories_of_refusals() -> Vec<History> {
    let refusal = || with(fault(1000, 5000), "kind", json!("refuse-commits"));
    let written = |at: u64, outcome: &str| {
        let entry = with(with(entry(Some(5), at, 0, 0), "before", json!(null)), "outcome", json!(outcome));
        with(entry, "end", json!((at + 2900) * 1000))
    };
    let late = json!({ "unavailable": { "message": "late" } });
    let acquired = |key: &str| with(with(grant(1, 5, 5500, 8400), "key", json!(key)), "outcome", late.clone());
    let slow = json!({ "event": "slow", "worker": 1, "from": 6_000_000, "to": 6_600_000 });
    let opened =
        |outcome: &str| json!({ "event": "opened", "worker": 1, "begin": 10_000, "end": 20_000, "outcome": outcome });
    let log = |read: u64, unread: u64, broken: &[&str]| json!({ "event": "log", "read": read, "unread": unread, "broken": broken });
    vec![
        ("left-open", &["I24"], vec![refusal(), written(5500, "unavailable")]),
        ("left-open-key", &["I24"], vec![refusal(), acquired("ledger/0")]),
        ("left-open-and-another-key", &[], vec![refusal(), acquired("k")]),
        ("left-open-answered", &[], vec![refusal(), written(5500, "ok")]),
        ("left-open-early", &[], vec![refusal(), written(5100, "unavailable")]),
        ("left-open-late", &[], vec![refusal(), written(12_600, "unavailable")]),
        ("left-open-fault", &[], vec![refusal(), written(5500, "unavailable"), fault(8300, 8500)]),
        ("left-open-slow", &[], vec![refusal(), written(5500, "unavailable"), slow]),
        ("opened", &["I25"], vec![opened("opened")]),
        ("log", &[], vec![log(9, 0, &[])]),
        ("log-broken", &["I27"], vec![log(9, 0, &["key \"k\": token 4 was granted after 5"])]),
        ("log-unread", &["I27"], vec![log(9, 1, &[])]),
        ("log-empty", &["I27"], vec![log(0, 0, &[])]),
        ("opened-not", &[], vec![opened("refused"), opened("unavailable")]),
        ("opened-odd", &["I8"], vec![opened("odd")]),
        ("opened-late", &["I8"], vec![with(opened("refused"), "end", json!(3_600_000))]),
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
        ("streams", &["I18"], vec![json!({ "event": "streams", "slot": 1, "count": 9, "at": 100_000 })]),
        ("connections", &["I18"], vec![json!({ "event": "connections", "slot": 1, "count": 49, "at": 100_000 })]),
        ("few-connections", &[], vec![json!({ "event": "connections", "slot": 1, "count": 48, "at": 100_000 })]),
        ("few-streams", &[], vec![json!({ "event": "streams", "slot": 1, "count": 8, "at": 100_000 })]),
    ]
}

/// A minimum hold of half a second whose lease is released early, beside a waiter that is granted the key then.
fn after_minimum_hold(granted: u64, more: &[Value]) -> Vec<Value> {
    let least = |grant: Value| with(grant, "least", json!(500_000));
    let first = [least(grant(1, 5, 10, 20)), ends(50), call("release", "ours", 50, 60)];
    [&first[..], &[least(waited(2, 6, 30, granted))], more].concat()
}

/// A lease whose handle is shut down, and whose work ends at 0.9 s.
fn shut_down_at_work(granted: u64, more: &[Value]) -> Vec<Value> {
    let worked = json!({
        "event": "worked", "worker": 1, "key": "k", "token": 5, "since": 10_000, "ttl": 2_000_000, "end": 900_000,
    });
    let first = [grant(1, 5, 10, 20), with(ends(100), "how", json!("shutdown")), worked];
    [&first[..], &[grant(2, 6, granted - 10, granted)], more].concat()
}

fn histories_of_holds() -> Vec<History> {
    let elsewhere = |begin, end| with(with(grant(3, 7, begin, end), "key", json!("other")), "outcome", json!("held"));
    let drop = || with(fault(30, 40), "kind", json!("drop"));
    vec![
        ("hold", &[], after_minimum_hold(700, &[])),
        ("hold-late", &["I22"], after_minimum_hold(1_600, &[])),
        ("hold-late-by-a-fault", &[], after_minimum_hold(1_600, &[fault(100, 200)])),
        ("hold-late-as-others", &[], after_minimum_hold(1_600, &[elsewhere(900, 1_550)])),
        ("hold-late-and-others-in-time", &["I22"], after_minimum_hold(1_600, &[elsewhere(900, 920)])),
        ("hold-late-beside-a-lock", &["I22"], after_minimum_hold(1_600, &[lock("other", 100, 2_000)])),
        ("work", &[], shut_down_at_work(910, &[])),
        ("work-of-a-free-key", &["I23"], shut_down_at_work(210, &[])),
        ("work-of-a-dropped-key", &[], shut_down_at_work(210, &[drop()])),
    ]
}

fn histories_of_ticks() -> Vec<History> {
    let ticked = |tick: u64, token: u64, end: u64| {
        json!({
            "event": "ticked", "worker": 1, "key": "tick/0", "tick": tick, "token": token, "begin": (end - 10) * 1000,
            "end": end * 1000, "outcome": "ran",
        })
    };
    let works = |tick: u64, token: u64, at: u64| json!({ "event": "works", "worker": 2, "key": "tick/0", "tick": tick, "token": token, "at": at * 1000 });
    let drop = || with(fault(30, 40), "kind", json!("drop"));
    let runs = |runs: &[(u64, u64)]| json!({ "event": "runs", "key": "tick/0", "runs": runs, "at": 100_000 });
    let last: Vec<(u64, u64)> = (2..34).map(|tick| (tick, tick + 4)).collect();
    vec![
        ("ticks", &[], vec![works(1, 5, 12), ticked(1, 5, 20), works(2, 6, 25), ticked(2, 6, 30)]),
        ("tick-taken-over", &[], vec![works(1, 5, 12), works(1, 6, 3000), ticked(1, 6, 3010)]),
        ("tick-twice", &["I19"], vec![ticked(1, 5, 20), ticked(1, 6, 40)]),
        ("tick-again", &["I19"], vec![ticked(1, 5, 20), works(1, 6, 25)]),
        ("tick-behind", &["I19"], vec![ticked(2, 5, 20), ticked(1, 4, 15), works(1, 6, 25)]),
        ("tick-after-the-retention", &["I19"], vec![ticked(1, 5, 20), works(1, 6, 4100)]),
        ("tick-dropped", &[], vec![ticked(1, 5, 20), drop(), works(1, 6, 50), ticked(1, 6, 60)]),
        ("tick-in-the-history", &[], vec![ticked(1, 5, 20), ticked(3, 7, 30), runs(&[(1, 5), (2, 6), (3, 7)])]),
        ("tick-not-in-the-history", &["I19"], vec![ticked(1, 5, 20), ticked(3, 7, 30), runs(&[(3, 7)])]),
        ("tick-before-the-history", &[], vec![ticked(1, 5, 20), ticked(33, 37, 30), runs(&last)]),
        ("tick-twice-in-the-history", &["I19"], vec![ticked(1, 5, 20), runs(&[(1, 5), (1, 6)])]),
        ("tick-odd", &["I8"], vec![with(ticked(1, 5, 20), "outcome", json!("odd"))]),
    ]
}

/// A call about the value of the key `hot/0`.
pub(super) fn value(verb: &str, token: u64, content: (u64, u64), end: u64) -> Value {
    json!({
        "event": "value", "worker": 1, "key": "hot/0", "token": token, "verb": verb, "content": content,
        "begin": (end - 10) * 1000, "end": end * 1000, "outcome": "ok",
    })
}

fn histories_of_values() -> Vec<History> {
    let put = |number: u64, end: u64| value("put", 5, (5, number), end);
    let drop = || with(fault(30, 40), "kind", json!("drop"));
    vec![
        ("value", &[], vec![put(1, 20), value("read", 6, (5, 1), 40)]),
        ("value-of-its-own", &[], vec![put(1, 20), put(2, 40), value("read", 5, (5, 2), 60)]),
        (
            "value-unconfirmed",
            &[],
            vec![put(1, 20), with(put(2, 30), "outcome", json!("unavailable")), value("read", 6, (5, 2), 60)],
        ),
        ("value-older", &["I26"], vec![put(1, 20), put(2, 40), value("read", 6, (5, 1), 60)]),
        ("value-gone", &["I26"], vec![value("release-with", 5, (5, 1), 20), value("read", 6, (0, 0), 60)]),
        ("value-of-its-own-older", &["I26"], vec![put(1, 20), put(2, 40), value("read", 5, (5, 1), 60)]),
        ("value-of-a-later-holder", &["I26"], vec![put(1, 20), value("read", 4, (5, 1), 60)]),
        ("value-dropped", &[], vec![put(1, 20), drop(), value("read", 6, (0, 0), 60)]),
        ("value-odd", &["I8"], vec![with(put(1, 20), "outcome", json!("odd"))]),
    ]
}

fn histories_of_watches() -> Vec<History> {
    let granted = |lease: u64, token: u64, begin: u64| grant(lease, token, begin, begin + 10);
    let acquires = || {
        let ended =
            |lease: u64, token: u64, at: u64| with(with(ends(at), "lease", json!(lease)), "token", json!(token));
        vec![granted(1, 5, 10), ended(1, 5, 25), granted(2, 6, 30), ended(2, 6, 45), granted(3, 7, 50)]
    };
    let watched = |token: u64| json!({ "event": "watched", "worker": 2, "watch": "key", "key": "k", "token": token, "at": 100_000 });
    let missed = || json!({ "event": "missed", "worker": 2, "watch": "key", "at": 100_000 });
    let of_another = || with(missed(), "watch", json!("prefix"));
    let seen = |items: Vec<Value>| [acquires(), items].concat();
    vec![
        ("watched", &[], seen(vec![watched(5), watched(6), watched(7)])),
        ("watched-late", &[], seen(vec![watched(6), watched(7)])),
        ("watched-gap", &["I21"], seen(vec![watched(5), watched(7)])),
        ("watched-missed", &[], seen(vec![watched(5), missed(), watched(7)])),
        ("watched-missed-by-another", &["I21"], seen(vec![watched(5), of_another(), watched(7)])),
        ("watched-back", &["I21"], seen(vec![watched(6), watched(5)])),
        ("watched-again", &[], seen(vec![watched(6), watched(6), watched(7)])),
    ]
}

pub(super) fn each_invariant_is_broken_by_a_history_made_for_it_and_no_other() {
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
        ("late", &["I8"], vec![first(), call("refresh", "unavailable", 100, 3650)]),
        ("late-and-slow", &[], vec![first(), call("refresh", "unavailable", 100, 3650), slow(3000, 3200)]),
        ("later-and-slow", &["I8"], vec![first(), call("refresh", "unavailable", 100, 4150), slow(2000, 3200)]),
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
    histories.extend(histories_of_refusals());
    histories.extend(histories_of_ends());
    histories.extend(histories_of_ticks());
    histories.extend(histories_of_values());
    histories.extend(histories_of_holds());
    histories.extend(histories_of_watches());
    for (name, wanted, events) in histories {
        breaks_these(&run_event(), name, wanted, &events);
    }
}
