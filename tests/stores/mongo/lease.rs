//! Handles and their clients: pools and shutdowns.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::Mongoseal;

use crate::{TestDatabase, eventually, millis, secs};

/// A shutdown must not wait until the driver has the next events of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: judges how long a shutdown takes"]
async fn shutdown_does_not_wait_for_the_next_events_of_a_change_stream() {
    let db = TestDatabase::new("mongoseal_soon").await;
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let seal = Mongoseal::builder().database("mongoseal_soon").connect(db.set.uri()).await.unwrap();
        let lease = seal.acquire("k").await.unwrap();
        // Its handle listens for a revocation from a second on.
        tokio::time::sleep(millis(1_300 + 200 * round)).await;
        lease.release().await.unwrap();
        let began = Instant::now();
        seal.shutdown().await;
        longest = longest.max(began.elapsed());
    }
    println!("the longest shutdown took {longest:?}");
    // The request for the next events would have taken 0.7 seconds more at least.
    assert!(longest < millis(400), "{longest:?}");
}

/// An attempt of its refresh may last for a sixth of the ttl only.
#[tokio::test]
#[ignore = "night: a busy machine refreshes no lease of 100 ms"]
async fn a_lease_of_a_tenth_of_a_second_can_be_refreshed() {
    let db = TestDatabase::new("mongoseal_tenth").await;
    let seal = db.seal();
    // On a busy machine some come too late.
    eventually(secs(20), "one of them is", async || {
        let acquired = seal.acquire("k").ttl(millis(100)).without_refresh().await;
        let Ok(lease) = acquired else { return false };
        lease.refresh().await.is_ok()
    })
    .await;
}
