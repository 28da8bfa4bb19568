//! The options of an acquire of several keys, and the leases of a set.

use std::{future::IntoFuture, time::Duration};

use mongoseal::{Error, Lease, LeaseState, LossCause, Mongoseal, Retry, Sharing, record::Request};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn the_leases_of_a_set_are_given_in_the_order_of_their_keys_and_by_their_keys() {
    let set = Mongoseal::in_memory().acquire_all(["c", "a", "b"]).await.unwrap();
    assert!(set.iter().map(|lease| lease.key().as_str()).eq(["a", "b", "c"]));
    let mut tokens = Vec::new();
    for lease in &set {
        lease.verify().await.unwrap();
        lease.refresh().await.unwrap();
        tokens.push((lease.key(), lease.token()));
    }
    assert!(set.tokens().eq(tokens));
    let b = set.lease("b").unwrap();
    assert_eq!((b.key().as_str(), Some(b.token()), b.state()), ("b", set.token("b"), LeaseState::Held));
    assert!(set.lease("d").is_none() && set.lease("").is_none());
}

#[tokio::test(start_paused = true)]
async fn each_option_holds_for_each_lease() {
    let store = Faulty::new();
    let seal = store.seal();
    let holder = async |key: &str| store.seal().inspect(key).await.unwrap().unwrap().holders.remove(0);
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10));

    let set = all().grace(secs(3)).without_refresh().group("g").metadata("why", "test").await.unwrap();
    for key in ["a", "b"] {
        let holder = holder(key).await;
        assert_eq!((holder.remaining, holder.sharing), (Some(secs(13)), Sharing::Exclusive));
        assert_eq!((holder.group.unwrap().as_str(), holder.metadata.get("why")), ("g", Some("test")));
    }
    tokio::time::sleep(secs(13)).await;
    assert!(!set.is_valid(), "nothing was refreshed");
    drop(set);

    let set = all().refresh_every(secs(1)).await.unwrap();
    tokio::time::sleep(millis(1_500)).await;
    for key in ["a", "b"] {
        let left = holder(key).await.remaining.unwrap();
        assert!(left >= secs(9) + GRACE, "{left:?}");
    }
    set.release().await.unwrap();

    let (one, two) = (all().shared_up_to(2).await.unwrap(), all().shared().await.unwrap());
    assert!(matches!(all().shared().await, Err(Error::Held { .. })));
    assert_eq!(holder("b").await.sharing, Sharing::UpTo(2));
    drop((one, two));
    tokio::time::sleep(millis(1)).await;

    let set = seal.acquire_all(["a", "b"]).without_expiry().await.unwrap();
    assert_eq!((set.remaining(), holder("b").await.remaining), (Duration::MAX, None));
    set.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_a_hold_are_those_of_each_lease_of_a_complete_set_only() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10)).min_hold(secs(60)).max_hold(secs(90));
    let held = other.acquire("b").await.unwrap();
    assert!(matches!(all().await, Err(Error::Held { .. })));
    other.acquire("a").await.unwrap().release().await.unwrap();
    let waiting = tokio::spawn(all().wait(secs(3_600)).into_future());
    tokio::time::sleep(secs(1)).await;
    waiting.abort();
    tokio::time::sleep(secs(1)).await;
    other.acquire("a").await.unwrap().release().await.unwrap();
    held.release().await.unwrap();

    let set = all().await.unwrap();
    let remaining: Vec<_> = set.iter().map(Lease::remaining_hold).collect();
    assert!(remaining.iter().all(|left| *left <= secs(90) && *left > secs(89)), "{remaining:?}");
    set.release().await.unwrap();
    for key in ["a", "b"] {
        assert!(matches!(other.acquire(key).await, Err(Error::Held { is_released: true, .. })), "{key}");
    }
    let set = all().wait(secs(120)).await.unwrap();
    assert!(matches!(set.cancelled().await, (_, LeaseState::Lost { cause: LossCause::HeldTooLong })));
}

#[tokio::test(start_paused = true)]
async fn options_that_do_not_fit_are_refused_before_anything_is_sent() {
    let store = Faulty::new();
    let seal = store.seal();
    let all = || seal.acquire_all(["a", "b"]);
    for (bad, says) in [
        (all().wait(secs(1)).retry(Retry::fixed(secs(1)).attempts(2)), "set one of them"),
        (all().retry(Retry::fixed(secs(1))), "has no end"),
        (all().without_expiry().ttl(secs(1)), "be without expiry"),
        (all().shared_up_to(0), "`shared_up_to` cannot be 0"),
        (all().ttl(secs(10)).refresh_every(secs(6)), "up to half the ttl"),
        (all().grace(secs(48 * 3600)), "a grace of"),
    ] {
        let error = bad.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{error}");
    }
    assert!(store.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_for_all_keys_and_none_is_held_between_two() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let held = other.acquire("b").await.unwrap();
    let began = tokio::time::Instant::now();
    let failed = seal.acquire_all(["a", "b"]).retry(Retry::fixed(secs(2)).attempts(3)).await;
    match failed {
        Err(Error::RetriesExhausted { key, attempts, .. }) => assert_eq!((key.as_str(), attempts), ("b", 3)),
        other => panic!("{other:?}"),
    }
    assert_eq!(began.elapsed(), secs(4));
    let acquires = store.requests().into_iter().filter(|request| matches!(request, Request::Acquire(_))).count();
    assert_eq!(acquires, 1 + 3 * 2);

    let retrying = tokio::spawn(seal.acquire_all(["a", "b"]).retry(Retry::fixed(secs(2)).unlimited()).into_future());
    tokio::time::sleep(secs(5)).await;
    other.acquire("a").await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    assert!(retrying.await.unwrap().unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_the_handle_counts_for_several_keys_and_ends_with_the_handle() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().retry(Retry::fixed(secs(2)).attempts(2)));
    let _held = store.seal().acquire("b").await.unwrap();
    assert!(matches!(seal.acquire_all(["a", "b"]).await, Err(Error::RetriesExhausted { attempts: 2, .. })));
    assert!(matches!(seal.acquire_all(["a", "b"]).wait(millis(1)).await, Err(Error::Held { .. })));
    let retrying = seal.acquire_all(["a", "b"]).retry(Retry::fixed(secs(3_600)).unlimited()).into_future();
    let retrying = tokio::spawn(retrying);
    tokio::time::sleep(secs(1)).await;
    seal.shutdown().await;
    let ended = tokio::time::timeout(secs(1), retrying).await.expect("it does not wait for the next attempt");
    assert!(matches!(ended.unwrap(), Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_error_other_than_a_held_key_ends_the_attempts_and_a_dropped_retry_leaves_nothing_held() {
    let store = Faulty::new();
    let seal = store.seal();
    let retry = || seal.acquire_all(["a", "b"]).retry(Retry::fixed(secs(2)).unlimited());
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    assert!(matches!(retry().await, Err(Error::Invalid { .. })));
    store.heal();
    let _held = store.seal().acquire("b").await.unwrap();
    assert!(tokio::time::timeout(secs(7), retry().into_future()).await.is_err());
    tokio::time::sleep(millis(1)).await;
    drop(store.seal().acquire("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn work_with_several_keys_has_all_leases_and_leaves_none() {
    let store = Faulty::new();
    let seal = store.seal();
    let keys = seal.acquire_all(["b", "a"]).with(async |set| {
        assert!(store.seal().acquire("a").await.is_err());
        set.iter().map(|lease| lease.key().to_string()).collect::<Vec<_>>()
    });
    assert_eq!(keys.await.unwrap(), ["a", "b"]);
    drop(store.seal().acquire_all(["a", "b"]).await.unwrap().release().await.unwrap());

    let lost = seal.acquire_all(["a", "b"]).with(async |_set| {
        store.seal().revoke("b").by("ops").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert!(
        matches!(lost.await, Err(Error::Lost { key, cause: LossCause::Revoked { .. }, .. }) if key.as_str() == "b")
    );
    let unseen = seal.acquire_all(["a", "b"]).without_refresh().with(async |set| {
        let token = set.token("a");
        store.records.remove(set.lease("a").unwrap().key());
        token
    });
    assert!(matches!(unseen.await, Err(Error::Lost { key, .. }) if key.as_str() == "a"));
}
