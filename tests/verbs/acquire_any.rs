//! One key of several, if the store or time get in between.

use std::future::IntoFuture;

use mongoseal::{Error, Retry, record::Request};
use tokio::time::Instant;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn of_two_keys_that_are_granted_at_once_one_is_kept_and_the_other_is_free_at_once() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let held = other.acquire_all(["a", "b"]).await.unwrap();
    let any = tokio::spawn(seal.acquire_any(["a", "b"]).min_hold(secs(60)).wait(secs(3_600)).into_future());
    tokio::time::sleep(secs(1)).await;
    held.release().await.unwrap();
    let kept = any.await.unwrap().unwrap();
    let free = if kept.key().as_str() == "a" { "b" } else { "a" };
    other.acquire(free).wait(secs(1)).await.unwrap().release().await.unwrap();
    assert!(matches!(other.acquire(kept.key().clone()).await, Err(Error::Held { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_for_all_keys_together_and_a_retry_attempts_each_once() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let _held = other.acquire_all(["a", "b"]).await.unwrap();
    let any = || seal.acquire_any(["b", "a"]);
    let began = Instant::now();
    let refused = any().wait(secs(5)).await;
    assert!(matches!(&refused, Err(Error::Held { .. })), "{refused:?}");
    assert!(began.elapsed() >= secs(5) && began.elapsed() < secs(6), "{:?}", began.elapsed());
    assert!(other.inspect("a").await.unwrap().unwrap().queue.is_empty(), "it has left the queue");

    let asked = store.requests().len();
    let policy = Retry::fixed(millis(100)).attempts(3);
    let exhausted = any().retry(policy).await;
    assert!(matches!(&exhausted, Err(Error::RetriesExhausted { key, attempts: 3, .. }) if key.as_str() == "b"));
    assert_eq!(store.requests().len() - asked, 6);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_refused_is_passed_over_and_that_another_is_held_is_the_error() {
    let store = Faulty::new();
    let (seal, other) = (store.build(mongoseal::Mongoseal::builder().queue_limit(1)), store.seal());
    let held = other.acquire("b").await.unwrap();
    let _a = other.acquire("a").await.unwrap();
    let waits = tokio::spawn(other.acquire("a").wait(secs(3_600)).into_future());
    tokio::time::sleep(millis(10)).await;
    let any = || seal.acquire_any(["a", "b"]).wait(secs(5));
    let refused = any().await;
    assert!(
        matches!(&refused, Err(Error::Held { key, .. }) if key.as_str() == "b"),
        "the queue of a is full: {refused:?}"
    );
    let any = tokio::spawn(any().into_future());
    tokio::time::sleep(millis(10)).await;
    held.release().await.unwrap();
    let held = any.await.unwrap().unwrap();
    assert_eq!(held.key().as_str(), "b");

    let mut asked = 0;
    store.script(move |call| {
        asked += usize::from(matches!(call, Call::Apply(_)));
        (asked == 1).then_some(Fault::Refuse)
    });
    let retried = seal.acquire_any(["c", "b"]).retry(Retry::fixed(millis(100)).attempts(3)).await.unwrap();
    assert_eq!(retried.key().as_str(), "c", "it was free at the second attempt");
    waits.abort();
}

#[tokio::test(start_paused = true)]
async fn a_key_for_which_nothing_is_answered_holds_up_no_other() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let (first, second) = (seal.acquire("a").await.unwrap(), other.acquire("b").await.unwrap());
    // An acquire of a key waits for the release of the handle's own lease.
    store.script(|call| matches!(call, Call::Jointly(_) | Call::Apply(Request::Release(_))).then_some(Fault::Hang));
    drop(first);
    let began = Instant::now();
    let free = seal.acquire_any(["a", "c"]).await.unwrap();
    assert_eq!(free.key().as_str(), "c");
    assert!(began.elapsed() < secs(6), "{:?}", began.elapsed());
    let waits = tokio::spawn(seal.acquire_any(["a", "b"]).wait(secs(3_600)).into_future());
    tokio::time::sleep(secs(12)).await;
    store.heal();
    second.release().await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap().key().as_str(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_or_not_answered_leaves_no_key_held() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let is_free = async |key: &str| drop(other.acquire(key).wait(secs(1)).await.unwrap());
    // The second key is granted, and nobody is told.
    let held = other.acquire("a").await.unwrap();
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::LoseReply));
    let any = seal.acquire_any(["a", "b"]).into_future();
    assert!(matches!(any.await, Err(Error::Unavailable { .. })));
    store.heal();
    is_free("b").await;

    for fault in [Fault::Delay(secs(1)), Fault::DelayReply(secs(1))] {
        store.always(fault);
        assert!(tokio::time::timeout(millis(500), seal.acquire_any(["b", "a"]).into_future()).await.is_err());
        store.heal();
        tokio::time::sleep(secs(1)).await;
        is_free("b").await;
    }
    held.release().await.unwrap();
    is_free("a").await;
}
