//! The events that a subscriber receives: their levels and fields.

use mongoseal::Retry;
use tracing::Level;

use crate::{
    faulty::{Call, Fault, Faulty},
    recorded_spans::Seen,
    secs,
};

#[tokio::test(start_paused = true)]
async fn contention_is_said_at_debug_and_nothing_above() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let _holder = store.seal().acquire("k").await.unwrap();
    assert!(store.seal().acquire("k").await.is_err());
    assert!(store.seal().acquire("k").wait(secs(1)).await.is_err());
    assert!(store.seal().acquire("k").retry(Retry::fixed(secs(1)).attempts(2)).await.is_err());
    assert_eq!(seen.said("not granted"), [Level::DEBUG; 3]);
    let traces = seen.0.lock().unwrap();
    assert!(traces.events.iter().all(|event| event.0 >= Level::DEBUG && event.1 == "mongoseal.acquire"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_at_risk_and_one_that_is_lost_are_warned_of_once_with_key_and_token() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let lease = store.seal().acquire("k").await.unwrap();
    store.always(Fault::Fail);
    lease.cancelled().await;
    assert_eq!(seen.said("the lease is at risk"), [Level::WARN]);
    assert_eq!(seen.said("the lease is lost"), [Level::WARN]);
    let traces = seen.0.lock().unwrap();
    for (_, _, fields) in traces.events.iter().filter(|event| event.0 == Level::WARN) {
        assert_eq!((fields.of("key"), fields.of("token")), ("k", lease.token().to_string().as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_tell_is_warned_of_once() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    let seal = store.seal();
    let _holder = seal.acquire("k").await.unwrap();
    for _ in 0..3 {
        assert!(seal.acquire("k").wait(secs(5)).await.is_err());
    }
    assert_eq!(seen.said("cannot listen"), [Level::WARN]);
}
