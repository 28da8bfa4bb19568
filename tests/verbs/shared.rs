//! Keys that several hold at once, and leases that do not expire.

use std::time::Duration;

use mongoseal::{Error, LeaseState, Mongoseal, ReleaseOutcome, record::Request, store::MemoryStore};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn one_holder_at_most_is_exclusive_and_none_and_a_ttl_of_no_expiry_are_refused_with_what_to_do() {
    let seal = Mongoseal::in_memory();
    let error = seal.acquire("k").shared_up_to(0).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("cannot be 0"), "{error}");
    let error = seal.acquire("k").ttl(secs(5)).without_expiry().await.unwrap_err();
    assert!(error.to_string().contains("leave one of them out"), "{error}");
    let _alone = seal.acquire("k").shared_up_to(1).await.unwrap();
    for others in [1, u32::MAX] {
        assert!(matches!(seal.acquire("k").shared_up_to(others).await, Err(Error::Held { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_sharer_s_place_is_free_at_once_and_goes_to_the_first_in_line() {
    let seal = Mongoseal::in_memory();
    let _kept = seal.acquire("k").shared_up_to(2).ttl(secs(60)).await.unwrap();
    seal.acquire("k").shared_up_to(2).ttl(secs(5)).await.unwrap().orphan();
    let began = tokio::time::Instant::now();
    let next = seal.acquire("k").shared_up_to(2).wait(secs(60)).await.unwrap();
    assert!(began.elapsed() >= secs(5) + GRACE && began.elapsed() <= millis(5_010) + GRACE, "{:?}", began.elapsed());
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_lasts_until_it_is_released_and_shows_as_such() {
    let mut store = Faulty::new();
    store.records = MemoryStore::new(secs(600));
    let seal = store.build(Mongoseal::builder());
    let lease = seal.acquire("k").without_expiry().await.unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    // Longer than the store keeps idle records, and with the store away all the time.
    store.always(Fault::Fail);
    tokio::time::sleep(secs(3600)).await;
    assert!(lease.is_valid());
    assert_eq!(lease.state(), LeaseState::AtRisk);
    store.heal();
    tokio::time::sleep(secs(20)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let error = seal.acquire("k").await.unwrap_err();
    assert!(matches!(error, Error::Held { free_in: Duration::MAX, .. }));
    assert!(error.to_string().contains("without expiry"), "{error}");
    assert!(matches!(lease.extend(secs(5)).await, Err(Error::Invalid { .. })));
    let token = lease.token();
    lease.release().await.unwrap();
    assert!(seal.acquire("k").await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_for_a_lease_without_expiry_is_given_one() {
    let (store, holder) = Faulty::held().await;
    let waiting = tokio::spawn(store.seal().acquire("k").without_expiry().wait(secs(60)).into_future());
    tokio::time::sleep(secs(5)).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    // Not only for as long as a waiter keeps what it was handed.
    store.always(Fault::Hang);
    tokio::time::sleep(secs(3600)).await;
    store.heal();
    assert!(lease.is_valid());
    lease.verify().await.unwrap();
}

/// The acquire itself requests no expiry, and can arrive after its caller has given up.
#[tokio::test(start_paused = true)]
async fn an_acquire_without_expiry_that_is_lost_or_late_holds_nothing_for_ever() {
    for fault in [Fault::LoseReply, Fault::Delay(secs(30))] {
        let store = Faulty::new();
        let mut asked = false;
        store.script(move |call| match call {
            Call::Apply(Request::Acquire(_)) if !std::mem::replace(&mut asked, true) => Some(fault),
            Call::Prepare => None,
            _ => Some(Fault::Fail),
        });
        assert!(store.seal().acquire("k").without_expiry().await.is_err());
        tokio::time::sleep(secs(60)).await;
        store.heal();
        tokio::time::sleep(secs(60)).await;
        drop(store.seal().acquire("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sharer_s_larger_token_takes_nothing_from_another() {
    let (store, seal) = Faulty::open();
    let one = seal.acquire("k").shared().await.unwrap();
    let _two = seal.acquire("k").shared().await.unwrap();
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::LoseReply);
    assert_eq!(one.release().await.unwrap(), ReleaseOutcome::Released);
}
