//! What is wrong is said before anything is sent, with what to do.

use std::time::Duration;

use mongoseal::{Error, Mongoseal, store::MemoryStore};

use crate::{faulty::Faulty, secs};

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, says: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_is_refused_and_nothing_is_sent() {
    let store = Faulty::new();
    let seal = store.seal();
    invalid(seal.acquire("").await, "must not be empty");
    invalid(seal.acquire("k".repeat(1025)).await, "1024 bytes");
    invalid(seal.acquire("a\0b").await, "NUL");
    invalid(seal.acquire("job\n").await, r#"a key has a control character: remove it from "job\n""#);
    invalid(seal.acquire("a\tb").await, r#""a\tb""#);
    invalid(seal.acquire("job ").await, r#"ends with a space: remove it from "job ""#);
    invalid(seal.acquire("\u{a0}job").await, r#""\u{a0}job""#);
    invalid(seal.acquire("'job'").await, "is in quotes");
    invalid(seal.acquire_all(["a", "job\n"]).await, "control character");
    invalid(seal.acquire("k").group("g\n").await, "a group name has a control character");
    invalid(seal.acquire("k").ttl(Duration::ZERO).await, "from 10 ms");
    invalid(seal.acquire("k").ttl(Duration::from_micros(500)).await, "from 10 ms");
    invalid(seal.acquire("k").ttl(Duration::MAX).await, "from 10 ms to 365 d and ");
    invalid(seal.acquire("k").ttl(secs(25 * 3600)).await, "raise `retention`");
    invalid(seal.acquire("k").refresh_every(Duration::ZERO).await, "up to half the ttl");
    invalid(seal.acquire("k").ttl(secs(10)).refresh_every(secs(6)).await, "up to half the ttl");
    invalid(seal.acquire("k").metadata("$set", "x").await, "cannot name");
    assert!(store.requests().is_empty());
    assert!(store.records.is_empty());
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let builder = Mongoseal::builder;
    invalid(builder().owner("").in_memory(), "owner");
    invalid(builder().connections(20).in_memory(), "`connections` has no effect");
    invalid(builder().connections(20).sibling_of(&Mongoseal::in_memory()), "set it on that handle");
    invalid(builder().ttl(Duration::ZERO).in_memory(), "from 10 ms");
    invalid(builder().retention(secs(10)).in_memory(), "raise `retention`");
    let store = std::sync::Arc::new(mongoseal::store::MemoryStore::new(secs(10)));
    invalid(builder().on_store(store.clone()), "raise `retention`");
    invalid(builder().retention(secs(100)).on_store(store), "keeps idle records for 10 s: leave it out");
    let open = || std::sync::Arc::new(mongoseal::store::MemoryStore::default());
    let seal = builder().retention(mongoseal::store::Store::retention(&*open())).on_store(open()).unwrap();
    invalid(builder().retention(secs(100)).sibling_of(&seal), "keeps idle records for 1 d: leave it out");
    invalid(builder().collection("leases").on_store(open()), "`collection` has no effect");
    invalid(builder().collection("leases").in_memory(), "`collection` has no effect");
    invalid(builder().database("app").on_store(open()), "`database` has no effect");
    invalid(builder().allow_sharded().on_store(open()), "`allow_sharded` has no effect");
    invalid(builder().collection("leases").sibling_of(&seal), "one place for records: leave `collection` out");
    invalid(builder().retention(Duration::MAX).in_memory(), "`retention` can be at most 365 d");
    invalid(builder().grace(secs(48 * 3600)).in_memory(), "a grace of 2 d");
    invalid(builder().ttl(secs(20)).grace(secs(20)).retention(secs(30)).in_memory(), "raise `retention`");
    invalid(builder().operation_timeout(Duration::ZERO).in_memory(), "`operation_timeout` must be");
    invalid(builder().operation_timeout(Duration::MAX).in_memory(), "`operation_timeout` must be");
    invalid(builder().queue_limit(0).in_memory(), "`queue_limit` must be");
    invalid(builder().queue_limit(3_001).in_memory(), "`queue_limit` must be");
    invalid(builder().drift_allowance_ppm(1_000_000).in_memory(), "1,000 covers");
}

#[test]
fn a_call_outside_of_a_runtime_is_an_error_and_not_a_panic() {
    use std::{
        future::IntoFuture,
        pin::pin,
        task::{Context, Poll, Waker},
    };
    let seal = Mongoseal::in_memory();
    let mut asking = pin!(seal.acquire("k").into_future());
    match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => invalid(result, "no tokio runtime"),
        Poll::Pending => panic!("it does not wait for a runtime"),
    }
}

#[test]
fn a_lease_dropped_outside_of_a_runtime_is_released_by_the_one_that_keeps_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let seal = Mongoseal::in_memory();
    let lease = runtime.block_on(async { seal.acquire("k").await.unwrap() });
    drop(lease);
    runtime.block_on(async {
        let freed = async {
            while seal.acquire("k").await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(secs(5), freed).await.expect("the key is free long before its ttl");
    });
}

#[test]
fn a_runtime_shut_down_ends_its_leases() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let lease = runtime.block_on(async { seal.acquire("k").await.unwrap() });
    drop(runtime);
    assert!(!lease.is_valid());
    let other = tokio::runtime::Runtime::new().unwrap();
    other.block_on(async {
        assert!(matches!(lease.refresh().await, Err(Error::Ended { .. })));
        assert!(matches!(lease.verify().await, Err(Error::Ended { .. })));
        assert!(matches!(lease.release().await, Err(Error::Unavailable { .. })));
        let error = seal.acquire("k").await.unwrap_err();
        assert!(error.to_string().contains("make a new handle"), "{error}");
        let next = Mongoseal::in_memory_on(&store);
        assert!(matches!(next.acquire("k").await, Err(Error::Held { .. })), "left to its ttl");
    });
}

#[tokio::test(start_paused = true)]
async fn a_handle_on_a_store_with_a_short_retention_has_a_short_ttl() {
    for retention in [Duration::ZERO, secs(8)] {
        let seal = Mongoseal::in_memory_on(&MemoryStore::new(retention));
        let lease = seal.acquire("k").await.unwrap();
        assert!(lease.remaining() <= retention.max(Duration::from_millis(10)), "{:?}", lease.remaining());
        lease.release().await.unwrap();
    }
}
