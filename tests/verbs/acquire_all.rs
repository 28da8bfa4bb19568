//! Several keys at once.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{
    Error, Lease, LeaseSet, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Retry, Sharing, record::Request,
};
use tokio::time::Instant;

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Three keys, and what was asked of the store since.
async fn three(store: &Faulty) -> (LeaseSet, usize) {
    let set = store.seal().acquire_all(["c", "a", "b"]).await.unwrap();
    (set, store.requests().len())
}

/// Releases a set. Returns whether each of its leases was held until then.
async fn release(set: LeaseSet) -> Vec<bool> {
    set.release().await.unwrap().iter().map(|(_, how)| *how == ReleaseOutcome::Released).collect()
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_held_with_a_lease_each_in_the_order_of_their_keys() {
    let store = Faulty::new();
    let (set, _) = three(&store).await;
    assert!(set.iter().map(|lease| lease.key().as_str()).eq(["a", "b", "c"]));
    for lease in &set {
        lease.verify().await.unwrap();
        lease.refresh().await.unwrap();
        let refused = store.seal().acquire(lease.key()).await;
        assert!(matches!(refused, Err(Error::Held { token, .. }) if token == lease.token()), "{refused:?}");
    }
    assert!(set.tokens().eq(set.iter().map(|lease| (lease.key(), lease.token()))));
    let b = set.lease("b").unwrap();
    assert_eq!((b.key().as_str(), Some(b.token()), b.state()), ("b", set.token("b"), LeaseState::Held));
    assert!(set.lease("d").is_none() && set.lease("").is_none() && set.token("d").is_none());
    assert!(set.is_valid() && set.remaining() > secs(29));
    assert_eq!(set.run(async { 42 }).await.unwrap(), 42);
}

#[tokio::test(start_paused = true)]
async fn a_set_is_released_and_dropped_by_one_command_after_all_work_under_it_has_been_stopped() {
    for by_drop in [false, true] {
        let store = Faulty::new();
        let (set, asked) = three(&store).await;
        let (signal, stopped) = (set.cancellation_token(), Arc::new(Mutex::new(Vec::new())));
        let note = Arc::clone(&stopped);
        store.script(move |call| {
            if matches!(call, Call::Jointly(_)) {
                note.lock().unwrap().push(signal.is_cancelled());
            }
            None
        });
        if by_drop {
            drop(set);
        } else {
            assert_eq!(release(set).await, [true; 3]);
        }
        tokio::time::sleep(millis(1)).await;
        assert_eq!((&stopped.lock().unwrap()[..], store.requests().len()), (&[true][..], asked));
        drop(three(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_one_command_fails_or_its_answer_is_lost_each_is_released_by_itself_and_was_ours() {
    for fault in [Fault::Fail, Fault::LoseReply] {
        let store = Faulty::new();
        let (set, asked) = three(&store).await;
        store.script(move |call| matches!(call, Call::Jointly(_)).then_some(fault));
        assert_eq!(release(set).await, [true; 3]);
        assert_eq!(store.requests().len(), asked + 3);
        drop(three(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_one_key_releases_the_others() {
    let store = Faulty::new();
    let (set, _) = three(&store).await;
    let first = set.token("a").unwrap();
    store.script(move |call| match call {
        Call::Jointly(_) => Some(Fault::Refuse),
        Call::Apply(Request::Release(release)) if release.token == first => Some(Fault::Refuse),
        _ => None,
    });
    assert!(matches!(set.release().await, Err(Error::Invalid { .. })));
    drop(store.seal().acquire_all(["b", "c"]).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn when_one_is_lost_the_work_stops_the_signal_says_which_and_the_rest_is_released_by_one_command() {
    let store = Faulty::new();
    let (set, _) = three(&store).await;
    let signal = set.cancellation_token();
    tokio::time::sleep(secs(2)).await;
    assert!(!signal.is_cancelled());
    store.seal().revoke("b").by("ops").await.unwrap();
    assert!(matches!(set.run(std::future::pending::<()>()).await, Err(Error::Lost { key, .. }) if key.as_str() == "b"));
    assert!(signal.is_cancelled() && !set.is_valid());
    let (key, end) = set.cancelled().await;
    assert!(key.as_str() == "b" && matches!(end, LeaseState::Lost { cause: LossCause::Revoked { .. } }));
    let asked = store.requests().len();
    let released = set.release().await.unwrap();
    assert_eq!((&released[0].1, &released[2].1), (&ReleaseOutcome::Released, &ReleaseOutcome::Released));
    assert!(matches!(released[1].1, ReleaseOutcome::AlreadyLost { .. }));
    assert_eq!(store.requests().len(), asked);
}

#[tokio::test(start_paused = true)]
async fn one_deadline_is_for_all_of_them() {
    let store = Faulty::new();
    let holder = store.seal();
    let (a, _b) = (holder.acquire("a").await.unwrap(), holder.acquire("b").await.unwrap());
    let began = Instant::now();
    let waiting = tokio::spawn(store.seal().acquire_all(["a", "b"]).wait(secs(10)).into_future());
    tokio::time::sleep(secs(7)).await;
    a.release().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Held { key, .. }) if key.as_str() == "b"));
    assert!(began.elapsed() >= secs(10) && began.elapsed() < millis(10_100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn each_option_holds_for_each_lease() {
    let (store, seal) = Faulty::open();
    let holder = async |key: &str| store.seal().inspect(key).await.unwrap().unwrap().holders.remove(0);
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10));

    let set = all().grace(secs(3)).without_refresh().group("g").metadata("why", "test").await.unwrap();
    for key in ["a", "b"] {
        let holder = holder(key).await;
        assert_eq!((holder.free_in, holder.sharing), (secs(13), Sharing::Exclusive));
        assert_eq!((holder.group.unwrap().as_str(), holder.metadata.get("why")), ("g", Some("test")));
    }
    tokio::time::sleep(secs(13)).await;
    assert!(!set.is_valid(), "nothing was refreshed");
    drop(set);

    let set = all().refresh_every(secs(1)).await.unwrap();
    tokio::time::sleep(millis(1_500)).await;
    for key in ["a", "b"] {
        let left = holder(key).await.free_in;
        assert!(left >= secs(9) + GRACE, "{left:?}");
    }
    set.release().await.unwrap();

    let (one, two) = (all().shared_up_to(2).await.unwrap(), all().shared().await.unwrap());
    assert!(matches!(all().shared().await, Err(Error::Held { .. })));
    assert_eq!(holder("b").await.sharing, Sharing::UpTo(2));
    drop((one, two));
    tokio::time::sleep(millis(1)).await;

    let set = seal.acquire_all(["a", "b"]).without_expiry().await.unwrap();
    assert_eq!((set.remaining(), holder("b").await.free_in), (Duration::MAX, Duration::MAX));
    set.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_a_hold_are_those_of_a_complete_set_and_an_incomplete_one_leaves_nothing_held() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10)).min_hold(secs(60)).max_hold(secs(90));
    let held = other.acquire("b").await.unwrap();
    assert!(matches!(all().await, Err(Error::Held { key, .. }) if key.as_str() == "b"));
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
async fn an_attempt_is_for_all_keys_and_none_is_held_between_two() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let held = other.acquire("b").await.unwrap();
    let began = Instant::now();
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
    let retry = Retry::fixed(secs(3_600)).unlimited();
    let retrying = tokio::spawn(seal.acquire_all(["a", "b"]).retry(retry).into_future());
    tokio::time::sleep(secs(1)).await;
    seal.shutdown().await;
    let ended = tokio::time::timeout(secs(1), retrying).await.expect("it does not wait for the next attempt");
    assert!(matches!(ended.unwrap(), Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_error_other_than_a_held_key_ends_the_attempts() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    let retry = store.seal().acquire_all(["a", "b"]).retry(Retry::fixed(secs(2)).unlimited());
    assert!(matches!(retry.await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn work_with_several_keys_has_all_leases_and_leaves_none() {
    let (store, seal) = Faulty::open();
    let keys = seal.acquire_all(["b", "a"]).with(async |set| {
        assert!(store.seal().acquire("a").await.is_err());
        set.iter().map(|lease| lease.key().to_string()).collect::<Vec<_>>()
    });
    assert_eq!(keys.await.unwrap(), ["a", "b"]);
    store.seal().acquire_all(["a", "b"]).await.unwrap().release().await.unwrap();

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
