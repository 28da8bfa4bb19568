//! Handles and their clients: pools and shutdowns.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::Mongoseal;

use crate::{TestDatabase, eventually, millis, secs};

#[tokio::test]
async fn shutdown_releases_at_the_server_and_closes_only_its_own_client() {
    let db = TestDatabase::new("mongoseal_shutdown").await;
    let seal = db.seal();
    let _lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    seal.shutdown().await;
    drop(db.seal().acquire("k").await.unwrap());
    db.client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();

    let own = Mongoseal::builder().database("mongoseal_shutdown").connect(db.set.uri()).await.unwrap();
    let lease = own.acquire("own").ttl(secs(600)).await.unwrap();
    own.shutdown().await;
    drop(lease);
    drop(db.seal().acquire("own").await.unwrap());
}

#[tokio::test]
async fn a_pool_in_the_connection_string_that_is_too_small_is_not_used() {
    let db = TestDatabase::new("mongoseal_small_pool").await;
    let builder = Mongoseal::builder().database("mongoseal_small_pool");
    let seal = builder.connect(db.set.uri_with("maxPoolSize=1")).await.unwrap();
    let lease = seal.acquire("k").ttl(secs(60)).refresh_every(millis(500)).await.unwrap();
    let mut watches = Vec::new();
    for number in 0..5 {
        watches.push(seal.watch(format!("watched/{number}")).await.unwrap());
    }
    // Each watch keeps a connection. The refreshes get another.
    let last_seen = async || db.seal().inspect("k").await.unwrap().unwrap().holders[0].last_seen;
    for _ in 0..2 {
        let before = last_seen().await;
        eventually(secs(30), "the lease is refreshed", async || last_seen().await > before).await;
    }
    seal.acquire("other").await.unwrap().release().await.unwrap();
    lease.verify().await.unwrap();
    seal.shutdown().await;
}

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
