//! Tests of the judge with handwritten histories: each violates one invariant, and the judge reports only that one.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::RUNNER;

pub(super) const TESTS: [(&str, fn()); 2] = [
    (
        "histories::each_invariant_is_broken_by_a_history_made_for_it_and_no_other",
        each_invariant_is_broken_by_a_history_made_for_it_and_no_other,
    ),
    (
        "histories::what_a_failover_of_redis_excuses_is_excused_and_no_more",
        what_a_failover_of_redis_excuses_is_excused_and_no_more,
    ),
];

/// The beginning of each history.
fn run_event() -> Value {
    json!({
        "event": "run", "sabotage": null, "retention": 4_000_000, "spread": 0, "redis": false, "term": 1,
    })
}

/// A history of a run of this kind breaks these invariants and no other.
fn breaks_these(run: &Value, name: &str, wanted: &[&str], events: &[Value]) {
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
fn grant(lease: u64, token: u64, begin: u64, end: u64) -> Value {
    json!({
        "event": "acquire", "worker": 1, "lease": lease, "key": "k", "ttl": 2_000_000,
        "begin": begin * 1000, "end": end * 1000, "within": 3_000_000, "outcome": "granted",
        "token": token,
    })
}

/// A write beside all leases that was slow; times in milliseconds.
fn slow(from: u64, to: u64) -> Value {
    json!({ "event": "slow", "worker": 1, "from": from * 1000, "to": to * 1000 })
}

fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

/// A holder looked, and believed.
fn believes(lease: u64, at: u64) -> Value {
    json!({ "event": "looked", "worker": 1, "lease": lease, "at": at * 1000, "valid": true })
}

/// A read of the record of `k`, if there is one: its version and its holders.
fn inspect(worker: u32, at: u64, record: Option<(u64, &[u64])>) -> Value {
    let (version, holders) = record.unwrap_or_default();
    json!({
        "event": "inspect", "worker": worker, "key": "k", "begin": at * 1000, "end": at * 1000 + 500,
        "outcome": if record.is_some() { "record" } else { "nothing" }, "version": version, "holders": holders,
    })
}

/// A call that says nothing of a lease.
fn called(verb: &str, key: &str, outcome: &str, begin: u64, end: u64) -> Value {
    json!({
        "event": "call", "worker": 1, "key": key, "verb": verb, "begin": begin * 1000, "end": end * 1000,
        "within": 3_000_000, "outcome": outcome,
    })
}

fn call(verb: &str, outcome: &str, begin: u64, end: u64) -> Value {
    with(called(verb, "k", outcome, begin, end), "lease", json!(1))
}

fn open(count: u64) -> Value {
    json!({ "event": "open", "slot": 1, "count": count, "at": 100_000 })
}

fn ends(at: u64) -> Value {
    json!({ "event": "ends", "worker": 1, "lease": 1, "at": at * 1000, "how": "release" })
}

fn lost(at: u64, cause: &str, newer: Option<u64>) -> Value {
    json!({ "event": "lost", "worker": 1, "lease": 1, "at": at * 1000, "cause": cause, "newer": newer })
}

fn fault(begin: u64, end: u64) -> Value {
    json!({ "event": "fault", "kind": "pause", "what": "", "begin": begin * 1000, "end": end * 1000 })
}

/// A transaction has locked the record of another key, or of this one.
fn lock(key: &str, begin: u64, end: u64) -> Value {
    with(with(fault(begin, end), "kind", json!("lock-record")), "keys", json!([key]))
}

/// Replies are late by 400 ms.
fn delay(begin: u64, end: u64) -> Value {
    with(with(fault(begin, end), "kind", json!("latency")), "by", json!(400_000))
}

/// Records were deleted by hand.
fn drop() -> Value {
    with(fault(30, 40), "kind", json!("drop"))
}

fn unavailable(event: Value) -> Value {
    with(event, "outcome", json!("unavailable"))
}

/// One that asked, knew itself queued, and was granted the key before its wait of three seconds was over.
fn waited(lease: u64, token: u64, asked: u64, granted: u64) -> Value {
    let queued = json!({ "since": (asked + 5) * 1000, "sent": asked * 1000 });
    with(with(grant(lease, token, asked, granted), "queued", queued), "within", json!(6_000_000))
}

/// A name, the invariants that it breaks, and what happened.
type History = (&'static str, &'static [&'static str], Vec<Value>);

fn histories_of_locks_delays_and_outages() -> Vec<History> {
    let first = || grant(1, 5, 5000, 6500);
    // It waits for three seconds.
    let gives_up = |at: u64| vec![unavailable(waited(1, 5, 1000, at)), fault(2000, 3400)];
    let other = |slot: u32| {
        let ready = json!({ "event": "ready", "worker": 1, "slot": 0 });
        vec![first(), lock("other", 4900, 9000), ready, with(fault(4000, 5000), "slot", json!(slot))]
    };
    let refreshed = || with(grant(1, 5, 5000, 5500), "refreshes", json!(true));
    let expired = || lost(8600, "expired", None);
    let of_fleet = |event: Value| with(event, "key", json!("fleet/001"));
    let blocked = |key: &str, slot: u32| {
        let block = with(with(fault(6000, 9000), "kind", json!("block-client")), "slot", json!(slot));
        let ready = json!({ "event": "ready", "worker": 1, "slot": 0 });
        vec![ready, with(refreshed(), "key", json!(key)), block, expired()]
    };
    // By more than a third of the ttl.
    let longer = |delay: Value| with(delay, "by", json!(700_000));
    vec![
        ("beside", &["I12"], vec![first(), lock("other", 4900, 9000)]),
        (
            "beside-as-before",
            &[],
            vec![with(grant(3, 7, 1000, 4500), "key", json!("before")), first(), lock("other", 4900, 9000)],
        ),
        ("beside-quick", &[], vec![grant(1, 5, 5000, 5900), lock("other", 4900, 9000)]),
        ("beside-waiting", &[], vec![with(first(), "within", json!(6_000_000)), lock("other", 4900, 9000)]),
        ("beside-unanswered", &["I12"], vec![unavailable(grant(1, 5, 5000, 5500)), lock("other", 4900, 9000)]),
        ("beside-itself", &[], vec![first(), lock("k", 4900, 9000)]),
        ("beside-slow", &[], vec![first(), lock("other", 4900, 9000), slow(6000, 6400)]),
        ("beside-fault", &[], vec![first(), lock("other", 4900, 9000), fault(1000, 3000)]),
        ("beside-own", &[], other(0)),
        ("beside-another", &["I12"], other(1)),
        ("locked-out", &["I20"], vec![refreshed(), lock("other", 6000, 9000), expired()]),
        ("locked-out-by-hand", &[], vec![grant(1, 5, 5000, 5500), lock("other", 6000, 9000), expired()]),
        ("locked-itself", &[], vec![refreshed(), lock("k", 6000, 9000), expired()]),
        ("locked-out-slow", &[], vec![refreshed(), lock("other", 6000, 9000), expired(), slow(7000, 7060)]),
        ("locked-out-fault", &[], vec![refreshed(), lock("other", 6000, 9000), expired(), fault(6500, 7000)]),
        ("impatient", &["I14"], gives_up(3500)),
        ("patient", &[], gives_up(4100)),
        ("delayed", &["I13"], vec![refreshed(), delay(4000, 9000), expired()]),
        ("delayed-by-hand", &[], vec![first(), delay(4000, 9000), expired()]),
        ("delayed-slow", &[], vec![refreshed(), delay(4000, 9000), expired(), slow(7000, 7400)]),
        (
            "delayed-fleet-slow",
            &[],
            vec![of_fleet(refreshed()), delay(4000, 9000), of_fleet(expired()), slow(7000, 7060)],
        ),
        ("delayed-long-at-first", &[], vec![refreshed(), longer(delay(7000, 9000)), expired()]),
        ("delayed-fault", &[], vec![refreshed(), delay(4000, 9000), expired(), fault(3500, 3900)]),
        ("blocked", &["I15"], blocked("thread/0-1", 0)),
        ("blocked-another", &[], blocked("thread/0-1", 1)),
        ("blocked-without-a-thread", &[], blocked("kept/0-1", 0)),
    ]
}

/// What began after commits were refused from 1 s to 5 s, and what was opened.
fn histories_of_refusals() -> Vec<History> {
    let refusal = || with(fault(1000, 5000), "kind", json!("refuse-commits"));
    let written = |at: u64, outcome: &str| called("write", "ledger/0", outcome, at, at + 2900);
    let acquired = |key: &str| unavailable(with(grant(1, 5, 5500, 8400), "key", json!(key)));
    let opened = |outcome: &str| called("prepare", "collated", outcome, 10, 20);
    let log = |read: u64, unread: u64, broken: &[&str]| json!({ "event": "log", "read": read, "unread": unread, "broken": broken });
    vec![
        ("left-open", &["I24"], vec![refusal(), written(5500, "unavailable")]),
        ("left-open-key", &["I24"], vec![refusal(), acquired("ledger/0")]),
        ("left-open-and-another-key", &[], vec![refusal(), acquired("k")]),
        ("left-open-late", &[], vec![refusal(), written(12_600, "unavailable")]),
        ("left-open-fault", &[], vec![refusal(), written(5500, "unavailable"), fault(8300, 8500)]),
        ("left-open-slow", &[], vec![refusal(), written(5500, "unavailable"), slow(6000, 6600)]),
        ("opened", &["I25"], vec![opened("opened")]),
        ("log", &[], vec![log(9, 0, &[])]),
        ("log-broken", &["I27"], vec![log(9, 0, &["key \"k\": token 4 was granted after 5"])]),
        ("log-unread", &["I27"], vec![log(9, 1, &[])]),
        ("log-empty", &["I27"], vec![log(0, 0, &[])]),
        ("opened-not", &[], vec![opened("refused"), opened("unavailable")]),
        ("opened-odd", &["I8"], vec![opened("odd")]),
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
        ("own-fault", &[], vec![refused(), fault(1000, 2000)]),
        ("shutdown", &["I17"], shutdown(200, 1300)),
        ("shutdown-quick", &[], shutdown(200, 1100)),
        ("streams", &["I18"], vec![open(9)]),
        ("few-streams", &[], vec![open(8)]),
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
    vec![
        ("hold", &[], after_minimum_hold(700, &[])),
        ("hold-late", &["I22"], after_minimum_hold(1_600, &[])),
        ("hold-late-by-a-fault", &[], after_minimum_hold(1_600, &[fault(100, 200)])),
        ("hold-late-as-others", &[], after_minimum_hold(1_600, &[elsewhere(900, 1_550)])),
        ("hold-late-beside-a-lock", &["I22"], after_minimum_hold(1_600, &[lock("other", 100, 2_000)])),
        ("work", &[], shut_down_at_work(910, &[])),
        ("work-of-a-free-key", &["I23"], shut_down_at_work(210, &[])),
        ("work-of-a-dropped-key", &[], shut_down_at_work(210, &[drop()])),
    ]
}

fn histories_of_ticks() -> Vec<History> {
    let ticked = |tick: u64, token: u64, end: u64| {
        with(with(called("once", "tick/0", "ran", end - 10, end), "tick", json!(tick)), "token", json!(token))
    };
    let works = |tick: u64, token: u64, at: u64| json!({ "event": "works", "worker": 2, "key": "tick/0", "tick": tick, "token": token, "at": at * 1000 });
    vec![
        ("ticks", &[], vec![works(1, 5, 12), ticked(1, 5, 20), works(2, 6, 25), ticked(2, 6, 30)]),
        ("tick-taken-over", &[], vec![works(1, 5, 12), works(1, 6, 3000), ticked(1, 6, 3010)]),
        ("tick-twice", &["I19"], vec![ticked(1, 5, 20), ticked(1, 6, 40)]),
        ("tick-again", &["I19"], vec![ticked(1, 5, 20), works(1, 6, 25)]),
        ("tick-behind", &["I19"], vec![ticked(2, 5, 20), ticked(1, 4, 15), works(1, 6, 25)]),
        ("tick-after-the-retention", &["I19"], vec![ticked(1, 5, 20), works(1, 6, 4100)]),
        ("tick-dropped", &[], vec![ticked(1, 5, 20), drop(), works(1, 6, 50), ticked(1, 6, 60)]),
    ]
}

/// A call about the value of the key `hot/0`.
fn value(verb: &str, token: u64, content: (u64, u64), end: u64) -> Value {
    with(with(called(verb, "hot/0", "ok", end - 10, end), "token", json!(token)), "content", json!(content))
}

fn histories_of_values() -> Vec<History> {
    let put = |number: u64, end: u64| value("put", 5, (5, number), end);
    vec![
        ("value", &[], vec![put(1, 20), value("read", 6, (5, 1), 40)]),
        ("value-of-its-own", &[], vec![put(1, 20), put(2, 40), value("read", 5, (5, 2), 60)]),
        (
            "value-unconfirmed",
            &[],
            vec![put(1, 20), with(put(2, 30), "outcome", json!("unavailable")), value("read", 6, (5, 2), 60)],
        ),
        ("value-older", &["I26"], vec![put(1, 20), put(2, 40), value("read", 6, (5, 1), 60)]),
        ("value-of-its-own-older", &["I26"], vec![put(1, 20), put(2, 40), value("read", 5, (5, 1), 60)]),
        ("value-gone", &["I26"], vec![value("release-with", 5, (5, 1), 20), value("read", 6, (0, 0), 60)]),
        ("value-of-a-later-holder", &["I26"], vec![put(1, 20), value("read", 4, (5, 1), 60)]),
        ("value-dropped", &[], vec![put(1, 20), drop(), value("read", 6, (0, 0), 60)]),
    ]
}

fn histories_of_watches() -> Vec<History> {
    let granted = |lease: u64, token: u64, begin: u64| grant(lease, token, begin, begin + 10);
    let acquires = || {
        let ended = |lease: u64, at: u64| with(ends(at), "lease", json!(lease));
        vec![granted(1, 5, 10), ended(1, 25), granted(2, 6, 30), ended(2, 45), granted(3, 7, 50)]
    };
    let watched = |token: u64| json!({ "event": "watched", "worker": 2, "watch": "key", "key": "k", "token": token });
    let missed = || json!({ "event": "missed", "worker": 2, "watch": "key" });
    let of_another = || with(missed(), "watch", json!("prefix"));
    let seen = |items: Vec<Value>| [acquires(), items].concat();
    vec![
        ("watched", &[], seen(vec![watched(5), watched(6), watched(7)])),
        ("watched-gap", &["I21"], seen(vec![watched(5), watched(7)])),
        ("watched-missed", &[], seen(vec![watched(5), missed(), watched(7)])),
        ("watched-missed-by-another", &["I21"], seen(vec![watched(5), of_another(), watched(7)])),
        ("watched-back", &["I21"], seen(vec![watched(6), watched(5)])),
        ("watched-again", &[], seen(vec![watched(6), watched(6), watched(7)])),
    ]
}

fn each_invariant_is_broken_by_a_history_made_for_it_and_no_other() {
    let first = || grant(1, 5, 10, 20);
    let stall = |from: u64, to: u64| json!({ "event": "stall", "worker": 1, "from": from * 1000, "to": to * 1000 });
    let refreshed = || json!({ "event": "refreshed", "worker": 1, "lease": 1, "begin": 500_000, "end": 510_000 });
    let probe = with(with(grant(9, 9, 10, 20), "probe", json!(true)), "outcome", json!("held"));
    let odd = with(first(), "outcome", json!("odd"));
    let mut histories: Vec<History> = vec![
        (
            "nothing",
            &[],
            vec![first(), believes(1, 21), ends(30), call("release", "ours", 30, 40), grant(2, 6, 50, 60)],
        ),
        ("twice", &["I1"], vec![first(), grant(2, 5, 15, 25)]),
        ("back", &["I2"], vec![first(), ends(21), grant(2, 4, 30, 40)]),
        (
            "overlap",
            &["I4"],
            vec![first(), ends(29), grant(2, 6, 30, 40), believes(1, 21), believes(2, 45), believes(1, 50)],
        ),
        ("soon", &["I4"], vec![first(), grant(2, 6, 1000, 1010)]),
        ("in-time", &[], vec![first(), grant(2, 6, 2010, 2020)]),
        ("version", &["I5"], vec![first(), inspect(1, 30, Some((4, &[])))]),
        ("gone", &["I5"], vec![first(), inspect(1, 3000, None)]),
        ("dropped", &[], vec![first(), drop(), inspect(1, 3000, None)]),
        ("collected", &[], vec![first(), inspect(1, 6100, None)]),
        ("holder", &["I5"], vec![first(), believes(1, 21), believes(1, 90), inspect(1, 50, Some((5, &[])))]),
        ("given", &["I5"], vec![first(), call("release", "ours", 30, 40), inspect(1, 50, Some((5, &[5])))]),
        ("left", &["I6"], vec![first(), inspect(0, 9000, Some((5, &[5])))]),
        ("late", &["I8"], vec![first(), call("refresh", "unavailable", 100, 3650)]),
        ("late-and-slow", &[], vec![first(), call("refresh", "unavailable", 100, 3650), slow(3000, 3200)]),
        ("later-and-slow", &["I8"], vec![first(), call("refresh", "unavailable", 100, 4150), slow(2000, 3200)]),
        ("paused", &[], vec![first(), stall(100, 1000), call("refresh", "unavailable", 100, 3400)]),
        ("odd", &["I8"], vec![odd]),
        ("old", &["I9"], vec![first(), ends(29), grant(2, 6, 30, 40), call("verify", "ok", 50, 60)]),
        ("robbed", &["I9"], vec![first(), lost(500, "taken-over", Some(6))]),
        ("expired", &["I9"], vec![first(), lost(500, "expired", None)]),
        ("lapsed", &[], vec![first(), lost(2100, "expired", None)]),
        ("refreshed", &["I9"], vec![first(), refreshed(), lost(2100, "expired", None)]),
        ("refreshed-and-heard", &["I9"], vec![first(), refreshed(), stall(900, 2050), lost(2100, "expired", None)]),
        ("refreshed-and-paused", &[], vec![first(), refreshed(), stall(511, 2050), lost(2100, "expired", None)]),
        ("refreshed-in-a-pause", &[], vec![first(), refreshed(), stall(505, 2050), lost(2100, "expired", None)]),
        (
            "refreshed-and-paused-shortly",
            &["I9"],
            vec![first(), refreshed(), stall(511, 700), lost(2100, "expired", None)],
        ),
        ("removed", &["I9"], vec![first(), lost(3000, "removed", None)]),
        ("deleted", &[], vec![first(), drop(), lost(3000, "removed", None)]),
        ("stuck", &["I10"], vec![first(), json!({ "event": "stuck", "worker": 1, "at": 9_000_000 })]),
        ("held", &["I10"], vec![probe]),
        ("unseen", &["I10"], vec![unavailable(inspect(0, 9000, None))]),
    ];
    let others = [
        histories_of_locks_delays_and_outages,
        histories_of_refusals,
        histories_of_ends,
        histories_of_ticks,
        histories_of_values,
        histories_of_holds,
        histories_of_watches,
    ];
    histories.extend(others.into_iter().flat_map(|histories| histories()));
    for (name, wanted, events) in histories {
        breaks_these(&run_event(), name, wanted, &events);
    }
}

/// A change of the primary that takes so long, or keeps tokens in order up to this difference of the clocks.
fn change(kind: &str, begin: u64, end: u64, bound: u64) -> Value {
    with(with(fault(begin, end), "kind", json!(kind)), "bound", json!(bound * 1000))
}

/// A name, by how many milliseconds clocks differ, the invariants that are broken, and what happened.
type HistoryOfRedis = (&'static str, u64, &'static [&'static str], Vec<Value>);

fn what_a_failover_of_redis_excuses_is_excused_and_no_more() {
    let failover = || change("failover", 30, 3000, 1000);
    let first = || grant(1, 5, 10, 20);
    let early = || lost(60, "taken-over", Some(6));
    let overlap = || vec![believes(1, 3010), grant(2, 6, 3020, 3030), believes(2, 3040), believes(1, 3050)];
    let long = |lease: u64, token: u64| with(grant(lease, token, 10, 20), "ttl", json!(9_000_000));
    let values = || vec![value("read", 6, (4, 1), 40), value("put", 5, (5, 1), 3050)];
    let histories: [HistoryOfRedis; 21] = [
        ("lost", 0, &[], vec![first(), failover(), early()]),
        ("lost-before", 0, &["I9"], vec![first(), early(), change("failover", 70, 3000, 1000)]),
        ("lost-orderly", 0, &["I9"], vec![first(), change("promote", 30, 50, 11_000), early()]),
        ("soon", 0, &[], vec![first(), failover(), grant(2, 6, 1000, 1010)]),
        ("overlap", 0, &[], [vec![long(1, 5), failover()], overlap()].concat()),
        ("overlap-of-later", 0, &["I4", "I4"], [vec![long(1, 5), change("failover", 1, 5, 1000)], overlap()].concat()),
        ("gone", 0, &[], vec![first(), failover(), inspect(1, 3100, None)]),
        ("outdated", 0, &[], vec![first(), failover(), inspect(1, 3100, Some((4, &[])))]),
        ("twice", 0, &["I1", "I2"], vec![first(), ends(21), failover(), grant(2, 5, 3100, 3110)]),
        ("back", 0, &["I2"], vec![first(), ends(21), failover(), grant(2, 4, 3100, 3110)]),
        ("back-within", 900, &["I2"], vec![first(), ends(21), failover(), grant(2, 4, 3100, 3110)]),
        ("back-beyond", 1100, &[], vec![first(), ends(21), failover(), grant(2, 4, 3100, 3110)]),
        ("twice-beyond", 1100, &[], vec![first(), ends(21), failover(), grant(2, 5, 3100, 3110)]),
        ("back-long-after", 1100, &["I2"], vec![first(), ends(21), failover(), grant(2, 4, 4200, 4210)]),
        ("back-before", 1100, &["I2"], vec![first(), ends(21), grant(2, 4, 25, 28), failover()]),
        ("two-primaries", 0, &["I2"], vec![first(), ends(21), change("split-brain", 22, 3000, 0), grant(2, 4, 40, 50)]),
        ("older-value", 0, &["I26"], values()),
        ("older-value-of-two-primaries", 0, &[], [vec![change("split-brain", 60, 3000, 0)], values()].concat()),
        ("connections", 0, &["I18"], vec![open(49)]),
        ("few-connections", 0, &[], vec![open(48)]),
        ("two-clocks", 1, &[], vec![first(), ends(21), change("split-brain", 22, 3000, 0), grant(2, 4, 40, 50)]),
    ];
    for (name, spread, wanted, events) in histories {
        let run = with(with(run_event(), "redis", json!(true)), "spread", json!(spread * 1000));
        breaks_these(&run, name, wanted, &events);
    }
}
