//! One key of several, if the store or time get in between.

use std::future::IntoFuture;

use mongoseal::{Error, Retry};
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
    let held = other.acquire_all(["a", "b"]).await.unwrap();
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
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_one_key_is_told_only_if_no_other_is_granted() {
    let store = Faulty::new();
    let limited = |limit| store.build(mongoseal::Mongoseal::builder().queue_limit(limit));
    let (seal, other) = (limited(1), store.seal());
    let mut held = vec![other.acquire("a").await.unwrap(), other.acquire("b").await.unwrap()];
    let waits = tokio::spawn(other.acquire("a").wait(secs(3_600)).into_future());
    tokio::time::sleep(millis(10)).await;

    let full = seal.acquire_any(["a", "b"]).wait(secs(5)).await;
    assert!(matches!(&full, Err(Error::QueueFull { key, .. }) if key.as_str() == "a"), "{full:?}");
    let any = tokio::spawn(seal.acquire_any(["a", "b"]).wait(secs(5)).into_future());
    tokio::time::sleep(millis(10)).await;
    held.pop().unwrap().release().await.unwrap();
    assert_eq!(any.await.unwrap().unwrap().key().as_str(), "b");
    waits.abort();
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

    store.always(Fault::DelayReply(secs(1)));
    assert!(tokio::time::timeout(millis(500), seal.acquire_any(["b", "a"]).into_future()).await.is_err());
    store.heal();
    tokio::time::sleep(secs(1)).await;
    is_free("b").await;
    held.release().await.unwrap();
    is_free("a").await;
}
