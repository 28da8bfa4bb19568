//! A case on a store whose clock cannot be set.
//!
//! The record is put in place with times relative to the store's clock. The store looks at it a little later, by some
//! milliseconds. So times are compared with that tolerance, and the cases keep away from what it could change. With the
//! clocks of the answer the state machine says the record exactly, and that is compared, too.

use std::task::{Context, Poll, Waker};

use mongoseal::{
    FencingToken, Key,
    record::{self, Holder, Outcome, Raise, Record, Request, StoreClock, StoreTime, Waiter},
    store::{Applied, Deadline, Store},
};
use mongoseal_test_support::secs;
use serde_json::{Value, json};

use crate::notation::{Notation, Sent, more, number};

/// What is compared with less tolerance than this is no case for a store.
const MARGIN: i64 = 30_000;

/// What `protocol/vectors.json` has.
pub(crate) fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../protocol/vectors.json")).expect("it is JSON")
}

/// Replays all cases on a store. `put` puts a record in place under a key.
pub(crate) async fn replay_all(store: &dyn Store, put: impl AsyncFn(&Key, &Record)) {
    let vectors = vectors();
    for (number, case) in vectors["cases"].as_array().expect("there are cases").iter().enumerate() {
        let key = format!("vectors/{number}").parse().unwrap();
        replay(store, (&vectors["defaults"], case), &key, &put).await;
    }
}

async fn replay(
    store: &dyn Store,
    (defaults, case): (&Value, &Value),
    key: &Key,
    put: impl AsyncFnOnce(&Key, &Record),
) {
    let name = &case["name"];
    let began = clocks(store).await;
    let notation = Notation::at(defaults, began.now, began.hlc);
    let before = notation.record(&case["before"]);
    if let Some(before) = &before {
        put(key, before).await;
    }
    let sent = notation.sent(&case["request"]);
    let (outcomes, at) = send(store, key, &sent).await;
    let after = read(store, key).await;
    let slack = clocks(store).await.now.millis() - began.now.millis() + 1_000;
    assert!(slack < MARGIN, "{name}: the store was slow");

    // The tokens that the clock has numbered: by the clock of the answer, or if there is none, by the first of them.
    let bound = || {
        let by = more(case["after"]["version"].as_str()?, "clock")?;
        after.as_ref()?.version.get().checked_add_signed(-by)
    };
    let clock = at.map(|at| number(at.hlc)).or_else(bound).unwrap_or(notation.clock);
    assert!(clock >= notation.clock, "{name}: the hybrid clock went back");
    let notation = Notation { clock, ..notation };
    let outcome = match outcomes {
        Answer::One(outcome) => notation.outcome(&outcome),
        Answer::Several(outcomes) => outcomes.iter().map(|outcome| notation.outcome(outcome)).collect(),
        Answer::Done(done) => json!({ "done": done }),
    };
    assert_eq!(outcome, case["outcome"], "{name}: the outcome");
    let mut expected = notation.record(&case["after"]);
    if let (Some(expected), Some(after)) = (&mut expected, &after) {
        times(expected).into_iter().zip(times(&mut after.clone())).for_each(|(expected, actual)| {
            if actual.millis().abs_diff(expected.millis()) <= slack.unsigned_abs() {
                *expected = *actual;
            }
        });
    }
    assert_eq!(after, expected, "{name}: the record, with times within {slack} ms");
    if let (Sent::One(request), Some(at)) = (&sent, at) {
        assert_eq!(after, record::apply(before.as_ref(), at, request).0, "{name}: the record at {at:?}");
    }
}

enum Answer {
    One(Outcome),
    Several(Vec<Outcome>),
    Done(bool),
}

/// Sends what a case sends. Gives the answers, and when the store looked at the record, if it was one request.
async fn send(store: &dyn Store, key: &Key, sent: &Sent) -> (Answer, Option<StoreClock>) {
    match sent {
        Sent::One(request) => {
            let Applied { outcome, at, .. } = store.apply(key, request.clone(), deadline(store)).await.unwrap();
            (Answer::One(outcome), at)
        }
        Sent::Together(requests) => {
            let mut answers: Vec<_> =
                requests.iter().map(|request| store.apply(key, request.clone(), deadline(store))).collect();
            // All are sent before the first is answered.
            let ready = answers.iter_mut().map(|answer| answer.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            let ready: Vec<_> = ready.collect();
            let mut all = Vec::new();
            for (answer, ready) in answers.into_iter().zip(ready) {
                let applied = if let Poll::Ready(applied) = ready { applied } else { answer.await };
                all.push(applied.unwrap().outcome);
            }
            (Answer::Several(all), None)
        }
        Sent::Batch(tokens, batch) => {
            let leases = vec![(key.clone(), tokens.clone())];
            (Answer::Done(store.apply_batch(&leases, batch, deadline(store)).await.unwrap()), None)
        }
    }
}

fn deadline(store: &dyn Store) -> Deadline {
    Deadline::after(store.clock(), secs(20))
}

async fn read(store: &dyn Store, key: &Key) -> Option<Record> {
    store.read(key, deadline(store)).await.unwrap().map(|snapshot| *snapshot.record)
}

/// The store's clocks. A raise to the smallest token changes a record of its own once, and tells them.
async fn clocks(store: &dyn Store) -> StoreClock {
    let raise = Request::Raise(Raise { to: FencingToken::MIN });
    let key = "vectors/clock".parse().unwrap();
    store.apply(&key, raise, deadline(store)).await.unwrap().at.expect("a raise tells the clocks")
}

/// All times of a record.
fn times(record: &mut Record) -> Vec<&mut StoreTime> {
    let Record { holders, queue, history, done, runs, value, last_seen, expires_at, .. } = record;
    let mut all = vec![last_seen, expires_at];
    for Holder { since, last_seen, expires_at, not_after, released_at, .. } in holders {
        all.extend([since, last_seen, expires_at]);
        all.extend([not_after, released_at].into_iter().flatten());
    }
    for Waiter { since, last_seen, expires_at, .. } in queue {
        all.extend([since, last_seen, expires_at]);
    }
    all.extend(done.iter_mut().map(|done| &mut done.at));
    all.extend(value.iter_mut().map(|value| &mut value.at));
    all.extend(runs.iter_mut().flat_map(|run| [&mut run.since, &mut run.at]));
    all.extend(history.iter_mut().map(|revocation| &mut revocation.at));
    all
}
