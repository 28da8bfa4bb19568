//! Handles on one store, made one of another.

use std::{
    future::{IntoFuture, pending},
    pin::pin,
};

use mongoseal::{EndReason, Error, LeaseState, Mongoseal, ReleaseOutcome, record::Request};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::count,
};

fn siblings(of: &Mongoseal, count: usize) -> Vec<Mongoseal> {
    (0..count).map(|number| Mongoseal::builder().owner(format!("tenant-{number}")).sibling_of(of).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn siblings_share_one_listener_and_each_waiter_is_handed_its_own_key() {
    let store = Faulty::new();
    let watches = count(&store, |call| (matches!(call, Call::Watch), None));
    let (seal, holder) = (store.seal(), store.seal());
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for (number, sibling) in siblings(&seal, 100).into_iter().enumerate() {
        let key = format!("k{number}");
        held.push(holder.acquire(&key).ttl(secs(600)).await.unwrap());
        waiting.spawn(async move {
            let lease = sibling.acquire(&key).wait(secs(3600)).await.unwrap();
            assert_eq!((lease.key().as_str(), lease.owner()), (key.as_str(), sibling.owner()));
            lease.verify().await.unwrap();
        });
    }
    tokio::time::sleep(secs(60)).await;
    assert_eq!(watches(), 2, "one of the holder, and one of the siblings");
    drop(held);
    waiting.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_sibling_is_shut_down_by_itself_and_the_others_go_on() {
    let (store, seal) = Faulty::open();
    let [one, other] = siblings(&seal, 2).try_into().unwrap();
    let holder = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let (lease, kept) = (one.acquire("of one").await.unwrap(), other.acquire("of other").await.unwrap());
    let [of_one, of_other] = [&one, &other].map(|seal| tokio::spawn(seal.acquire("k").wait(secs(3600)).into_future()));
    tokio::time::sleep(secs(2)).await;
    // Also the first, from which they were made.
    one.shutdown().await;
    seal.shutdown().await;
    assert_eq!(lease.state(), LeaseState::Ended { reason: EndReason::ShutDown });
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(of_one.await.unwrap().unwrap_err().to_string().contains("shut down"));
    tokio::time::sleep(secs(60)).await;
    assert!(kept.is_valid() && !of_other.is_finished());
    holder.release().await.unwrap();
    of_other.await.unwrap().unwrap().verify().await.unwrap();
    assert!(matches!(seal.acquire("l").await, Err(Error::Invalid { .. })));
    drop(Mongoseal::builder().sibling_of(&seal).unwrap().acquire("l").await.unwrap());
    other.shutdown().await;
    let error = Mongoseal::builder().sibling_of(&other).unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn siblings_do_not_hold_one_lease_at_once() {
    let seal = Mongoseal::in_memory();
    let [one, other] = siblings(&seal, 2).try_into().unwrap();
    let lease = one.acquire("k").await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    let resume = |seal: &Mongoseal| seal.resume("k", id, token).into_future();
    for seal in [&one, &other] {
        let error = resume(seal).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("in use"), "{error}");
    }
    lease.orphan();
    tokio::time::sleep(millis(1)).await;
    let (first, second) = tokio::join!(resume(&other), resume(&one));
    assert!(matches!(second, Err(Error::Invalid { .. })), "{second:?}");
    first.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_does_not_wait_for_the_work_under_a_lease_of_a_sibling_that_is_shut_down() {
    let seal = Mongoseal::in_memory();
    let [one] = siblings(&seal, 1).try_into().unwrap();
    let lease = one.acquire("k").await.unwrap();
    // Not polled from then on, so it does not end.
    let mut work = pin!(lease.run(pending::<()>()));
    assert!(timeout(millis(1), &mut work).await.is_err());
    let closing = tokio::spawn(async move { one.shutdown().await });
    tokio::time::sleep(millis(1)).await;
    let refused = timeout(millis(1), seal.acquire("k").into_future()).await.expect("the answer comes at once");
    assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
    closing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_of_a_shared_key_waits_for_no_release_that_begins_later() {
    let (store, seal) = Faulty::open();
    let mut leases = Vec::new();
    for _ in 0..40 {
        leases.push(seal.acquire("k").shared().await.unwrap());
    }
    let is_release = |call: Call<'_>| matches!(call, Call::Apply(Request::Release(_)));
    store.script(move |call| is_release(call).then_some(Fault::DelayReply(millis(900))));
    let began = Instant::now();
    drop(leases.pop());
    let acquiring = tokio::spawn(seal.acquire("k").shared().into_future());
    while !acquiring.is_finished() {
        tokio::time::sleep(secs(1) / 2).await;
        drop(leases.pop());
    }
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
    drop(acquiring.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_shutdown_releases_is_not_resumed_by_a_sibling_although_its_holder_orphans_it() {
    let (store, seal) = Faulty::open();
    let [one] = siblings(&seal, 1).try_into().unwrap();
    let lease = one.acquire("k").await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::Delay(millis(500)));
    let closing = tokio::spawn(async move { one.shutdown().await });
    tokio::time::sleep(millis(1)).await;
    lease.orphan();
    let resumed = seal.resume("k", id, token).await;
    assert!(matches!(resumed, Err(Error::Lost { .. })), "{resumed:?}");
    closing.await.unwrap();
}
