//! Lease ids that the caller chose.

use std::sync::atomic::{AtomicBool, Ordering};

use mongoseal::{Error, Lease, LeaseId, Mongoseal, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// The first acquire ends without an answer, and each leave takes so long.
fn fail_one_acquire_and_delay_leaves(store: &Faulty, delay: u64) {
    let first = AtomicBool::new(true);
    store.script(move |call| match call {
        Call::Apply(Request::Acquire(_)) if first.swap(false, Ordering::Relaxed) => Some(Fault::Fail),
        Call::Apply(Request::Leave(_)) => Some(Fault::Delay(secs(delay))),
        _ => None,
    });
}

/// A store whose key `k` is held, and that then answers as [`fail_one_acquire_and_delay_leaves`] has it.
async fn held(delay: u64) -> (Faulty, Lease, Mongoseal, LeaseId) {
    let store = Faulty::new();
    let holder = store.seal().acquire("k").await.unwrap();
    fail_one_acquire_and_delay_leaves(&store, delay);
    let seal = store.seal();
    (store, holder, seal, LeaseId::random())
}

#[tokio::test(start_paused = true)]
async fn a_chosen_lease_id_can_be_used_again_at_once_after_held_and_the_next_acquire_waits_for_the_take_back() {
    let (store, holder, seal, id) = held(1).await;
    for _ in 0..3 {
        let error = seal.acquire("k").lease_id(id).await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error}");
    }
    holder.release().await.unwrap();
    fail_one_acquire_and_delay_leaves(&store, 1);
    let lease = seal.acquire("k").lease_id(id).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    lease.verify().await.unwrap();

    let sent = store.requests();
    let of_id = sent.iter().filter(|request| request.lease() == Some(id));
    let kinds: Vec<_> = of_id.take_while(|request| !matches!(request, Request::Refresh(_))).collect();
    let leaves = kinds.iter().filter(|request| matches!(request, Request::Leave(_))).count();
    assert_eq!(leaves, 1, "of the acquire without an answer: {kinds:?}");
    assert!(matches!(kinds[..], [Request::Acquire(_), Request::Acquire(_), Request::Leave(_), ..]), "{kinds:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_sends_nothing_while_the_acquire_before_with_its_id_is_taken_back_and_can_be_dropped() {
    let (store, _holder, seal, id) = held(1).await;
    assert!(matches!(seal.acquire("k").lease_id(id).await, Err(Error::Held { .. })));
    let dropped = tokio::time::timeout(secs(0), seal.acquire("k").lease_id(id).into_future());
    assert!(dropped.await.is_err());
    // It gave the id back without having sent anything, and the take-back goes on.
    tokio::time::sleep(millis(1)).await;
    let before = store.requests().len();
    let asking = tokio::spawn(seal.acquire("k").lease_id(id).into_future());
    tokio::time::sleep(millis(500)).await;
    assert_eq!(store.requests().len(), before, "nothing is sent while the acquire before is taken back");
    let twice = seal.acquire("k").lease_id(id).await.unwrap_err();
    assert!(matches!(twice, Error::Invalid { .. }), "two cannot ask with one id: {twice}");
    assert!(matches!(asking.await.unwrap(), Err(Error::Held { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_take_back_that_was_delayed_does_not_end_the_lease_of_the_next_process_with_the_id() {
    let (store, holder, before, id) = held(2).await;
    let error = before.acquire("k").lease_id(id).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error}");
    holder.release().await.unwrap();
    // The process before has ended, and what it sent is still under way.
    let lease = store.seal().acquire("k").lease_id(id).await.unwrap();
    tokio::time::sleep(secs(3)).await;
    assert!(store.requests().iter().any(|request| matches!(request, Request::Leave(_))));
    lease.verify().await.unwrap();
}

/// An acquire with a chosen id whose answer is lost, which ends in `Unavailable`.
async fn in_doubt(store: &Faulty, seal: &Mongoseal, id: LeaseId) {
    store.script(|call| match call {
        Call::Apply(Request::Acquire(_)) => Some(Fault::LoseReply),
        _ => None,
    });
    let error = seal.acquire("k").lease_id(id).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    store.heal();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_back_an_acquire_in_doubt_that_was_not_repeated() {
    let store = Faulty::new();
    let (seal, id) = (store.seal(), LeaseId::random());
    in_doubt(&store, &seal, id).await;
    // The next one is in doubt, too, and never reaches the store: the grant is that of the first.
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::Fail));
    assert!(matches!(seal.acquire("k").lease_id(id).await, Err(Error::Unavailable { .. })));
    store.heal();
    assert!(matches!(store.seal().acquire("k").await, Err(Error::Held { .. })));
    seal.shutdown().await;
    store.seal().acquire("k").await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_in_doubt_that_is_repeated_keeps_its_lease_and_is_not_taken_back() {
    let store = Faulty::new();
    let (seal, id) = (store.seal(), LeaseId::random());
    in_doubt(&store, &seal, id).await;
    let token = store.seal().inspect("k").await.unwrap().unwrap().holders[0].token;
    let lease = seal.acquire("k").lease_id(id).await.unwrap();
    assert_eq!(lease.token(), token);
    tokio::time::sleep(secs(120)).await;
    lease.verify().await.unwrap();
    assert!(!store.requests().iter().any(|request| matches!(request, Request::Leave(_))));
    lease.orphan();
    seal.shutdown().await;
    assert!(matches!(store.seal().acquire("k").await, Err(Error::Held { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_acquire_in_doubt_that_is_repeated_in_vain_is_taken_back() {
    let (store, holder, seal, id) = held(0).await;
    // It is executed late.
    store.script(|call| match call {
        Call::Apply(Request::Acquire(_)) => Some(Fault::Delay(secs(60))),
        _ => None,
    });
    assert!(matches!(seal.acquire("k").lease_id(id).await, Err(Error::Unavailable { .. })));
    store.heal();
    assert!(matches!(seal.acquire("k").lease_id(id).await, Err(Error::Held { .. })));
    tokio::time::sleep(millis(1)).await;
    assert!(matches!(store.requests().last(), Some(Request::Leave(_))), "{:?}", store.requests().last());
    holder.release().await.unwrap();
}
