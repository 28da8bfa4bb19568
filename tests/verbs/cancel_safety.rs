//! What the documentation says of futures that are dropped half-way.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use mongoseal::{
    EndReason, Error, FencingToken, Lease, LeaseId, LeaseState, Mongoseal, Sharing, inspect::EventKind,
    record::Request, store::Instant,
};
use tokio::time::timeout;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::next,
};

/// Polls a future for a while and drops it.
async fn drop_half_way<F: IntoFuture>(future: F, after: Duration) {
    assert!(timeout(after, future.into_future()).await.is_err(), "it was to be dropped half-way");
}

/// A lease on a store that does each request two seconds later.
async fn held_on_slow_store() -> (Faulty, Mongoseal, Lease) {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    store.always(Fault::Delay(secs(2)));
    (store, seal, lease)
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_before_it_was_polled_sends_nothing() {
    let store = Faulty::new();
    drop(store.seal().acquire("k").into_future());
    tokio::time::sleep(secs(1)).await;
    assert!(store.requests().is_empty());
    let lease = store.seal().acquire("k").await.unwrap();
    drop(lease.downgrade(Sharing::UpTo(2)));
    assert!(matches!(store.requests()[..], [Request::Acquire(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_wait_or_a_run_dropped_half_way_leaves_the_lease_and_drops_the_work() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").await.unwrap();
    drop_half_way(lease.cancelled(), secs(1)).await;
    drop_half_way(mongoseal::store::Clock::tokio().sleep_until(Instant::at(secs(60))), secs(1)).await;
    let working = Arc::new(());
    let at_work = Arc::clone(&working);
    let work = async move {
        std::future::pending::<()>().await;
        drop(at_work);
    };
    drop_half_way(lease.run(work), secs(1)).await;
    assert_eq!(Arc::strong_count(&working), 1);
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_verify_and_a_prepare_dropped_half_way_change_nothing_and_can_be_done_again() {
    let (store, _seal, lease) = held_on_slow_store().await;
    let (asked, next) = (store.requests(), store.seal());
    drop_half_way(lease.verify(), secs(1)).await;
    drop_half_way(next.prepare(), secs(1)).await;
    tokio::time::sleep(secs(2)).await;
    assert_eq!(store.requests(), asked, "they only read");
    store.heal();
    lease.verify().await.unwrap();
    next.prepare().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_polled_once_and_left_alone_holds_the_key_until_it_is_dropped() {
    let store = Faulty::new();
    let mut acquire = store.seal().acquire("k").ttl(secs(10)).into_future();
    tokio::select! {
        biased;
        _ = &mut acquire => panic!("the store has not answered"),
        () = std::future::ready(()) => {}
    }
    tokio::time::sleep(secs(60)).await;
    assert!(matches!(store.seal().acquire("k").await, Err(Error::Held { .. })), "it is refreshed");
    drop(acquire);
    store.seal().acquire("k").wait(secs(1)).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refresh_an_extend_or_a_raise_dropped_half_way_may_still_be_made() {
    let (store, seal, lease) = held_on_slow_store().await;
    tokio::time::sleep(secs(5)).await;
    drop_half_way(lease.refresh(), secs(1)).await;
    tokio::time::sleep(secs(5)).await;
    assert!(lease.remaining() > secs(23), "the refresh was made");
    drop_half_way(lease.extend(secs(3600)), secs(1)).await;
    tokio::time::sleep(secs(5)).await;
    assert!(lease.remaining() > secs(3500), "and the extension");
    let to = FencingToken::new(lease.token().get() + 1_000).unwrap();
    drop_half_way(seal.raise_token_floor("k", to), secs(3)).await;
    tokio::time::sleep(secs(5)).await;
    store.heal();
    lease.verify().await.unwrap();
    lease.release().await.unwrap();
    assert!(seal.acquire("k").await.unwrap().token() > to, "and the raise");
}

#[tokio::test(start_paused = true)]
async fn a_release_and_a_shutdown_dropped_half_way_are_made_all_the_same() {
    for by_shutdown in [false, true] {
        let (store, seal, lease) = held_on_slow_store().await;
        if by_shutdown {
            drop_half_way(seal.shutdown(), millis(10)).await;
            assert_eq!(lease.state(), LeaseState::Ended { reason: EndReason::ShutDown });
        } else {
            drop_half_way(lease.release(), secs(1)).await;
        }
        tokio::time::sleep(secs(3)).await;
        store.heal();
        let next = store.seal().acquire("k").await;
        assert!(next.is_ok(), "by a shutdown: {by_shutdown}: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transfer_dropped_half_way_is_made_all_the_same() {
    let (store, _seal, lease) = held_on_slow_store().await;
    let to = LeaseId::random();
    drop_half_way(lease.transfer(to), secs(1)).await;
    assert!(matches!(lease.transfer(LeaseId::random()).await, Err(Error::Ended { .. })), "it is given away once");
    tokio::time::sleep(secs(2)).await;
    store.heal();
    let held = store.seal().inspect("k").await.unwrap().unwrap().holders[0].token;
    assert!(held > lease.token());
    store.seal().resume("k", to, held).await.unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_event_dropped_half_way_is_given_by_the_next_call() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    for _ in 0..20 {
        drop_half_way(events.next(), millis(10)).await;
        // Dropped while what it waits for is on its way.
        let (lease, dropped) = tokio::join!(seal.acquire("k"), timeout(millis(0), events.next()));
        let lease = lease.unwrap();
        let first = match dropped {
            Ok(event) => event.unwrap().unwrap().into_event().unwrap(),
            Err(_dropped) => next(&mut events).await,
        };
        assert_eq!(first.token, lease.token());
        lease.release().await.unwrap();
        assert_eq!(next(&mut events).await.kind, EventKind::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_dropped_half_way_ends_and_changes_nothing() {
    let (store, seal) = Faulty::open();
    store.script(|call| matches!(call, Call::Follow).then_some(Fault::Hang));
    drop_half_way(seal.watch("k"), secs(1)).await;
    assert!(store.requests().is_empty());
    // Its task is gone: nobody waits for one that hangs.
    seal.shutdown().await;
}
