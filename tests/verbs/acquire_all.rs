//! Several keys at once.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{Error, Lease, LeaseSet, LeaseState, LossCause, ReleaseOutcome, Retry, Sharing, record::Request};
use tokio::time::Instant;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Three keys, and what was asked of the store since.
async fn three(store: &Faulty) -> (LeaseSet, usize) {
    let set = store.seal().acquire_all(["c", "a", "b"]).await.unwrap();
    (set, store.requests().len())
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
async fn a_set_ends_by_one_command_after_its_work_was_stopped_or_by_a_request_for_each_lease_if_that_fails() {
    for (by_drop, fault) in [(true, None), (false, None), (false, Some(Fault::Fail)), (false, Some(Fault::LoseReply))] {
        let store = Faulty::new();
        let (set, asked) = three(&store).await;
        let (signal, stopped) = (set.cancellation_token(), Arc::new(Mutex::new(Vec::new())));
        let note = Arc::clone(&stopped);
        store.script(move |call| {
            let is_joint = matches!(call, Call::Jointly(_));
            if is_joint {
                note.lock().unwrap().push(signal.is_cancelled());
            }
            fault.filter(|_| is_joint)
        });
        if by_drop {
            drop(set);
        } else {
            let released = set.release().await.unwrap();
            assert!(released.iter().all(|(_, how)| *how == ReleaseOutcome::Released), "{fault:?}: {released:?}");
        }
        tokio::time::sleep(millis(1)).await;
        let alone = if fault.is_some() { 3 } else { 0 };
        assert_eq!((&stopped.lock().unwrap()[..], store.requests().len()), (&[true][..], asked + alone), "{fault:?}");
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
    let (_store, seal) = Faulty::open();
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10)).grace(secs(3)).shared_up_to(2).without_refresh();
    let set = all().group("g").metadata("why", "test").await.unwrap();
    for key in ["a", "b"] {
        let holder = seal.inspect(key).await.unwrap().unwrap().holders.remove(0);
        assert_eq!((holder.free_in, holder.sharing), (secs(13), Sharing::UpTo(2)), "{key}");
        assert_eq!((holder.group.unwrap().as_str(), holder.metadata.get("why")), ("g", Some("test")), "{key}");
    }
    let _second = all().await.unwrap();
    assert!(matches!(all().await, Err(Error::Held { .. })));
    tokio::time::sleep(secs(10)).await;
    assert!(set.iter().all(|lease| !lease.is_valid()), "nothing was refreshed");

    let set = seal.acquire_all(["c", "d"]).without_expiry().await.unwrap();
    assert!(set.iter().all(|lease| lease.remaining() == Duration::MAX) && set.remaining() == Duration::MAX);
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_a_hold_are_those_of_a_complete_set_and_an_incomplete_one_leaves_nothing_held() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let all = || seal.acquire_all(["a", "b"]).ttl(secs(10)).min_hold(secs(60)).max_hold(secs(90));
    let held = other.acquire("b").await.unwrap();
    assert!(matches!(all().await, Err(Error::Held { key, .. }) if key.as_str() == "b"));
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
async fn an_attempt_is_for_all_keys_none_is_held_between_two_and_a_shutdown_ends_the_delay() {
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
    let set = retrying.await.unwrap().unwrap();
    assert!(set.is_valid());

    let retry = Retry::fixed(secs(3_600)).unlimited();
    let retrying = tokio::spawn(seal.acquire_all(["a", "b"]).retry(retry).into_future());
    tokio::time::sleep(secs(1)).await;
    seal.shutdown().await;
    let ended = tokio::time::timeout(secs(1), retrying).await.expect("it does not wait for the next attempt");
    assert!(matches!(ended.unwrap(), Err(Error::Invalid { .. })));
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
