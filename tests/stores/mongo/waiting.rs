//! The change streams of waiters.

use mongodb::bson::doc;
use tokio::task::JoinSet;

use crate::{OpenedStreams, TestDatabase, eventually, noting_client, queued, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_change_streams_are_open_ask_nothing_and_are_told_of_their_turn() {
    let db = TestDatabase::new("mongoseal_waiting").await;
    let (mut sent, streams) = (Vec::new(), OpenedStreams::default());
    let first = db.seal().acquire("k").await.unwrap();
    let mut waiting = JoinSet::new();
    // Each with a client of its own, as processes have.
    for _ in 0..4 {
        let (client, commands) = noting_client(&db.set.uri()).await;
        sent.push(commands);
        let seal = streams.builder().on_shared_client(&client.database("mongoseal_waiting")).unwrap();
        waiting.spawn(async move {
            // It asks by itself after a third of this time.
            let lease = seal.acquire("k").ttl(secs(300)).wait(secs(900)).await.unwrap();
            lease.release().await.unwrap();
            seal.shutdown().await;
        });
    }
    eventually(secs(30), "all are queued", async || queued(&db).await == 4).await;
    streams.wait_for(4).await;
    // Each asks once more when its stream is open.
    tokio::time::sleep(secs(1)).await;
    let asked = || sent.iter().map(|sent| sent.count("findAndModify")).sum::<usize>();
    let before = asked();
    tokio::time::sleep(secs(2)).await;
    assert_eq!(asked(), before);
    first.release().await.unwrap();
    tokio::time::timeout(secs(60), waiting.join_all()).await.expect("each is told");
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
