//! Blocking calls inside of runtimes, and from several threads.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use mongoseal::{EndReason, Error, LeaseState, blocking::Mongoseal};
use tokio::task;

use super::{SOON, catch, eventually, on, until_refreshed};
use crate::{faulty::Faulty, millis, secs};

/// Calls verbs, and drops a lease, an iterator and the last handle.
fn call_and_drop() {
    let store = Faulty::new();
    let seal = on(&store);
    let lease = seal.acquire("k").refresh_every(millis(100)).run().unwrap();
    until_refreshed(&store);
    lease.run(|lease| lease.check()).unwrap().unwrap();
    lease.verify().unwrap();
    drop(lease);
    let mut events = seal.watch("k").unwrap();
    let lease = seal.acquire("k").run().unwrap();
    events.next().unwrap().unwrap();
    let dropped = seal.acquire("l").run().unwrap();
    drop((events, seal, lease, dropped));
    // Another handle is granted both keys long before a ttl has passed.
    let next = on(&store);
    drop(next.acquire_all(["k", "l"]).wait(SOON).run().unwrap());
    next.shutdown();
}

#[tokio::test]
async fn calls_and_drops_inside_of_a_current_thread_runtime_and_a_local_set_neither_panic_nor_hang() {
    call_and_drop();
    task::LocalSet::new().run_until(async { task::spawn_local(async { call_and_drop() }).await.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_drops_inside_of_a_multi_thread_runtime_neither_panic_nor_hang() {
    call_and_drop();
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(async { call_and_drop() })).collect();
    for call in calls {
        call.await.unwrap();
    }
    task::spawn_blocking(call_and_drop).await.unwrap();
    task::block_in_place(call_and_drop);
}

#[tokio::test]
async fn calls_after_many_polls_of_one_task_do_not_hang() {
    // The runtime gives each task a budget, and the futures of a task that has used it up wait.
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..128 {
        send.send(number).unwrap();
    }
    let seal = Mongoseal::in_memory().unwrap();
    for _ in 0..127 {
        receive.recv().await.unwrap();
        drop(seal.acquire("k").run().unwrap());
    }
}

#[tokio::test]
async fn calls_in_a_future_on_the_threads_of_the_handle_neither_panic_nor_hang() {
    let seal = Mongoseal::in_memory().unwrap();
    let other = seal.clone();
    seal.clone().block_on(async move {
        let held = seal.acquire("k").run().unwrap();
        let waiting = tokio::spawn(async move { other.acquire("k").wait(SOON).run() });
        while seal.inspect("k").unwrap().unwrap().queue.is_empty() {
            task::yield_now().await;
        }
        held.release().unwrap();
        drop(waiting.await.unwrap().unwrap());
    });
}

#[test]
fn a_shutdown_ends_leases_and_calls_that_wait_and_later_verbs_return_an_error() {
    let store = Faulty::new();
    let seal = on(&store);
    let other = on(&store).acquire("held").run().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let mut events = seal.watch("held").unwrap();
    events.next().unwrap().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| seal.acquire("held").wait(secs(60)).run());
        let watching = scope.spawn(|| events.next().unwrap());
        eventually("it is queued", || seal.inspect("held").unwrap().unwrap().queue.len() == 1);
        seal.shutdown();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Invalid { .. })));
        assert!(matches!(watching.join().unwrap(), Err(Error::Invalid { .. })));
    });
    assert_eq!(lease.cancelled().unwrap(), LeaseState::Ended { reason: EndReason::ShutDown });
    assert!(matches!(seal.acquire("k").run(), Err(Error::Invalid { .. })));
    seal.shutdown();
    drop((on(&store).acquire("k").run().unwrap(), other));
}

#[test]
fn a_shutdown_waits_for_work_on_other_threads_before_it_releases_the_key() {
    let store = Faulty::new();
    let (seal, other) = (on(&store), on(&store));
    let lease = seal.acquire("k").run().unwrap();
    let set = seal.acquire_all(["one", "two"]).run().unwrap();
    let is_free = |key: &str| other.acquire(key).run().is_ok();
    let shut_down = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopped = lease.run(|view| {
            let of_set = set.run(|_| {
                scope.spawn(|| {
                    seal.shutdown();
                    shut_down.store(true, Ordering::SeqCst);
                });
                eventually("the work is told", || !view.is_valid());
                // Longer than a release takes.
                thread::sleep(millis(100));
                assert!(!["k", "one", "two"].into_iter().any(is_free));
                assert!(!shut_down.load(Ordering::SeqCst));
            });
            assert!(matches!(of_set, Err(Error::Ended { .. })));
        });
        assert!(matches!(stopped, Err(Error::Ended { .. })));
    });
    assert!(["k", "one", "two"].into_iter().all(is_free));
}

#[test]
fn a_scope_shuts_its_handle_down_after_its_work_and_after_a_panic() {
    let store = Faulty::new();
    let kept = on(&store).scope(|seal| seal.acquire("k").run().unwrap());
    assert!(!kept.is_valid());
    let panicked = catch(|| {
        on(&store).scope(|seal| {
            std::mem::forget(seal.acquire("k").run().unwrap());
            panic!("mine")
        })
    });
    assert!(panicked.is_err());
    assert!(on(&store).acquire("k").run().is_ok());
}
