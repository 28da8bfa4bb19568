//! Several keys at once.

use std::{
    future::IntoFuture,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use mongoseal::{Error, LeaseSet, LeaseState, LossCause, ReleaseOutcome, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

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
    assert!(released.iter().all(|(_, how)| *how == ReleaseOutcome::Released) && released.len() == 3);
    assert!(began.elapsed() < millis(150), "one command: {:?}", began.elapsed());
}

/// Three keys, and what was asked of the store since.
async fn three(store: &Faulty) -> (LeaseSet, usize) {
    let set = store.seal().acquire_all(["a", "b", "c"]).await.unwrap();
    (set, store.requests().len())
}

#[tokio::test(start_paused = true)]
async fn a_set_is_released_and_dropped_by_one_command() {
    for by_drop in [false, true] {
        let store = Faulty::new();
        let (set, asked) = three(&store).await;
        let joint = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&joint);
        store.script(move |call| {
            count.fetch_add(usize::from(matches!(call, Call::Jointly(_))), Ordering::Relaxed);
            None
        });
        if by_drop {
            drop(set);
        } else {
            drop(set.release().await.unwrap());
        }
        tokio::time::sleep(millis(1)).await;
        assert_eq!((joint.load(Ordering::Relaxed), store.requests().len()), (1, asked));
        three(&store).await.0.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_one_command_fails_or_its_answer_is_lost_each_is_released_by_itself_and_was_ours() {
    for fault in [Fault::Fail, Fault::LoseReply] {
        let store = Faulty::new();
        let (set, asked) = three(&store).await;
        store.script(move |call| matches!(call, Call::Jointly(_)).then_some(fault));
        let released = set.release().await.unwrap();
        assert!(
            released.iter().all(|(_, how)| *how == ReleaseOutcome::Released) && released.len() == 3,
            "{released:?}"
        );
        assert_eq!(store.requests().len(), asked + 3);
        store.heal();
        three(&store).await.0.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_of_a_set_does_not_keep_the_rest_from_being_released_by_one_command() {
    let store = Faulty::new();
    let (set, _) = three(&store).await;
    tokio::time::sleep(secs(2)).await;
    store.seal().revoke("b").await.unwrap();
    set.cancelled().await;
    let asked = store.requests().len();
    let released = set.release().await.unwrap();
    let how: Vec<_> = released.iter().map(|(_, how)| *how == ReleaseOutcome::Released).collect();
    assert_eq!((how, store.requests().len()), (vec![true, false, true], asked));
}

#[tokio::test(start_paused = true)]
async fn no_key_of_a_set_is_given_back_before_all_work_under_it_has_been_stopped() {
    let store = Faulty::new();
    let (set, _) = three(&store).await;
    let signal = set.cancellation_token();
    let seen = Arc::new(Mutex::new(None));
    let (stopped, note) = (signal.clone(), Arc::clone(&seen));
    store.script(move |call| {
        if matches!(call, Call::Jointly(_)) {
            *note.lock().unwrap() = Some(stopped.is_cancelled());
        }
        None
    });
    set.release().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(true));
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
    let (key, end) = set.cancelled().await;
    assert!(key.as_str() == "b" && matches!(end, LeaseState::Lost { cause: LossCause::Revoked { .. } }));
    let released = set.release().await.unwrap();
    assert_eq!(released[0].1, ReleaseOutcome::Released);
    assert!(matches!(released[1].1, ReleaseOutcome::AlreadyLost { .. }));
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
    assert!(error.to_string().contains("\"a\" is given twice"), "{error}");
    assert!(matches!(seal.acquire_all([""]).await, Err(Error::Invalid { .. })));
    assert!(matches!(seal.acquire_all(Vec::<&str>::new()).await, Err(Error::Invalid { .. })));
    assert!(store.requests().is_empty());
    let set = seal.acquire_all(["a", "b"]).await.unwrap();
    let first = set.token("a").unwrap();
    store.script(move |call| match call {
        Call::Jointly(_) => Some(Fault::Refuse),
        Call::Apply(Request::Release(release)) if release.token == first => Some(Fault::Refuse),
        _ => None,
    });
    assert!(matches!(set.release().await, Err(Error::Invalid { .. })));
    drop(seal.acquire("b").await.unwrap());
}
