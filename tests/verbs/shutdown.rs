//! A handle that holds many leases is shut down.

use std::{
    future::pending,
    ops::Range,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use mongoseal::{EndReason, Error, Lease, Mongoseal, Tick, TickLease, election::Leader, record::Request};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::count,
};

async fn leases(seal: &Mongoseal, count: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for number in 0..count {
        leases.push(seal.acquire(format!("k{number}")).await.unwrap());
    }
    leases
}

/// How many of the keys can be acquired now.
async fn free(store: &Faulty, count: usize) -> usize {
    store.heal();
    let other = store.seal();
    let mut free = 0;
    for number in 0..count {
        free += usize::from(other.acquire(format!("k{number}")).await.is_ok());
    }
    free
}

/// A hundred thousand releases, each by a command of its own, exceed the operation timeout. A lease that `run` works
/// under shares the command as well, although its work ends later if it is on another thread.
#[tokio::test(start_paused = true)]
async fn it_releases_all_of_two_thousand_leases_by_a_few_requests_if_no_work_outlasts_its_lease() {
    let (store, many) = (Faulty::new(), 2_000);
    let seal = store.seal();
    let held: Vec<_> = leases(&seal, many).await.into_iter().map(Arc::new).collect();
    let mut working = JoinSet::new();
    for (number, lease) in held.iter().step_by(2).map(Arc::clone).enumerate() {
        working.spawn(async move {
            let mut work = Box::pin(lease.run(pending::<()>()));
            assert!(is_pending(&mut work).await);
            drop(lease.cancelled().await);
            tokio::time::sleep(if number % 2 == 0 { millis(5) } else { Duration::ZERO }).await;
            work.await
        });
    }
    tokio::time::sleep(millis(1)).await;
    let together = count(&store, |call| (matches!(call, Call::Jointly(_)), Some(Fault::DelayReply(millis(10)))));
    let before = store.requests().len();
    seal.shutdown().await;
    let alone = store.requests()[before..].iter().filter(|request| matches!(request, Request::Release(_))).count();
    assert!(together() <= 14 && alone <= 4, "{} requests for many, {alone} for one", together());
    assert!(held.iter().all(|lease| !lease.is_valid()));
    assert!(working.join_all().await.iter().all(Result::is_err));
    assert_eq!(free(&store, many).await, many);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_locked_keeps_no_other_lease_from_its_release_and_a_store_that_hangs_ends_it_in_time() {
    let many = 1_000;
    // A fifth of the operation timeout, and some, or the whole operation timeout.
    for (is_away, at_most, released) in [(false, millis(2_100), many), (true, millis(10_200), 0)] {
        let (store, seal) = Faulty::open();
        let _held = leases(&seal, many).await;
        store.script(move |call| match call {
            _ if is_away => Some(Fault::Hang),
            Call::Jointly(leases) => leases.iter().any(|(key, _)| key.as_str() == "k77").then_some(Fault::Hang),
            _ => None,
        });
        let began = Instant::now();
        seal.shutdown().await;
        assert!(began.elapsed() <= at_most, "away: {is_away}, {:?}", began.elapsed());
        assert_eq!(free(&store, many).await, released, "away: {is_away}");
    }
}

/// Polls a future once. Returns whether it is pending.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|task| Poll::Ready(Pin::new(&mut *future).poll(task).is_pending())).await
}

/// Whether another handle can acquire the key now.
async fn is_free(store: &Faulty, key: &str) -> bool {
    store.seal().acquire(key).await.is_ok()
}

/// Shuts a handle down while this work runs under a lease on `k`. The work is polled again after two seconds, like work
/// that computes meanwhile.
async fn frees_the_key_after_its_work(store: &Faulty, seal: &Mongoseal, mut work: impl Future + Unpin) {
    assert!(timeout(millis(100), &mut work).await.is_err(), "the work runs");
    let began = Instant::now();
    let seal = seal.clone();
    let shutdown = tokio::spawn(async move { seal.shutdown().await });
    tokio::time::sleep(secs(2)).await;
    assert!(!is_free(store, "k").await);
    work.await;
    shutdown.await.unwrap();
    let took = began.elapsed();
    assert!(took >= secs(2) && took < millis(2_100), "{took:?}");
    assert!(is_free(store, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_work_runs_is_not_free_before_the_work_has_ended() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    let cancelled = lease.cancellation_token();
    let work = async {
        let ended = lease.run(pending::<()>()).await;
        assert!(matches!(ended, Err(Error::Ended { reason: EndReason::ShutDown, .. })));
    };
    let told = async {
        tokio::time::sleep(millis(101)).await;
        assert!(cancelled.is_cancelled(), "the work is told first");
    };
    tokio::join!(frees_the_key_after_its_work(&store, &seal, Box::pin(work)), told);

    let seal = store.seal();
    let work = seal.campaign("k").elector().run(async |_: &Leader| pending::<mongoseal::Result<()>>().await);
    frees_the_key_after_its_work(&store, &seal, Box::pin(work)).await;
    let seal = store.seal();
    let work = seal.once("k", Tick::number(1)).run(async |_: &TickLease| pending::<mongoseal::Result<()>>().await);
    frees_the_key_after_its_work(&store, &seal, Box::pin(work)).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_keeps_its_key_until_the_lease_expires_and_others_are_released() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    let _idle = seal.acquire("idle").await.unwrap();
    let for_ever = seal.acquire("for-ever").without_expiry().await.unwrap();
    let set = seal.acquire_all(["one", "two"]).await.unwrap();
    let began = Instant::now();
    // As in a `select!` whose other branch awaits the shutdown.
    let mut work = [
        Box::pin(lease.run(pending::<()>())) as Pin<Box<dyn Future<Output = _>>>,
        Box::pin(for_ever.run(pending::<()>())),
        Box::pin(set.run(pending::<()>())),
    ];
    for work in &mut work {
        assert!(is_pending(work).await);
    }
    let closing = seal.clone();
    let shutdown = tokio::spawn(async move { closing.shutdown().await });
    tokio::time::sleep(millis(10)).await;
    assert!(is_free(&store, "idle").await, "a lease without work is released at once");
    shutdown.await.unwrap();
    assert!(began.elapsed() <= millis(10_100), "{:?}", began.elapsed());
    for expired in [false, true] {
        tokio::time::sleep(if expired { secs(31) } else { secs(0) }).await;
        for key in ["k", "for-ever", "one", "two"] {
            assert_eq!(is_free(&store, key).await, expired && key != "for-ever", "{key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_inside_of_the_work_drops_the_work_and_releases_its_lease() {
    let (store, seal) = Faulty::open();
    let began = Instant::now();
    let stopped = seal.acquire("k").with(async |_| seal.shutdown().await).await;
    assert!(matches!(stopped, Err(Error::Ended { reason: EndReason::ShutDown, .. })), "{stopped:?}");
    seal.shutdown().await;
    assert!(began.elapsed() < millis(100), "{:?}", began.elapsed());
    assert!(is_free(&store, "k").await);
}

#[tokio::test(start_paused = true)]
async fn leases_that_have_ended_leave_no_task() {
    let seal = Mongoseal::in_memory();
    let tasks = async |ttls: Range<u64>| {
        for ttl in ttls {
            let lease = seal.acquire("k").ttl(secs(ttl)).await.unwrap();
            tokio::time::sleep(secs(ttl)).await;
            lease.release().await.unwrap();
        }
        tokio::time::sleep(secs(600)).await;
        Handle::current().metrics().num_alive_tasks()
    };
    let of_the_handle = tasks(10..11).await;
    assert_eq!(tasks(11..31).await, of_the_handle, "the task that refreshes the leases of a ttl has ended");
}

#[tokio::test(start_paused = true)]
async fn a_scope_shuts_its_handle_down_after_a_value_an_error_and_a_panic() {
    let store = Faulty::new();
    // The leases outlive the work, so that only a shutdown ends them.
    let keep = Arc::new(Mutex::new(Vec::new()));
    for end in ["value", "error", "panic"] {
        let (seal, kept) = (store.seal(), Arc::clone(&keep));
        let scope = tokio::spawn(seal.scope(async move |seal: &Mongoseal| {
            let lease = seal.acquire("k").await.unwrap();
            kept.lock().unwrap().push(lease);
            match end {
                "value" => Ok(7),
                "error" => Err("mine"),
                _ => panic!("mine"),
            }
        }));
        match (end, scope.await) {
            ("value", Ok(Ok(7))) | ("error", Ok(Err("mine"))) => {}
            (_, ended) => assert!(ended.is_err_and(|error| error.is_panic()) && end == "panic", "{end}"),
        }
        assert!(is_free(&store, "k").await, "after a {end}");
    }
    assert!(keep.lock().unwrap().iter().all(|lease| !lease.is_valid()));
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_does_not_wait_for_a_first_one_that_nobody_polls_any_more() {
    let seal = Faulty::new().seal();
    let other = seal.clone();
    let mut first = pin!(other.shutdown());
    assert!(is_pending(&mut first).await, "it closes the store");
    timeout(secs(20), seal.shutdown()).await.expect("it ends with the operation timeout");
}
