//! Versions that an operator raises.

use mongoseal::{Error, FencingToken, Mongoseal, inspect::EventKind, record::Request, store::HybridTime};

use crate::{
    faulty::{Call, Fault, Faulty},
    secs,
    watch::{next, nothing},
};

/// A token that stands for a time so many seconds after that of another.
fn ahead(token: FencingToken, seconds: u64) -> FencingToken {
    FencingToken::new(token.get() + (seconds << HybridTime::ORDINAL_BITS)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_held_across_a_raise_stays_held_and_the_next_one_is_above_it_and_no_watch_reports_the_raise() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let held = lease.token();
    let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
    let mut events = seal.watch("k").await.unwrap();
    assert_eq!(next(&mut events).await.token, held);
    let to = ahead(held, 7_200);
    assert_eq!(store.seal().raise_token_floor("k", to).await.unwrap(), to);
    // Several refreshes, by themselves and by hand.
    nothing(&mut events, 100).await;
    lease.verify().await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    let after = waiting.await.unwrap().unwrap();
    assert!(held < to && after.token() > to);
    after.verify().await.unwrap();
    let released = next(&mut events).await;
    assert_eq!((released.token, released.kind), (held, EventKind::Released));
    assert_eq!(next(&mut events).await.token, after.token());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_no_store_has_numbered_is_refused_and_the_version_stays() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").await.unwrap();
    let (year, version) = (31_536_000, async |key| seal.inspect(key).await.unwrap().map(|record| record.version));
    for key in ["k", "without a record"] {
        let before = version(key).await;
        let error = seal.raise_token_floor(key, ahead(lease.token(), year + 60)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("365 d ahead"), "{error}");
        let error = seal.raise_token_floor(key, FencingToken::MAX).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no further token"), "{error}");
        assert_eq!(version(key).await, before);
    }
    assert!(matches!(seal.raise_token_floor("", lease.token()).await, Err(Error::Invalid { .. })));
    let to = ahead(lease.token(), year - 60);
    assert_eq!(seal.raise_token_floor("k", to).await.unwrap(), to);
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_raise_whose_answer_was_lost_is_sent_again() {
    let (store, seal) = Faulty::open();
    let to = FencingToken::new(7_200 << HybridTime::ORDINAL_BITS).unwrap();
    store.first(1, |call| matches!(call, Call::Apply(Request::Raise(_))), Fault::LoseReply);
    assert_eq!(seal.raise_token_floor("k", to).await.unwrap(), to);
    assert_eq!(store.requests().len(), 2, "the raise, twice");
    store.always(Fault::Fail);
    assert!(matches!(seal.raise_token_floor("k", to).await, Err(Error::Unavailable { .. })));
}
