//! Asking again and again for a key that is held.

use std::{
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{Attempt, Error, Mongoseal, Retry, record::Request};
use tokio::time::Instant;

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// When each attempt is made from now on.
fn attempts(store: &Faulty) -> Arc<Mutex<Vec<Instant>>> {
    let made = Arc::<Mutex<Vec<_>>>::default();
    let noted = Arc::clone(&made);
    store.script(move |call| {
        if let Call::Apply(Request::Acquire(acquire)) = call {
            assert!(acquire.wait.is_none(), "attempts take no place in the queue");
            noted.lock().unwrap().push(Instant::now());
        }
        None
    });
    made
}

fn gaps(made: &[Instant]) -> Vec<Duration> {
    made.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_policy_ends_with_a_grant_after_its_attempts_or_before_its_total_time_is_over_with_an_error_of_its_own() {
    let (store, holder) = Faulty::held().await;
    // A delay may be longer than the operation timeout.
    let long = || Retry::fixed(secs(300)).attempts(3);
    for (policy, delay, expected) in [
        (long(), secs(300), 3),
        (Retry::fixed(millis(100)).attempts(4), millis(100), 4),
        (Retry::fixed(millis(300)).max_elapsed(secs(1)), millis(300), 4),
        (Retry::custom(|_| Some(millis(10))).attempts(7), millis(10), 7),
    ] {
        let made = attempts(&store);
        let error = store.seal().acquire("k").retry(policy).await.unwrap_err();
        let Error::RetriesExhausted { key, attempts, elapsed, held } = &error else { panic!("{error}") };
        assert_eq!((key.as_str(), *attempts, *elapsed), ("k", expected, delay * (expected - 1)));
        assert!(matches!(&**held, Error::Held { token, .. } if *token == holder.token()));
        assert!(error.source().unwrap().to_string().contains("is held by"));
        let gaps = gaps(&made.lock().unwrap());
        assert!(gaps.len() == expected as usize - 1 && gaps.iter().all(|gap| *gap == delay), "{gaps:?}");
    }
    let retrying = tokio::spawn(store.seal().acquire("k").retry(long()).into_future());
    tokio::time::sleep(secs(100)).await;
    holder.release().await.unwrap();
    drop(retrying.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn exponential_delays_double_up_to_the_longest_and_differ_by_chance() {
    let (store, _holder) = Faulty::held().await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let made = attempts(&store);
        let policy = Retry::exponential(millis(40), millis(400)).attempts(9);
        assert!(store.seal().acquire("k").retry(policy).await.is_err());
        let gaps = gaps(&made.lock().unwrap());
        for (gap, full) in gaps.iter().zip([40, 80, 160, 320, 400, 400, 400, 400].map(millis)) {
            // Timers go by whole milliseconds.
            assert!(*gap + millis(1) >= full / 2 && *gap <= full + millis(1), "{gap:?} of {full:?}");
        }
        seen.push(gaps);
    }
    assert_ne!(seen[0], seen[1]);
}

#[tokio::test(start_paused = true)]
async fn a_closure_is_told_what_there_is_to_know_and_can_stop() {
    let store = Faulty::new();
    let holder = store.seal().acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let told: Arc<Mutex<Vec<Attempt>>> = Arc::default();
    let note = Arc::clone(&told);
    let policy = Retry::custom(move |attempt| {
        note.lock().unwrap().push(attempt.clone());
        (attempt.number < 3).then_some(secs(10))
    });
    let ended = store.seal().acquire("k").retry(policy).await;
    let is_exhausted =
        matches!(ended, Err(Error::RetriesExhausted { attempts: 3, elapsed, .. }) if elapsed == secs(20));
    assert!(is_exhausted, "{ended:?}");
    let told = told.lock().unwrap();
    let times = told.iter().map(|told| (told.number, told.elapsed, told.previous_delay, told.free_in));
    let expected = [
        (1, secs(0), None, secs(60) + GRACE),
        (2, secs(10), Some(secs(10)), secs(50) + GRACE),
        (3, secs(20), Some(secs(10)), secs(40) + GRACE),
    ];
    assert!(times.eq(expected), "{told:?}");
    assert!(told.iter().all(|attempt| attempt.owner == *holder.owner() && attempt.token == holder.token()));
}

#[tokio::test(start_paused = true)]
async fn policies_that_contradict_themselves_or_have_no_end_are_refused() {
    let (store, seal) = Faulty::open();
    let zero = Duration::ZERO;
    for (policy, says) in [
        (Retry::fixed(millis(100)), "has no end"),
        (Retry::exponential(millis(100), secs(1)), "has no end"),
        (Retry::fixed(millis(100)).attempts(0), "`attempts` cannot be 0"),
        (Retry::fixed(zero).attempts(3), "a delay of zero"),
        (Retry::exponential(zero, secs(1)).attempts(3), "a delay of zero"),
        (Retry::exponential(secs(2), secs(1)).attempts(3), "swap them"),
        (Retry::fixed(secs(2)).max_elapsed(secs(1)), "makes no second attempt"),
        (Retry::fixed(secs(2)).attempts(3).unlimited(), "one or the other"),
        (Retry::custom(|_| None).attempts(0), "`attempts` cannot be 0"),
    ] {
        let shown = format!("{policy:?}");
        let error = seal.acquire("k").retry(policy.clone()).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{shown}: {error}");
        let error = Mongoseal::builder().retry(policy).in_memory().unwrap_err();
        assert!(error.to_string().contains(says), "{shown}: {error}");
    }
    let error = seal.acquire("k").wait(secs(1)).retry(Retry::fixed(secs(1)).attempts(3)).await.unwrap_err();
    assert!(error.to_string().contains("set one of them"), "{error}");
    assert!(store.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_handle_has_defaults_and_each_call_can_have_its_own() {
    let store = Faulty::new();
    let _holder = store.seal().acquire("k").ttl(secs(3600)).await.unwrap();
    let retry = || Retry::fixed(secs(1)).attempts(4);
    let waits = store.build(Mongoseal::builder().wait(secs(7)));
    let retries = store.build(Mongoseal::builder().retry(retry()));
    for (acquire, takes, retries) in [
        (waits.acquire("k"), 7, false),
        (waits.acquire("k").wait(secs(2)), 2, false),
        (waits.acquire("k").retry(retry()), 3, true),
        (retries.acquire("k"), 3, true),
        (retries.acquire("k").wait(Duration::ZERO), 0, false),
    ] {
        let began = Instant::now();
        let error = acquire.await.unwrap_err();
        assert_eq!(matches!(error, Error::RetriesExhausted { .. }), retries, "{error}");
        assert_eq!(began.elapsed().as_secs(), takes, "{error}");
    }
    assert!(Mongoseal::builder().wait(secs(1)).retry(retry()).in_memory().is_err());
}

#[tokio::test(start_paused = true)]
async fn attempts_end_with_their_caller_their_handle_a_panic_of_their_closure_and_any_error_but_contention() {
    let (store, _holder) = Faulty::held().await;
    let seal = store.seal();
    let made = attempts(&store);
    let asking = || seal.acquire("k").retry(Retry::fixed(secs(1)).unlimited()).into_future();
    assert!(tokio::time::timeout(millis(2_500), asking()).await.is_err());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(made.lock().unwrap().len(), 3);

    let asked = tokio::spawn(seal.acquire("k").retry(Retry::custom(|_| panic!("mine"))).into_future());
    assert_eq!(asked.await.unwrap_err().into_panic().downcast_ref(), Some(&"mine"));

    store.always(Fault::Refuse);
    assert!(matches!(asking().await, Err(Error::Invalid { .. })));
    store.always(Fault::Fail);
    assert!(matches!(asking().await, Err(Error::Unavailable { .. })));
    store.heal();

    let asked = tokio::spawn(asking());
    tokio::time::sleep(secs(5)).await;
    seal.shutdown().await;
    assert!(asked.await.unwrap().unwrap_err().to_string().contains("shut down"));
}
