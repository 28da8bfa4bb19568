//! Runtimes that are not driven any more, or have ended.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use mongoseal::{Error, Mongoseal};
use tokio::runtime::Runtime;

use crate::{
    compare_and_swap::Table,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// An operation timeout that ends soon, and not before a busy machine has answered.
const TIMEOUT: Duration = secs(2);

fn idle() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Has a worker, which drives it while the test blocks.
fn driven() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Runs `test` with a runtime that nothing drives in between.
fn beside_idle(test: impl AsyncFnOnce(&Runtime)) {
    let (idle, driven) = (idle(), driven());
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
fn a_release_and_a_shutdown_outside_of_a_runtime_wait_for_the_runtime_of_the_handle() {
    let driven = driven();
    let seal = Mongoseal::in_memory();
    let acquire = async |key: &str| seal.acquire(key).await.unwrap();
    let (released, kept) = driven.block_on(async { (acquire("a").await, acquire("b").await) });
    outside(released.release()).unwrap();
    outside(seal.shutdown());
    assert!(!kept.is_valid());
}

#[test]
fn calls_of_a_store_whose_runtime_is_not_driven_return() {
    beside_idle(async |idle| {
        let store = on(idle, async { Table::new().store() });
        let builder = Mongoseal::builder().retention(secs(3600)).operation_timeout(TIMEOUT);
        let seal = builder.on_store(store).unwrap();
        on(idle, seal.prepare()).unwrap();
        let (inspected, now, listed, extended) =
            tokio::join!(seal.inspect("k"), seal.now(), async { seal.leases().await.map(drop) }, async {
                seal.refresh_group("g", secs(60)).await
            },);
        for error in [inspected.unwrap_err(), now.unwrap_err(), listed.unwrap_err(), extended.unwrap_err()] {
            let is_named = error.to_string().contains("made in a runtime of your own, drive that one");
            assert!(matches!(error, Error::Unavailable { .. }) && is_named, "{error}");
        }
        let error = seal.acquire("k").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        seal.shutdown().await;
    });
}

#[test]
fn calls_of_a_handle_whose_runtime_is_not_driven_return() {
    beside_idle(async |idle| {
        let seal = on(idle, async { Mongoseal::builder().operation_timeout(TIMEOUT).in_memory().unwrap() });
        let acquire = async |key: &str| seal.acquire(key).ttl(secs(60)).await.unwrap();
        let (released, refreshed, kept) =
            on(idle, async { (acquire("a").await, acquire("b").await, acquire("c").await) });
        let not_driven = |error: &Error| {
            let is_named = error.to_string().contains("drive the runtime in which the handle was made");
            assert!(matches!(error, Error::Unavailable { .. }) && is_named, "{error}");
        };
        let (released, refreshed, acquired) =
            tokio::join!(released.release(), refreshed.refresh(), seal.acquire("d").into_future());
        not_driven(&released.unwrap_err());
        not_driven(&refreshed.unwrap_err());
        not_driven(&acquired.unwrap_err());
        seal.shutdown().await;
        drop(kept);
    });
}

/// A handle has one runtime: no batch, listener or lease depends on one that a caller no longer drives.
#[test]
fn a_lease_and_a_waiter_whose_callers_stop_are_kept_and_notified_on_the_runtime_of_their_handle() {
    beside_idle(async |idle| {
        let store = Faulty::new();
        let (seal, other) = (store.seal(), store.seal());
        let kept = on(idle, async { seal.acquire("kept").ttl(secs(60)).refresh_every(millis(100)).await.unwrap() });
        let held = other.acquire("k").ttl(secs(600)).await.unwrap();
        // The listener of the handle begins with a call on the idle runtime.
        assert!(on(idle, seal.acquire("k").ttl(secs(600)).wait(millis(50)).into_future()).is_err());
        let waiting = tokio::spawn(seal.acquire("k").ttl(secs(600)).wait(secs(3_600)).into_future());
        let last_seen = async || other.inspect("kept").await.unwrap().unwrap().holders[0].last_seen;
        let before = last_seen().await;
        let refreshed = async {
            while last_seen().await == before {
                tokio::time::sleep(millis(20)).await;
            }
        };
        tokio::time::timeout(secs(60), refreshed).await.expect("it is refreshed");
        held.release().await.unwrap();
        // It asks by itself after 200 seconds, a third of its ttl.
        drop(tokio::time::timeout(secs(60), waiting).await.unwrap().unwrap().unwrap());
        seal.shutdown().await;
        drop(other.acquire("kept").await.expect("the shutdown has released it"));
        drop(kept);
    });
}

#[tokio::test]
async fn a_dropped_lease_does_not_wait_for_a_release_of_its_group_that_is_not_polled() {
    let (store, seal) = Faulty::open();
    drop(seal.acquire("k").group("g").ttl(secs(60)).await.unwrap());
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Hang));
    let mut releasing = pin!(seal.release_group("g"));
    assert!(tokio::time::timeout(millis(50), &mut releasing).await.is_err());
    drop(store.seal().acquire("k").await.unwrap());
}
