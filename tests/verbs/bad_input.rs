//! What is wrong is said before anything is sent, with what to do.

use std::{
    future::IntoFuture,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use mongoseal::{
    Error, Mongoseal, Sharing,
    store::{MemoryStore, Store},
};
use tokio::runtime::Runtime;

use crate::{faulty::Faulty, secs};

fn invalid<T>(result: Result<T, Error>, says: &str) {
    let Err(error) = result else { panic!("it is refused: {says}") };
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{says}: {error}");
}

/// Each call is refused for what is named beside it.
async fn are_invalid<T>(calls: Vec<(impl IntoFuture<Output = Result<T, Error>>, &str)>) {
    for (call, says) in calls {
        invalid(call.await, says);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_acquire_or_campaign_is_refused_and_nothing_is_sent() {
    let (store, seal) = Faulty::open();
    let acquire = || seal.acquire("k").ttl(secs(10));
    are_invalid(vec![
        (seal.acquire(""), "must not be empty"),
        (seal.acquire("k".repeat(1025)), "1024 bytes"),
        (seal.acquire("a\0b"), "NUL"),
        (seal.acquire("job\n"), r#"a key has a control character: remove it from "job\n""#),
        (seal.acquire("a\tb"), r#""a\tb""#),
        (seal.acquire("job "), r#"ends with a space: remove it from "job ""#),
        (seal.acquire("\u{a0}job"), r#""\u{a0}job""#),
        (seal.acquire("'job'"), "is in quotes"),
        (acquire().group(""), "must not be empty"),
        (acquire().group("g\n"), "a group name has a control character"),
        (acquire().metadata("$set", "x"), "cannot name"),
        (acquire().ttl(Duration::ZERO), "from 10 ms"),
        (acquire().ttl(Duration::from_micros(500)), "from 10 ms"),
        (acquire().ttl(Duration::MAX), "from 10 ms to 365 d and "),
        (acquire().ttl(secs(25 * 3600)), "raise `retention`"),
        (acquire().refresh_every(Duration::ZERO), "up to half the ttl"),
        (acquire().refresh_every(secs(6)), "up to half the ttl"),
        (acquire().shared_up_to(0), "`shared_up_to` cannot be 0"),
        (acquire().without_expiry(), "leave one of them out"),
        (acquire().min_hold(secs(20)).max_hold(secs(10)), "at least 20 s and at most 10 s"),
        (acquire().min_hold(Duration::ZERO), "`min_hold` cannot be 0 s"),
        (acquire().max_hold(Duration::ZERO), "`max_hold` cannot be 0 s"),
        (acquire().min_hold(Duration::MAX), "`min_hold` cannot be"),
        (acquire().max_hold(secs(366 * 24 * 3_600)), "365 d"),
        (acquire().stalled_after(Duration::ZERO), "stalled_after"),
        (seal.acquire("k").without_expiry().max_hold(secs(10)), "without expiry"),
        (seal.acquire("k").without_expiry().stalled_after(secs(10)), "without expiry"),
    ])
    .await;

    are_invalid(vec![
        (seal.acquire_all(Vec::<&str>::new()), "no key is given"),
        (seal.acquire_all([""]), "must not be empty"),
        (seal.acquire_all(["a", "job\n"]), "control character"),
        (seal.acquire_all(["a", "b", "a"]), "\"a\" is given twice"),
        (seal.acquire_all(["a", "b"]).grace(secs(48 * 3600)), "a grace of"),
    ])
    .await;

    are_invalid(vec![
        (seal.acquire_any(Vec::<&str>::new()), "no key is given"),
        (seal.acquire_any(["a", "job\n"]), "control character"),
        (seal.acquire_any(["a", "b", "a"]), "\"a\" is given twice"),
    ])
    .await;

    let campaign = || seal.campaign("k").ttl(secs(30)).wait(secs(1));
    are_invalid(vec![
        (seal.campaign(""), "must not be empty"),
        (campaign().stop_margin(secs(48 * 3600)), "exceed the retention of idle records"),
        (campaign().refresh_every(secs(16)), "up to half the ttl"),
        (campaign().refresh_every(secs(0)), "`refresh_every` cannot be 0 s"),
        (campaign().ttl(secs(0)), "a ttl must be from 10 ms to 365 d and 0 s is not"),
        (campaign().ttl(secs(48 * 3600)), "exceed the retention of idle records"),
        (campaign().value("x".repeat(5_000)), "at most 4096 bytes"),
        (campaign().metadata("value", "b"), "the name of the leader's value"),
    ])
    .await;

    assert!(store.requests().is_empty());
    for good in [campaign().stop_margin(secs(45)), campaign().stop_margin(secs(0)).refresh_every(secs(15))] {
        good.await.unwrap().resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_call_of_another_verb_and_each_after_a_shutdown_are_refused_and_nothing_is_sent() {
    let (store, seal) = Faulty::open();
    let leader = seal.campaign("k").await.unwrap();
    let asked = store.requests().len();
    for text in ["", "a\0"] {
        invalid(seal.release_group(text).await, "group");
        invalid(seal.refresh_group(text, secs(60)).await, "group");
    }
    for one in [Sharing::Exclusive, Sharing::UpTo(0), Sharing::UpTo(1)] {
        invalid(leader.lease().downgrade(one).await, "2 or more");
    }
    invalid(leader.proclaim("x".repeat(5_000)).await, "at most 4096 bytes");
    are_invalid(vec![
        (seal.leases().key(""), "must not be empty"),
        (seal.leases().owner(""), "must not be empty"),
        (seal.leases().prefix("a\0"), "no NUL"),
        (seal.leases().prefix("k".repeat(1025)), "at most 1024"),
    ])
    .await;
    invalid(seal.inspect("").await, "must not be empty");
    assert_eq!(store.requests().len(), asked);
    drop(seal.leases().prefix("k".repeat(1024)).await.unwrap());
    seal.shutdown().await;
    invalid(seal.leases().await, "shut down");
    invalid(seal.inspect("k").await, "shut down");
    invalid(seal.purge().await, "shut down");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let builder = Mongoseal::builder;
    invalid(builder().owner("").in_memory(), "owner");
    invalid(builder().connections(20).in_memory(), "`connections` has no effect");
    invalid(builder().connections(20).sibling_of(&Mongoseal::in_memory()), "set it on that handle");
    invalid(builder().ttl(Duration::ZERO).in_memory(), "from 10 ms");
    invalid(builder().retention(secs(10)).in_memory(), "raise `retention`");
    let store = Arc::new(MemoryStore::new(secs(10)));
    invalid(builder().on_store(store.clone()), "raise `retention`");
    invalid(builder().retention(secs(100)).on_store(store), "keeps idle records for 10 s: leave it out");
    let open = || Arc::new(MemoryStore::default());
    let seal = builder().retention(open().retention()).on_store(open()).unwrap();
    invalid(builder().retention(secs(100)).sibling_of(&seal), "keeps idle records for 1 d: leave it out");
    invalid(builder().collection("leases").on_store(open()), "`collection` has no effect");
    invalid(builder().collection("leases").in_memory(), "`collection` has no effect");
    invalid(builder().database("app").on_store(open()), "`database` has no effect");
    invalid(builder().allow_sharded().on_store(open()), "`allow_sharded` has no effect");
    invalid(builder().collection("leases").sibling_of(&seal), "one place for records: leave `collection` out");
    invalid(builder().database("app").sibling_of(&seal), "one place for records: leave `database` out");
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
    let seal = Mongoseal::in_memory();
    let mut asking = pin!(seal.acquire("k").into_future());
    match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => invalid(result, "no tokio runtime"),
        Poll::Pending => panic!("it does not wait for a runtime"),
    }
}

#[test]
fn a_runtime_shut_down_ends_its_leases() {
    let runtime = Runtime::new().unwrap();
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let lease = runtime.block_on(async { seal.acquire("k").await.unwrap() });
    drop(runtime);
    assert!(!lease.is_valid());
    let other = Runtime::new().unwrap();
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

/// The retention of the store is shorter than the default ttl.
#[tokio::test(start_paused = true)]
async fn a_handle_on_a_store_with_a_short_retention_has_a_short_ttl() {
    for retention in [Duration::ZERO, secs(8)] {
        let seal = Mongoseal::in_memory_on(&MemoryStore::new(retention));
        let lease = seal.acquire("k").await.unwrap();
        assert!(lease.remaining() <= retention.max(Duration::from_millis(10)), "{:?}", lease.remaining());
        lease.release().await.unwrap();
    }
}
