//! Runtimes of callers that have stopped, or whose threads are all blocked.

use std::{
    cell::RefCell,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Waker},
    thread,
};

use mongoseal::{
    Error, Mongoseal, Result, blocking,
    store::{MongoStore, Store},
};
use tokio::task::JoinSet;

use crate::{TestDatabase, secs};

/// A call that waits in the future of its caller keeps its turn or permit when the caller stops polling it. So each
/// request waits on a task of the handle's runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_nobody_polls_any_more_hold_up_no_others() {
    let db = TestDatabase::new("mongoseal_idle_runtime").await;
    let holder = db.seal();
    let _held = holder.acquire("k").ttl(secs(60)).await.unwrap();
    // A call that nobody polls would keep what it waits for until its timeout, which is longer than any queue here.
    let seal = Mongoseal::builder().operation_timeout(secs(60)).connect(db.uri()).await.unwrap();

    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let own = seal.acquire("own").await.unwrap();
    let own = &own;
    let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
    for number in 0..100 {
        let key = if number < 8 { "k".to_owned() } else { format!("k{number}") };
        let acquiring = seal.acquire(key).wait(secs(60)).into_future();
        calls.push(Box::pin(async move { drop(acquiring.await) }));
    }
    // More than there are connections. Each would keep a permit that it is given.
    for _ in 0..200 {
        let seal = seal.clone();
        calls.push(Box::pin(async move { drop(seal.inspect("k").await) }));
        calls.push(Box::pin(async move { drop(own.verify().await) }));
    }
    let poll_each = async {
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // So that each task has come as far as it comes without an answer.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    let idle = thread::scope(|scope| {
        let run = || {
            idle.block_on(poll_each);
            idle
        };
        scope.spawn(run).join().unwrap()
    });

    let refused = seal.acquire("k").wait(secs(1)).await;
    assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
    let lease = seal.acquire("other").await.unwrap();
    seal.inspect("k").await.unwrap().expect("it is held");
    own.verify().await.unwrap();
    lease.release().await.unwrap();
    seal.shutdown().await;
    drop(calls);
    idle.shutdown_background();
}

#[test]
fn leases_of_a_handle_that_connects_are_kept_while_all_threads_of_the_runtime_are_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let db = TestDatabase::new("mongoseal_blocked").await;
        let seal = Mongoseal::connect(db.uri()).await.unwrap();
        let acquires = (0..100).map(|number| seal.acquire(format!("k{number}")).ttl(secs(4)).into_future());
        let acquires: JoinSet<_> = acquires.collect();
        let leases: Vec<_> = acquires.join_all().await.into_iter().map(Result::unwrap).collect();
        // On the runtime of the caller, as its client is.
        let lost = db.seal().acquire("lost").ttl(secs(2)).await.unwrap();
        thread::sleep(secs(8));
        assert_eq!(leases.iter().filter(|lease| !lease.is_valid()).count(), 0);
        assert!(!lost.is_valid());
        for lease in &leases {
            lease.verify().await.unwrap();
        }
        let (key, token) = (leases[0].key().to_string(), leases[0].token());
        drop(leases);
        assert!(seal.acquire(key).wait(secs(60)).await.unwrap().token() > token);
        seal.shutdown().await;
    });
}

/// What a worker spawns in its own runtime may wait for that worker, which the call blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_call_on_a_worker_of_the_runtime_of_its_store_returns() {
    let db = TestDatabase::new("mongoseal_blocking_worker").await;
    let store: Arc<dyn Store> = Arc::new(MongoStore::new(&db.database, "mongoseal", secs(24 * 3600)));
    let seal = blocking::Mongoseal::builder().on_store(store).unwrap();
    let calls = tokio::spawn(async move {
        let lease = seal.acquire("k").run().unwrap();
        for _ in 0..20 {
            assert!(seal.inspect("k").unwrap().is_some());
            lease.verify().unwrap();
        }
        seal.prepare().unwrap();
        lease.release().unwrap();
    });
    calls.await.unwrap();
}

/// A lease in the storage of a thread, which refreshes it when it ends.
struct RefreshedAtEnd(blocking::Lease, mpsc::Sender<Result<()>>);

impl Drop for RefreshedAtEnd {
    fn drop(&mut self) {
        self.1.send(self.0.refresh()).unwrap();
    }
}

thread_local! {
    static AT_END: RefCell<Option<RefreshedAtEnd>> = const { RefCell::new(None) };
}

/// The storage of tokio is gone then: a thread drops first what it has used last.
#[tokio::test]
async fn a_blocking_call_in_a_thread_that_ends_returns() {
    let uri = TestDatabase::new("mongoseal_ending_thread").await.uri();
    let (sent, refreshed) = mpsc::channel();
    let ended = thread::spawn(move || {
        AT_END.with_borrow_mut(|_| {});
        let seal = blocking::Mongoseal::connect(uri).unwrap();
        let lease = seal.acquire("k").run().unwrap();
        AT_END.with_borrow_mut(|at_end| *at_end = Some(RefreshedAtEnd(lease, sent)));
    });
    ended.join().unwrap();
    refreshed.recv().unwrap().unwrap();
}
