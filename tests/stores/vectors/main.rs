//! The test vectors of `protocol/`, on the state machine and on the memory store. `tests/stores/vectors/mongo.rs` has them on
//! MongoDB, and `tests/stores/redis/vectors.rs` on Redis.

mod notation;
mod replay;

use std::{collections::BTreeSet, time::Duration};

use mongoseal::{
    record::{self, StoreClock, StoreTime},
    store::{HybridTime, MemoryStore},
};
use serde_json::{Value, json};

use crate::notation::{Notation, Sent, only};

fn cases(vectors: &Value) -> &Vec<Value> {
    vectors["cases"].as_array().expect("there are cases")
}

#[test]
fn the_vectors_are_what_the_state_machine_does() {
    let vectors = replay::vectors();
    // 2027-01-15.
    let seconds = 1_800_000_000;
    let hlc = HybridTime { seconds, ordinal: 7 };
    let at = StoreClock { now: StoreTime::from_millis(i64::try_from(seconds).unwrap() * 1_000), hlc };
    let notation = Notation::at(&vectors["defaults"], at.now, hlc);
    for case in cases(&vectors) {
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
                (after.or(before), json!({ "done": done }))
            }
        };
        assert_eq!(after, notation.record(&case["after"]), "{}: the record", case["name"]);
        assert_eq!(outcome, case["outcome"], "{}: the outcome", case["name"]);
    }
}

#[test]
fn the_vectors_have_each_verb_and_each_outcome_and_no_name_twice() {
    let vectors = replay::vectors();
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
    let store = MemoryStore::default();
    // Its clock begins where tokens do, and the tokens of the records are smaller than those of the clock.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    replay::replay_all(&store, async |key, record| store.restore(key.clone(), record.clone())).await;
}
