//! Several keys at once.

use std::future::IntoFuture;

use mongoseal::{Error, LeaseSet, LossCause, Mongoseal, Released, Result, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

async fn all(seal: &Mongoseal, keys: &[&str]) -> Result<LeaseSet> {
    seal.acquire_all(keys.iter().copied()).wait(secs(60)).await
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_held_with_a_token_each_and_released_together() {
    let store = Faulty::new();
    let seal = store.seal();
    let set = seal.acquire_all(["c", "a", "b"]).metadata("why", "test").await.unwrap();
    assert!(set.tokens().map(|(key, _)| key.as_str()).eq(["a", "b", "c"]));
    for key in ["a", "b", "c"] {
        match seal.acquire(key).await {
            Err(Error::Held { token, .. }) => assert_eq!(Some(token), set.token(key)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(set.token("d"), None);
    assert!(set.is_valid() && set.remaining() > secs(29));
    assert_eq!(set.run(async { 42 }).await.unwrap(), 42);
    let began = tokio::time::Instant::now();
    store.always(Fault::Delay(millis(100)));
    let released = set.release().await.unwrap();
    assert!(released.iter().all(|(_, how)| *how == Released::Ours) && released.len() == 3);
    assert!(began.elapsed() < millis(150), "side by side: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn where_one_is_held_none_is() {
    let store = Faulty::new();
    let seal = store.seal();
    let _held = store.seal().acquire("b").await.unwrap();
    assert!(matches!(seal.acquire_all(["a", "b", "c"]).await, Err(Error::Held { key, .. }) if key.as_str() == "b"));
    let asked = store.requests().len();
    drop(seal.acquire("a").await.unwrap());
    drop(seal.acquire("c").await.unwrap());
    assert!(asked >= 4, "a was held, and given back");
}

#[tokio::test(start_paused = true)]
async fn whatever_the_order_nobody_waits_for_ever() {
    let store = Faulty::new();
    let tasks: Vec<_> = [["a", "b"], ["b", "a"], ["b", "a"], ["a", "b"]]
        .into_iter()
        .map(|keys| {
            let seal = store.seal();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let set = all(&seal, &keys).await.unwrap();
                    tokio::time::sleep(millis(3)).await;
                    set.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_deadline_is_for_all_of_them() {
    let store = Faulty::new();
    let holder = store.seal();
    let (a, _b) = (holder.acquire("a").await.unwrap(), holder.acquire("b").await.unwrap());
    let began = tokio::time::Instant::now();
    let waiting = tokio::spawn(store.seal().acquire_all(["a", "b"]).wait(secs(10)).into_future());
    tokio::time::sleep(secs(7)).await;
    a.release().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Held { key, .. }) if key.as_str() == "b"));
    assert!(began.elapsed() >= secs(10) && began.elapsed() < millis(10_100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn when_one_is_lost_the_work_stops_and_the_signal_says_which() {
    let store = Faulty::new();
    let seal = store.seal();
    let set = seal.acquire_all(["a", "b"]).await.unwrap();
    let signal = set.cancellation_token();
    tokio::time::sleep(secs(2)).await;
    assert!(!signal.is_cancelled());
    seal.revoke("b").by("ops").await.unwrap();
    assert!(matches!(set.run(std::future::pending::<()>()).await, Err(Error::Lost { key, .. }) if key.as_str() == "b"));
    assert!(signal.is_cancelled() && !set.is_valid());
    let (key, cause) = set.cancelled().await;
    assert!(key.as_str() == "b" && matches!(cause, LossCause::Revoked { .. }));
    let released = set.release().await.unwrap();
    assert_eq!(released[0].1, Released::Ours);
    assert!(matches!(released[1].1, Released::Gone { .. }));
}

#[tokio::test(start_paused = true)]
async fn one_dropped_half_way_leaves_nothing_held() {
    let store = Faulty::new();
    let seal = store.seal();
    let _held = store.seal().acquire("b").await.unwrap();
    let asked = seal.acquire_all(["a", "b"]).wait(secs(60)).into_future();
    assert!(tokio::time::timeout(secs(1), asked).await.is_err());
    tokio::time::sleep(millis(1)).await;
    drop(seal.acquire("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn duplicates_and_nothing_are_refused_and_a_failed_release_leaves_the_others_released() {
    let store = Faulty::new();
    let seal = store.seal();
    let error = seal.acquire_all(["a", "b", "a"]).await.unwrap_err();
    assert!(error.to_string().contains("\"a\" is asked for twice"), "{error}");
    assert!(matches!(seal.acquire_all([""]).await, Err(Error::Invalid { .. })));
    assert!(matches!(seal.acquire_all(Vec::<&str>::new()).await, Err(Error::Invalid { .. })));
    assert!(store.requests().is_empty());
    let set = seal.acquire_all(["a", "b"]).await.unwrap();
    let first = set.token("a").unwrap();
    store.script(move |call| match call {
        Call::Apply(Request::Release(release)) if release.token == Some(first) => Some(Fault::Refuse),
        _ => None,
    });
    assert!(matches!(set.release().await, Err(Error::Invalid { .. })));
    drop(seal.acquire("b").await.unwrap());
}
