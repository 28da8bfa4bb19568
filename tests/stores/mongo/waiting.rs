//! The change streams of waiters.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use mongodb::bson::doc;
use mongoseal::{Builder, Mongoseal, observe::HandleEvent};

use crate::{TestDatabase, eventually, queued, secs};

/// How many streams of grants and revocations were opened by handles that it observes.
#[derive(Clone, Default)]
struct OpenedStreams(Arc<AtomicUsize>);

impl OpenedStreams {
    fn builder(&self) -> Builder {
        let opened = Arc::clone(&self.0);
        Mongoseal::builder().observer(Arc::new(move |event: &HandleEvent<'_>| {
            if matches!(event, HandleEvent::StreamOpened) {
                opened.fetch_add(1, Ordering::Relaxed);
            }
        }))
    }

    /// Waits until this many were opened.
    async fn wait_for(&self, count: usize) {
        eventually(secs(30), "the streams are open", async || self.0.load(Ordering::Relaxed) == count).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_killed_on_the_server_loses_no_hand_over() {
    let db = TestDatabase::new("mongoseal_killed").await;
    let streams = OpenedStreams::default();
    let builder = streams.builder().database("mongoseal_killed");
    let seal = builder.connect(db.set.uri_with("appName=killed")).await.unwrap();
    let holder = db.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    eventually(secs(30), "it is queued", || async { queued(&db).await == 1 }).await;
    streams.wait_for(1).await;
    // Not resumable: the driver gives up, and the waiter polls until the stream is open again.
    let error = doc! { "errorCode": 2, "errmsg": "killed" };
    let killed = db.set.fail_command("killed", &["getMore"], error, 1).await;
    killed.hit(1).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    lease.release().await.unwrap();
    killed.off().await;

    // And the stream is opened again.
    let holder = db.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    streams.wait_for(2).await;
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    seal.shutdown().await;
}

/// An error without a label when a stream is opened is no refusal for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_that_an_odd_error_kept_closed_once_is_opened_again() {
    let db = TestDatabase::new("mongoseal_odd").await;
    let streams = OpenedStreams::default();
    let builder = streams.builder().database("mongoseal_odd");
    let seal = builder.connect(db.set.uri_with("appName=odd")).await.unwrap();
    seal.prepare().await.unwrap();
    let holder = db.seal().acquire("k").await.unwrap();
    // `UnknownError`, without a label.
    let odd = db.set.fail_command("odd", &["aggregate"], doc! { "errorCode": 8 }, 1).await;
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    odd.hit(1).await;
    streams.wait_for(1).await;
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    odd.off().await;
    seal.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_notified_with_the_time_of_its_grant() {
    let db = TestDatabase::new("mongoseal_observer").await;
    let (times, streams) = (Arc::new(Mutex::new(Vec::new())), OpenedStreams::default());
    let seen = Arc::clone(&times);
    let builder = streams.builder().observer(Arc::new(move |event: &HandleEvent<'_>| {
        if let HandleEvent::HandedOver { took, .. } = event {
            seen.lock().unwrap().push(*took);
        }
    }));
    let (holding, waiting) = (db.seal(), db.build(builder));
    // The oplog has the change of a small document as a whole, and that of a large one as a difference.
    for (round, size) in [(1, 0), (2, 3_000)] {
        let lease = holding.acquire("k").metadata("text", "x".repeat(size)).await.unwrap();
        let acquire = waiting.acquire("k").metadata("text", "x".repeat(size)).wait(secs(60));
        let waiter = tokio::spawn(acquire.into_future());
        eventually(secs(30), "it is queued", async || queued(&db).await == 1).await;
        streams.wait_for(1).await;
        lease.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let times = times.lock().unwrap();
        assert!(times.len() == round && times[round - 1].is_some(), "{times:?}");
    }
}
