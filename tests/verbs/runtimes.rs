//! Runtimes that are not driven any more.

use std::{
    pin::pin,
    sync::{Arc, mpsc::channel},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use mongoseal::{Error, Lease, Mongoseal, store::MemoryStore};
use tokio::runtime::Runtime;

use crate::{
    by_length,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// An operation timeout that ends soon, and not before a busy machine has answered.
const TIMEOUT: Duration = secs(2);

fn idle() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs `test` with a runtime that nothing drives in between.
fn beside_idle(test: impl AsyncFnOnce(&Runtime)) {
    let (idle, driven) = (idle(), idle());
    driven.block_on(test(&idle));
}

/// Runs something on a runtime from a thread that drives another one.
fn on<T: Send>(runtime: &Runtime, work: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| scope.spawn(|| runtime.block_on(work)).join().unwrap())
}

/// Polls a future outside of any runtime until it ends.
fn outside<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        thread::sleep(millis(1));
    }
}

#[test]
fn a_release_and_a_shutdown_outside_of_a_runtime_wait_for_the_runtime_of_the_lease() {
    let driven = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let seal = Mongoseal::in_memory();
    let acquire = async |key: &str| seal.acquire(key).await.unwrap();
    let (released, kept) = driven.block_on(async { (acquire("a").await, acquire("b").await) });
    outside(released.release()).unwrap();
    outside(seal.shutdown());
    assert!(!kept.is_valid());
}

#[test]
fn calls_on_a_lease_whose_runtime_is_not_driven_return() {
    beside_idle(async |idle| {
        let seal = Mongoseal::builder().operation_timeout(TIMEOUT).in_memory().unwrap();
        let acquire = async |key: &str| seal.acquire(key).ttl(secs(60)).await.unwrap();
        let (released, refreshed, kept) =
            on(idle, async { (acquire("a").await, acquire("b").await, acquire("c").await) });
        let error = released.release().await.unwrap_err();
        assert!(error.to_string().contains("drive the runtime on which it was acquired"), "{error}");

        let error = refreshed.refresh().await.unwrap_err();
        assert!(error.to_string().contains("drive the runtime on which the lease was acquired"), "{error}");

        // Its own handle's release is not confirmed.
        assert!(matches!(seal.acquire("a").await, Err(Error::Unavailable { .. })));

        seal.shutdown().await;
        drop(kept);
    });
}

#[test]
fn a_shutdown_releases_its_leases_beside_a_runtime_that_stops_when_its_lease_ends() {
    for _ in 0..by_length(3, 10) {
        let (stopping, driven) = (idle(), idle());
        let store = Arc::new(MemoryStore::default());
        let handle = || Mongoseal::builder().operation_timeout(TIMEOUT).on_store(store.clone()).unwrap();
        let (seal, other, (held, is_held)) = (handle(), handle(), channel());
        thread::scope(|scope| {
            scope.spawn(|| {
                stopping.block_on(async {
                    let lease = seal.acquire("stops").await.unwrap();
                    held.send(()).unwrap();
                    lease.cancelled().await;
                });
            });
            is_held.recv().unwrap();
            driven.block_on(async {
                let kept = [seal.acquire("a").await.unwrap(), seal.acquire("b").await.unwrap()];
                seal.shutdown().await;
                for lease in kept {
                    drop(other.acquire(lease.key().as_str()).await.unwrap());
                }
            });
        });
    }
}

#[test]
fn a_dropped_lease_does_not_wait_for_a_release_of_its_group_that_is_not_polled() {
    beside_idle(async |idle| {
        let store = Faulty::new();
        let seal = store.seal();
        let lease = on(idle, async { seal.acquire("k").group("g").ttl(secs(60)).await.unwrap() });
        // The task of the lease does not see the drop before the release of the group has begun.
        drop(lease);
        store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Hang));
        let mut releasing = pin!(seal.release_group("g"));
        assert!(tokio::time::timeout(millis(50), &mut releasing).await.is_err());
        on(idle, async { tokio::time::sleep(millis(50)).await });
        drop(store.seal().acquire("k").await.unwrap());
    });
}

#[test]
fn a_key_whose_lease_has_expired_is_acquired_again_although_the_runtime_of_that_lease_is_not_driven() {
    beside_idle(async |idle| {
        let seal = Mongoseal::builder().operation_timeout(TIMEOUT).in_memory().unwrap();
        let expired = on(idle, async { seal.acquire("k").ttl(secs(1)).await.unwrap() });
        tokio::time::sleep(millis(1_600)).await;
        assert!(!expired.is_valid());
        assert!(matches!(expired.verify().await, Err(Error::Lost { .. })));
        let lease = seal.acquire("k").await.unwrap();
        assert!(lease.token() > expired.token());
    });
}

#[test]
fn leases_of_a_runtime_that_is_driven_are_refreshed_beside_those_of_one_that_is_not() {
    beside_idle(async |idle| {
        let store = Faulty::new();
        // The idle runtime stops while a batch waits for its answer.
        store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::DelayReply(millis(500))));
        let seal = store.seal();
        let acquire = async |number: usize| {
            let acquire = seal.acquire(format!("k{number}")).ttl(secs(60));
            acquire.refresh_every(millis(600)).await.unwrap()
        };
        let reader = store.seal();
        let last_seen =
            async |lease: &Lease| reader.inspect(lease.key().as_str()).await.unwrap().unwrap().holders[0].last_seen;
        let stopped = on(idle, async { [acquire(1).await, acquire(2).await] });
        let kept = [acquire(3).await, acquire(4).await];
        on(idle, async { tokio::time::sleep(millis(900)).await });
        let before = last_seen(&stopped[0]).await;
        for lease in kept.iter().cycle().take(6) {
            let since = last_seen(lease).await;
            let refreshed = async {
                while last_seen(lease).await == since {
                    tokio::time::sleep(millis(20)).await;
                }
            };
            tokio::time::timeout(secs(60), refreshed).await.expect("it is refreshed");
        }
        assert_eq!(last_seen(&stopped[0]).await, before, "nothing refreshes it");
    });
}

#[test]
fn a_waiter_hears_of_its_hand_over_although_the_runtime_of_the_listener_is_not_driven_any_more() {
    beside_idle(async |idle| {
        let store = Faulty::new();
        let (seal, holder) = (store.seal(), store.seal());
        let held = holder.acquire("k").await.unwrap();
        // The listener of the handle begins on the idle runtime.
        let other = holder.acquire("other").ttl(secs(600)).await.unwrap();
        let waits = |key: &str, within: Duration| seal.acquire(key).ttl(secs(600)).wait(within).into_future();
        assert!(on(idle, waits("other", millis(50))).is_err());
        tokio::time::sleep(secs(4)).await;
        let waiting = tokio::spawn(waits("k", secs(3_600)));
        tokio::time::sleep(millis(100)).await;
        held.release().await.unwrap();
        // It asks by itself after 200 seconds, a third of its ttl.
        let _lease = tokio::time::timeout(secs(60), waiting).await.unwrap().unwrap().unwrap();
        drop(other);
    });
}
