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
async fn a_delay_may_be_longer_than_the_operation_timeout() {
    let (store, holder) = Faulty::held().await;
    let retry = Retry::fixed(secs(300)).attempts(3);
    let refused = store.seal().acquire("k").retry(retry.clone()).await;
    assert!(matches!(refused, Err(Error::RetriesExhausted { attempts: 3, .. })), "{refused:?}");
    let retrying = tokio::spawn(store.seal().acquire("k").retry(retry).into_future());
    tokio::time::sleep(secs(100)).await;
    holder.release().await.unwrap();
    drop(retrying.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_policy_ends_after_its_attempts_or_before_its_total_time_is_over_with_an_error_of_its_own() {
    let (store, holder) = Faulty::held().await;
    for (policy, delay, expected) in [
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
    assert!(matches!(
        store.seal().acquire("k").retry(policy).await,
        Err(Error::RetriesExhausted { attempts: 3, elapsed, .. }) if elapsed == secs(20)
    ));
    let told = told.lock().unwrap();
    assert_eq!(told.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(told.iter().map(|attempt| attempt.elapsed).collect::<Vec<_>>(), [0, 10, 20].map(secs));
    assert_eq!(
        told.iter().map(|attempt| attempt.previous_delay).collect::<Vec<_>>(),
        [None, Some(secs(10)), Some(secs(10))]
    );
    assert_eq!(
        told.iter().map(|attempt| attempt.free_in).collect::<Vec<_>>(),
        [60, 50, 40].map(|left| secs(left) + GRACE)
    );
    assert!(told.iter().all(|attempt| attempt.owner == *holder.owner() && attempt.token == holder.token()));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_free_is_granted_at_the_next_attempt() {
    let store = Faulty::new();
    let holder = store.seal().acquire("k").ttl(secs(5)).without_refresh().await.unwrap();
    let token = holder.token();
    holder.orphan();
    let lease = store.seal().acquire("k").retry(Retry::fixed(secs(1)).unlimited()).await.unwrap();
    assert!(lease.token() > token);
}

#[tokio::test(start_paused = true)]
async fn only_contention_is_tried_again_by_a_policy() {
    let store = Faulty::new();
    let policy = || Retry::fixed(millis(10)).attempts(100);
    store.always(Fault::Refuse);
    assert!(matches!(store.seal().acquire("k").retry(policy()).await, Err(Error::Invalid { .. })));
    store.always(Fault::Fail);
    assert!(matches!(store.seal().acquire("k").retry(policy()).await, Err(Error::Unavailable { .. })));
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
    let held = |result| matches!(result, Err(Error::Held { .. }));
    let exhausted = |result| matches!(result, Err(Error::RetriesExhausted { .. }));
    let retry = || Retry::fixed(secs(1)).attempts(4);

    let waits = store.build(Mongoseal::builder().wait(secs(7)));
    let began = Instant::now();
    assert!(held(waits.acquire("k").await));
    assert_eq!(began.elapsed().as_secs(), 7);
    assert!(held(waits.acquire("k").wait(secs(2)).await));
    assert_eq!(began.elapsed().as_secs(), 9);
    assert!(exhausted(waits.acquire("k").retry(retry()).await));
    assert_eq!(began.elapsed().as_secs(), 12);

    let retries = store.build(Mongoseal::builder().retry(retry()));
    let began = Instant::now();
    assert!(exhausted(retries.acquire("k").await));
    assert_eq!(began.elapsed().as_secs(), 3);
    assert!(held(retries.acquire("k").wait(Duration::ZERO).await));
    assert_eq!(began.elapsed().as_secs(), 3);
    assert!(Mongoseal::builder().wait(secs(1)).retry(retry()).in_memory().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_between_attempts_asks_no_more() {
    let (store, holder) = Faulty::held().await;
    let made = attempts(&store);
    let seal = store.seal();
    let asked = seal.acquire("k").retry(Retry::fixed(secs(1)).unlimited());
    assert!(tokio::time::timeout(millis(2_500), asked.into_future()).await.is_err());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(made.lock().unwrap().len(), 3);
    holder.release().await.unwrap();

    // And a shutdown ends it.
    let _holder = store.seal().acquire("k").await.unwrap();
    let asked = tokio::spawn(seal.acquire("k").retry(Retry::fixed(secs(1)).unlimited()).into_future());
    tokio::time::sleep(secs(5)).await;
    seal.shutdown().await;
    assert!(asked.await.unwrap().unwrap_err().to_string().contains("shut down"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_closure_is_its_author_s() {
    let (store, _holder) = Faulty::held().await;
    let asked = tokio::spawn(store.seal().acquire("k").retry(Retry::custom(|_| panic!("mine"))).into_future());
    let panicked = asked.await.unwrap_err().into_panic();
    assert_eq!(panicked.downcast_ref(), Some(&"mine"));
}
