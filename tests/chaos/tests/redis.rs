//! Tests of the fault runner on Redis.

use libtest_mimic::Trial;
use mongoseal_test_support::{Redis, find_libfaketime};
use serde_json::{Value, json};

use super::{
    breaks_nothing, figure,
    histories::{breaks_these, ends, fault, grant, inspect, lost, record, run_event, value, with, write},
    is_caught, test, tests,
};

/// The faults after which a confirmed write is still there.
const WITHOUT_LOSSES: &str = "kill,pause,partition,minority,deaf-client,promote,swallow-reply,kill-client,pause-client,kill-messages,script-flush,drop,latency,outage";
/// The faults that promote a replica, and what meets them.
const PROMOTIONS: &str = "failover,split-brain,promote,kill,pause,kill-client,pause-client,swallow-reply";

pub(super) fn tests() -> Vec<Trial> {
    let sabotages: [(&str, &str, &[&str]); 4] = [
        ("blind-swap", "kill-client", &["I1", "I2", "I4", "I5", "I9"]),
        ("short-keep", "kill-client", &["I4", "I5", "I9"]),
        ("lost-swap", "kill,partition,minority", &["I4", "I5", "I9"]),
        ("client-clock", "kill-client", &["I4", "I5", "I9"]),
    ];
    let caught = sabotages.into_iter().map(|(name, only, by)| {
        test(&format!("{name}_on_redis_is_caught"), Redis::missing, move || is_caught(name, only, by, &["--redis"]))
    });
    let mut tests: Vec<_> = caught.collect();
    tests.extend(tests![Redis::missing =>
        a_run_on_redis_without_lost_writes_breaks_nothing,
        two_primaries_of_redis_repeat_no_token_if_clocks_agree,
    ]);
    tests.extend(tests![|| find_libfaketime().err().or_else(Redis::missing) =>
        failovers_of_redis_repeat_no_token_if_they_take_longer_than_clocks_differ,
        two_primaries_of_redis_whose_clocks_differ_are_counted,
    ]);
    tests
}

fn a_run_on_redis_without_lost_writes_breaks_nothing() {
    let seen = [("faults", 5), ("attempts", 1_000), ("grants", 150)];
    let said = breaks_nothing(&["--redis", "--minutes", "0.3", "--only", WITHOUT_LOSSES], &seen);
    assert_eq!(["repeated", "overlaps", "lost early"].map(|name| figure(&said, name)), [0, 0, 0]);
}

fn failovers_of_redis_repeat_no_token_if_they_take_longer_than_clocks_differ() {
    let asked = ["--redis", "--minutes", "0.4", "--clock-offsets", "--only", "failover,pause-client"];
    let said = breaks_nothing(&asked, &[("failovers", 2)]);
    assert_eq!(figure(&said, "repeated"), 0, "{said}");
}

fn two_primaries_of_redis_repeat_no_token_if_clocks_agree() {
    let said = breaks_nothing(&["--redis", "--replicas", "0", "--minutes", "0.25", "--only", PROMOTIONS], &[]);
    assert!(said.contains("repeated     0 tokens, and 0 out of order"), "{said}");
}

/// The clock of the first primary is eight seconds ahead, so the other one issues smaller tokens meanwhile.
fn two_primaries_of_redis_whose_clocks_differ_are_counted() {
    let asked = ["--redis", "--replicas", "0", "--minutes", "0.4", "--only", "split-brain", "--clock-offset", "8"];
    let said = breaks_nothing(&asked, &[]);
    assert_ne!(figure(&said, "tokens, and"), 0, "{said}");
}

/// A change of the primary that takes so long, or keeps tokens in order up to this difference of the clocks.
fn change(kind: &str, begin: u64, end: u64, bound: u64) -> Value {
    with(with(fault(begin, end), "kind", json!(kind)), "bound", json!(bound * 1000))
}

/// A name, by how many milliseconds clocks differ, the invariants that are broken, and what happened.
type History = (&'static str, u64, &'static [&'static str], Vec<Value>);

pub(super) fn what_a_failover_of_redis_excuses_is_excused_and_no_more() {
    let failover = || change("failover", 30, 3000, 1000);
    let first = || grant(1, 5, 10, 20);
    let early = || lost(60, "taken-over", Some(6));
    let overlap =
        || vec![write(1, 5, 3010, true), grant(2, 6, 3020, 3030), write(2, 6, 3040, true), write(1, 5, 3050, false)];
    let long = |lease: u64, token: u64| with(grant(lease, token, 10, 20), "ttl", json!(9_000_000));
    let values = || vec![value("read", 6, (4, 1), 40), value("put", 5, (5, 1), 3050)];
    let histories: [History; 19] = [
        ("lost", 0, &[], vec![first(), failover(), early()]),
        ("lost-before", 0, &["I9"], vec![first(), early(), change("failover", 70, 3000, 1000)]),
        ("lost-orderly", 0, &["I9"], vec![first(), change("promote", 30, 50, 11_000), early()]),
        ("soon", 0, &[], vec![first(), failover(), grant(2, 6, 1000, 1010)]),
        ("overlap", 0, &[], [vec![long(1, 5), failover()], overlap()].concat()),
        ("overlap-of-later", 0, &["I4", "I4"], [vec![long(1, 5), change("failover", 1, 5, 1000)], overlap()].concat()),
        ("gone", 0, &[], vec![first(), failover(), inspect(1, 3100, &json!("nothing"))]),
        ("outdated", 0, &[], vec![first(), failover(), inspect(1, 3100, &record(4, &[]))]),
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
        ("two-clocks", 1, &[], vec![first(), ends(21), change("split-brain", 22, 3000, 0), grant(2, 4, 40, 50)]),
    ];
    for (name, spread, wanted, events) in histories {
        let run = with(with(run_event(), "redis", json!(true)), "spread", json!(spread * 1000));
        breaks_these(&run, name, wanted, &events);
    }
}
