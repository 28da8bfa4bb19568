//! Runtimes that have stopped, or whose threads are all blocked.

use std::{
    env,
    task::{Context, Waker},
    thread,
};

use mongoseal::{Builder, Error, Mongoseal};

use crate::{TestDatabase, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_runtime_that_is_not_driven_hold_up_no_others() {
    let db = TestDatabase::new("mongoseal_idle_runtime").await;
    let holder = db.seal();
    let _held = holder.acquire("k").ttl(secs(60)).await.unwrap();
    // A request that was sent keeps its connection, so there must be more of them.
    let builder = Mongoseal::builder().operation_timeout(secs(3)).database("mongoseal_idle_runtime");
    let seal = builder.connect(db.set.uri()).await.unwrap();

    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut acquires: Vec<_> = (0..100)
        .map(|number| {
            let key = if number < 8 { "k".to_owned() } else { format!("k{number}") };
            seal.acquire(key).wait(secs(60)).into_future()
        })
        .collect();
    let poll_each = async move {
        for acquire in &mut acquires {
            assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // So that each task has come as far as it comes without an answer.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        acquires
    };
    let (idle, acquires) = std::thread::spawn(move || {
        let acquires = idle.block_on(poll_each);
        (idle, acquires)
    })
    .join()
    .unwrap();

    let refused = seal.acquire("k").wait(secs(1)).await;
    assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
    let lease = seal.acquire("other").await.unwrap();
    lease.release().await.unwrap();
    seal.shutdown().await;
    drop(acquires);
    idle.shutdown_background();
}

/// `MONGOSEAL_BLOCKED` says for how many seconds.
#[test]
fn a_handle_with_a_thread_of_its_own_keeps_its_leases_while_all_threads_of_the_runtime_are_blocked() {
    let blocked = secs(env::var("MONGOSEAL_BLOCKED").map_or(6, |seconds| seconds.parse().unwrap()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let db = TestDatabase::new("mongoseal_blocked").await;
        let connect =
            async |builder: Builder| builder.database("mongoseal_blocked").connect(db.set.uri()).await.unwrap();
        let (own, shared) =
            (connect(Mongoseal::builder().dedicated_thread()).await, connect(Mongoseal::builder()).await);
        let kept = own.acquire("kept").ttl(secs(4)).await.unwrap();
        let lost = shared.acquire("lost").ttl(secs(2)).await.unwrap();
        // Two workers and this thread, which is the third that drives the runtime.
        for _ in 0..2 {
            tokio::spawn(async move { thread::sleep(blocked) });
        }
        thread::sleep(blocked);
        assert!(kept.is_valid() && !lost.is_valid(), "{kept:?}, {lost:?}");
        kept.verify().await.unwrap();
        let token = kept.token();
        kept.release().await.unwrap();
        assert!(own.acquire("kept").await.unwrap().token() > token);
        own.shutdown().await;
    });
}

#[tokio::test]
async fn a_handle_on_a_client_of_the_caller_has_no_thread_of_its_own_and_says_why() {
    let db = TestDatabase::new("mongoseal_no_thread").await;
    let error = Mongoseal::builder().dedicated_thread().on(&db.database).unwrap_err();
    assert!(error.to_string().contains("use `connect`"), "{error}");
}
