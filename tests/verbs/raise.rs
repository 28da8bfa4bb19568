//! Versions that an operator raises.

use mongoseal::{Error, FencingToken, HybridTime, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    secs,
};

/// A token that stands for a time so many seconds after that of another.
fn ahead(token: FencingToken, seconds: u64) -> FencingToken {
    FencingToken::new(token.get() + (seconds << HybridTime::ORDINAL_BITS)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_held_across_a_raise_stays_held_and_the_next_one_is_above_it() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let sharing = seal.acquire("shared").shared_up_to(2).ttl(secs(30)).await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
    tokio::time::sleep(secs(5)).await;
    let to = ahead(lease.token(), 7_200);
    for key in ["k", "shared"] {
        assert_eq!(store.seal().raise_token_floor(key, to).await.unwrap(), to);
    }
    // Several refreshes, by themselves and by hand.
    tokio::time::sleep(secs(100)).await;
    for lease in [&lease, &sharing] {
        lease.verify().await.unwrap();
        lease.refresh().await.unwrap();
        assert!(lease.is_valid() && lease.token() < to);
    }
    lease.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > to);
    next.verify().await.unwrap();
    let last = next.token();
    next.release().await.unwrap();
    assert!(seal.acquire("k").await.unwrap().token() > last);
    assert!(seal.acquire("shared").shared_up_to(2).await.unwrap().token() > to);
}

#[tokio::test(start_paused = true)]
async fn who_watches_is_told_of_the_next_grant_and_not_of_the_raise() {
    let store = Faulty::new();
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().into_event().unwrap().token, lease.token());
    let first = lease.token();
    let to = seal.raise_token_floor("k", ahead(first, 7_200)).await.unwrap();
    lease.release().await.unwrap();
    let next = seal.acquire("k").await.unwrap();
    let released = events.next().await.unwrap().unwrap().into_event().unwrap();
    assert_eq!((released.token, format!("{:?}", released.kind).as_str()), (first, "Released"));
    let granted = events.next().await.unwrap().unwrap().into_event().unwrap();
    assert!(granted.token == next.token() && next.token() > to, "{granted:?}");
    assert!(format!("{:?}", granted.kind).starts_with("Granted"), "{granted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_no_store_has_numbered_is_refused_and_the_version_stays() {
    let store = Faulty::new();
    let seal = store.seal();
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
    let store = Faulty::new();
    let (seal, to) = (store.seal(), FencingToken::new(7_200 << HybridTime::ORDINAL_BITS).unwrap());
    let mut lost = false;
    store.script(move |call| match call {
        Call::Apply(Request::Raise(raise)) if raise.to == to && !std::mem::replace(&mut lost, true) => {
            Some(Fault::LoseReply)
        }
        _ => None,
    });
    assert_eq!(seal.raise_token_floor("k", to).await.unwrap(), to);
    assert_eq!(store.requests().len(), 2, "the raise, twice");
    store.always(Fault::Fail);
    assert!(matches!(seal.raise_token_floor("k", to).await, Err(Error::Unavailable { .. })));
}
