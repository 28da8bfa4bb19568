//! Waiting for a key on a real server.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
};

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};

use crate::{OpenedStreams, TestDatabase, eventually, millis, noting_client, secs};

async fn queued(db: &TestDatabase) -> usize {
    db.record("k").await.map_or(0, |record| record.get_array("queue").unwrap().len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_many_handles_are_served_in_the_order_they_came() {
    let db = TestDatabase::new("mongoseal_waiting").await;
    // Each with a client of its own, as processes have.
    let (mut sent, streams) = (Vec::new(), OpenedStreams::default());
    let first = db.seal().acquire("k").await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..12 {
        let (client, commands) = noting_client(&db.set.uri()).await;
        sent.push(commands);
        let seal = streams.builder().on(&client.database("mongoseal_waiting")).unwrap();
        let served = Arc::clone(&served);
        waiting.push(tokio::spawn(async move {
            let lease = seal.acquire("k").wait(secs(60)).await.unwrap();
            served.lock().unwrap().push((number, lease.token()));
            lease.release().await.unwrap();
            seal.shutdown().await;
        }));
        eventually(secs(5), "it is queued", || async { queued(&db).await == number + 1 }).await;
    }
    // From then on the waiters do not poll.
    streams.wait_for(12).await;
    let asked = || {
        let each = sent.iter().map(|sent| sent.count("findAndModify"));
        each.sum::<usize>()
    };
    let before = asked();
    tokio::time::sleep(secs(3)).await;
    let idle = asked() - before;
    assert!(idle <= 3, "12 waiters sent {idle} commands in 3 seconds");
    let began = std::time::Instant::now();
    first.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert!(began.elapsed() < secs(8), "somebody was not told: {:?}", began.elapsed());
    let served = served.lock().unwrap().clone();
    assert!(served.iter().map(|(number, _)| *number).eq(0..12), "{served:?}");
    assert!(served.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens grow: {served:?}");
    assert_eq!(queued(&db).await, 0);
}

#[tokio::test]
async fn a_wait_that_ends_and_one_that_is_dropped_leave_the_queue() {
    let db = TestDatabase::new("mongoseal_waited").await;
    let seal = db.seal();
    let _holder = seal.acquire("k").await.unwrap();
    for at_most in [millis(0), millis(1), millis(300)] {
        assert!(matches!(seal.acquire("k").wait(at_most).await, Err(Error::Held { .. })));
        assert_eq!(queued(&db).await, 0);
    }
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    eventually(secs(5), "it is queued", || async { queued(&db).await == 1 }).await;
    waiting.abort();
    eventually(secs(5), "it is taken off", || async { queued(&db).await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_killed_on_the_server_loses_no_hand_over() {
    let db = TestDatabase::new("mongoseal_killed").await;
    let streams = OpenedStreams::default();
    let builder = streams.builder().database("mongoseal_killed");
    let seal = builder.connect(db.set.uri_with("appName=killed")).await.unwrap();
    let holder = db.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    eventually(secs(5), "it is queued", || async { queued(&db).await == 1 }).await;
    streams.wait_for(1).await;
    // Not resumable: the driver gives up, and the waiter polls until the stream is open again.
    let error = doc! { "errorCode": 2, "errmsg": "killed" };
    let killed = db.set.fail_command("killed", &["getMore"], error, 1).await;
    killed.hit(1).await;
    let began = std::time::Instant::now();
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
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
    let began = std::time::Instant::now();
    streams.wait_for(1).await;
    println!("opened {:?} after the error", began.elapsed());
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    odd.off().await;
    seal.shutdown().await;
}

#[tokio::test]
async fn a_full_queue_is_refused_and_the_record_stays_as_it_is() {
    let db = TestDatabase::new("mongoseal_full").await;
    let seal = db.build(Mongoseal::builder().queue_limit(1));
    let _holder = seal.acquire("k").without_refresh().await.unwrap();
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    eventually(secs(5), "it is queued", || async { queued(&db).await == 1 }).await;
    assert!(matches!(seal.acquire("k").wait(secs(60)).await, Err(Error::QueueFull { length: 1, .. })));
    assert_eq!(queued(&db).await, 1);
    waiting.abort();
}
