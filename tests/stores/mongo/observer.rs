//! The events of a handle on a real server.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mongodb::Client;
use mongoseal::observe::HandleEvent;

use crate::{OpenedStreams, TestDatabase, eventually, queued, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_hand_over_is_at_most_that_since_the_release_was_sent() {
    let db = TestDatabase::new("mongoseal_observer").await;
    let client = Client::with_uri_str(&db.set.uri()).await.unwrap();
    let times: Arc<Mutex<Vec<Option<Duration>>>> = Arc::default();
    let (seen, streams) = (Arc::clone(&times), OpenedStreams::default());
    let waiting = streams
        .builder()
        .observer(Arc::new(move |event: &HandleEvent<'_>| {
            if let HandleEvent::HandedOver { took, .. } = event {
                seen.lock().unwrap().push(*took);
            }
        }))
        .on_shared_client(&client.database("mongoseal_observer"))
        .unwrap();
    let holding = db.seal();
    // The oplog has the change of a small document as a whole, and that of a large one as a difference.
    for (round, size) in [0, 3_000].into_iter().cycle().take(4).enumerate() {
        let lease = holding.acquire("k").metadata("text", "x".repeat(size)).await.unwrap();
        let acquire = waiting.acquire("k").metadata("text", "x".repeat(size)).wait(secs(60));
        let waiter = tokio::spawn(acquire.into_future());
        eventually(secs(30), "it is queued", async || queued(&db).await == 1).await;
        streams.wait_for(1).await;
        let began = Instant::now();
        lease.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let took = began.elapsed();
        let times = times.lock().unwrap();
        assert_eq!(times.len(), round + 1, "each hand-over is notified");
        let time = times[round].expect("the server sends the time of the grant");
        // The server counts whole milliseconds, and the waiter knows the server's clock to a round trip.
        assert!(time <= took + secs(1), "{time:?}, and all took {took:?}");
    }
    println!("hand-overs: {:?}", times.lock().unwrap());
    waiting.shutdown().await;
    streams.wait_for(1).await;
}
