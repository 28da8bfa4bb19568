//! The test vectors of `protocol/`, on the state machine and on the memory store. `tests/stores/vectors/mongo.rs` has them on
//! MongoDB, and `tests/stores/redis/vectors.rs` on Redis.
//!
//! `MONGOSEAL_VECTORS=write cargo test --test vectors` writes what the state machine does into the file.

mod notation;
mod replay;
mod text;
mod writing;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use mongoseal::{
    HybridTime, Key,
    record::{self, StoreClock, StoreTime},
    store::MemoryStore,
};
use serde_json::{Value, json};

use crate::notation::{Notation, Sent, only};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/protocol/vectors.json");
/// When the state machine looks at the records: 2027-01-15.
const SECONDS: u64 = 1_800_000_000;

fn read() -> (String, Value) {
    let text = fs::read_to_string(FILE).unwrap();
    let value = serde_json::from_str(&text).expect("it is JSON");
    (text, value)
}

fn cases(vectors: &Value) -> &Vec<Value> {
    vectors["cases"].as_array().expect("there are cases")
}

/// A case with what the state machine makes of it.
fn applied(notation: Notation<'_>, case: &Value) -> Value {
    let hlc = HybridTime { seconds: SECONDS, ordinal: 7 };
    let at = StoreClock { now: notation.now, hlc };
    let before = notation.record(&case["before"]);
    let (after, outcome) = match notation.sent(&case["request"]) {
        Sent::One(request) => {
            let (after, outcome) = record::apply(before.as_ref(), at, &request);
            (after, notation.outcome(&outcome))
        }
        Sent::Together(requests) => {
            let (after, outcomes) = record::apply_together(before.as_ref(), at, &requests);
            (after, outcomes.iter().map(|outcome| notation.outcome(outcome)).collect())
        }
        Sent::Batch(tokens, batch) => {
            let after = before.as_ref().and_then(|before| record::apply_batch(before, at, &tokens, &batch));
            let done = after.is_some();
            (after.or_else(|| before.clone()), json!({ "done": done }))
        }
    };
    json!({
        "name": case["name"],
        "before": notation.write_record(before.as_ref()),
        "request": case["request"],
        "after": notation.write_record(after.as_ref()),
        "outcome": outcome,
    })
}

#[test]
fn the_vectors_are_what_the_state_machine_does() {
    let (found, vectors) = read();
    let hlc = HybridTime { seconds: SECONDS, ordinal: 7 };
    let now = StoreTime::from_millis(i64::try_from(SECONDS).unwrap() * 1_000);
    let notation = Notation::at(&vectors["defaults"], now, hlc);
    let cases: Vec<Value> = cases(&vectors).iter().map(|case| applied(notation, case)).collect();
    let listed: Vec<String> = cases.iter().map(|case| format!("    {}", text::text(case, 4))).collect();
    let defaults = text::text(&vectors["defaults"], 2);
    let expected = format!("{{\n  \"defaults\": {defaults},\n  \"cases\": [\n{}\n  ]\n}}\n", listed.join(",\n"));
    if std::env::var("MONGOSEAL_VECTORS").is_ok_and(|what| what == "write") {
        fs::write(Path::new(FILE), expected).unwrap();
        return;
    }
    for (case, expected) in crate::cases(&vectors).iter().zip(&cases) {
        assert_eq!(case, expected, "{}", case["name"]);
    }
    assert_eq!(found, expected, "MONGOSEAL_VECTORS=write cargo test --test vectors");
}

#[test]
fn the_vectors_have_each_verb_and_each_outcome_and_no_name_twice() {
    let (_, vectors) = read();
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut names = BTreeSet::new();
    for case in cases(&vectors) {
        assert!(names.insert(case["name"].to_string()), "{} comes twice", case["name"]);
        let (verb, of) = only(&case["request"]);
        found.insert(verb.into());
        if verb == "batch" {
            found.extend(of.as_object().unwrap().keys().map(|part| format!("batch {part}")));
        }
        for one in of.as_array().into_iter().flatten() {
            found.insert(format!("together {}", only(one).0));
        }
        let outcomes = case["outcome"].as_array().map_or_else(|| vec![&case["outcome"]], |all| all.iter().collect());
        found.extend(outcomes.into_iter().map(|outcome| only(outcome).0.to_owned()));
    }
    let all = "acquire refresh release leave revoke transfer upgrade downgrade raise complete reset put_value prune together batch granted \
        queued full completed refused refreshed released transferred downgraded absent revoked raised pruned done \
        value_put value_outdated";
    let joint = ["batch release", "batch revoke", "batch keep", "batch tokens"];
    let together = ["together acquire", "together leave"];
    let all: BTreeSet<String> = all.split_whitespace().chain(joint).chain(together).map(str::to_owned).collect();
    assert_eq!(found, all);
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_does_what_the_vectors_say() {
    let (_, vectors) = read();
    let store = MemoryStore::default();
    // Its clock begins where tokens do, and the tokens of the records are smaller than those of the clock.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    for (number, case) in cases(&vectors).iter().enumerate() {
        let key: Key = format!("vectors/{number}").parse().unwrap();
        let put = async |record: &record::Record| store.restore(key.clone(), record.clone());
        replay::replay(&store, (&vectors["defaults"], case), &key, put).await;
    }
}
