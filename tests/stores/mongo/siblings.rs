//! Handles and their clients: handles that share one, connections, and shutdowns.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use mongoseal::{
    Error, Lease, LeaseState, Mongoseal,
    store::{MongoStore, Store},
};
use tokio::task::JoinSet;

use crate::{TestDatabase, by_length, eventually, millis, noting_seal, secs};

/// How many operations and idle connections of clients of this name match.
async fn operations(client: &Client, name: &str, mut matching: Document) -> usize {
    matching.insert("appName", name);
    let admin = client.database("admin");
    let all = doc! { "$currentOp": { "allUsers": true, "idleCursors": true, "idleConnections": true } };
    let operations = admin.aggregate([all, doc! { "$match": matching }]);
    let mut operations = operations.with_type::<Document>().await.unwrap();
    let mut count = 0;
    while operations.advance().await.unwrap() {
        count += 1;
    }
    count
}

/// How many change streams clients of this name have open. One may be missing for a moment, between an operation and an idle
/// cursor.
pub(crate) async fn streams(client: &Client, name: &str) -> usize {
    let is_stream = doc! { "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true } };
    operations(client, name, is_stream).await
}

/// A change stream for each handle would keep all 10 connections of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_that_are_more_than_the_connections_lose_no_lease_and_have_one_change_stream() {
    let db = TestDatabase::new("mongoseal_siblings").await;
    let (first, _) = noting_seal(&db, "appName=siblings&maxPoolSize=10").await;
    let siblings: Vec<Mongoseal> =
        (0..by_length(20, 100)).map(|_| Mongoseal::builder().sibling_of(&first).unwrap()).collect();
    let mut leases = Vec::new();
    for (number, seal) in siblings.iter().enumerate() {
        let acquire = seal.acquire(format!("k{number}")).ttl(by_length(secs(60), secs(5)));
        leases.push(acquire.refresh_every(secs(1)).await.unwrap());
    }
    // Each waits for the next one's key.
    let mut waiting = JoinSet::new();
    for (number, seal) in siblings.iter().enumerate() {
        let key = format!("k{}", (number + 1) % siblings.len());
        waiting.spawn(seal.acquire(key).ttl(secs(5)).wait(secs(3600)).into_future());
    }
    let states: Vec<_> = leases.iter().map(Lease::watch_state).collect();
    tokio::time::sleep(secs(by_length(2, 12))).await;
    let refreshed = doc! { "holders.0.refreshes": { "$gte": 2 } };
    let all = async || db.records().count_documents(refreshed.clone()).await.unwrap() == siblings.len() as u64;
    eventually(secs(50), "each lease is refreshed twice", all).await;
    let lost = states.iter().filter(|states| states.get() != LeaseState::Held).count();
    assert_eq!(lost, 0, "leases are not held");
    assert!(waiting.try_join_next().is_none(), "all wait");
    eventually(secs(30), "one change stream", || async { streams(&db.client, "siblings").await == 1 }).await;
    for lease in leases {
        lease.release().await.unwrap();
    }
    while let Some(waited) = waiting.join_next().await {
        waited.unwrap().unwrap().release().await.unwrap();
    }
}

/// Its handle joins a shared stream that has already read the event.
#[tokio::test]
async fn a_holder_whose_sibling_has_the_stream_learns_of_a_revocation_before_it_joins() {
    let db = TestDatabase::new("mongoseal_joined").await;
    let first = db.seal();
    let second = Mongoseal::builder().sibling_of(&first).unwrap();
    // It listens from a second after its grant on, as the other one does.
    let _first = first.acquire("first").await.unwrap();
    tokio::time::sleep(secs(2)).await;
    let lease = second.acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
    let mut states = lease.watch_state();
    first.revoke("k").await.unwrap();
    let lost = tokio::time::timeout(secs(30), states.changed()).await.expect("it hears of it");
    assert!(matches!(lost, Some(LeaseState::Lost { .. })), "{lost:?}");
}

#[tokio::test]
async fn the_client_of_a_store_is_closed_by_the_last_of_its_handles_that_is_shut_down() {
    let db = TestDatabase::new("mongoseal_last_of_store").await;
    let client = Client::with_uri_str(db.set.uri_with("appName=last_of_store")).await.unwrap();
    let store = Arc::new(MongoStore::owning(&client.database(db.database.name()), "mongoseal", secs(3600), 10));
    let seal = || Mongoseal::builder().on_store(Arc::clone(&store) as Arc<dyn Store>).unwrap();
    let (first, second) = (seal(), seal());
    first.acquire("k").await.unwrap().release().await.unwrap();
    first.shutdown().await;
    first.shutdown().await;
    second.acquire("k").await.unwrap().release().await.unwrap();
    second.shutdown().await;
    drop(client);
    eventually(secs(30), "it is closed", || async { operations(&db.client, "last_of_store", doc! {}).await == 0 })
        .await;
}

#[tokio::test]
async fn a_sibling_in_another_collection_has_records_of_its_own_on_the_same_client() {
    let db = TestDatabase::new("mongoseal_tenants").await;
    let seal = Mongoseal::connect(db.uri() + "&appName=tenants").await.unwrap();
    let other = Mongoseal::builder().collection("tenant_7").sibling_of(&seal).unwrap();
    let same = Mongoseal::builder().collection("mongoseal").sibling_of(&seal).unwrap();
    let _lease = seal.acquire("k").await.unwrap();
    assert!(matches!(same.acquire("k").await, Err(Error::Held { .. })), "the collection is the same");
    let _other = other.acquire("k").await.unwrap();
    let record = db.database.collection::<Document>("tenant_7").find_one(doc! { "_id": "k" }).await.unwrap();
    assert!(record.is_some_and(|record| !record.get_array("holders").unwrap().is_empty()));
    seal.shutdown().await;
    same.shutdown().await;
    other.acquire("second").await.unwrap().release().await.unwrap();
    other.shutdown().await;
    eventually(secs(30), "the last one closes the client", || async {
        operations(&db.client, "tenants", doc! {}).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connect_opened_has_sixteen_change_streams_and_whoever_finds_none_left_polls() {
    let db = TestDatabase::new("mongoseal_many_streams").await;
    let first = Mongoseal::connect(db.uri() + "&appName=many_streams").await.unwrap();
    let tenants: Vec<Mongoseal> = (0..24)
        .map(|number| Mongoseal::builder().collection(format!("tenant_{number}")).sibling_of(&first).unwrap())
        .collect();
    let (mut leases, mut waiting) = (Vec::new(), JoinSet::new());
    for seal in &tenants {
        leases.push(seal.acquire("k").ttl(secs(30)).await.unwrap());
        waiting.spawn(seal.acquire("k").ttl(secs(5)).wait(secs(60)).into_future());
    }
    eventually(secs(30), "sixteen", || async { streams(&db.client, "many_streams").await == 16 }).await;
    // A waiter without a stream asks meanwhile.
    tokio::time::sleep(secs(2)).await;
    eventually(secs(30), "still sixteen", || async { streams(&db.client, "many_streams").await == 16 }).await;
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Held));
    for lease in leases {
        lease.release().await.unwrap();
    }
    while let Some(waited) = waiting.join_next().await {
        waited.unwrap().unwrap().release().await.unwrap();
    }
}

/// A handle that takes ten connections for 64 sends too many refreshes at once. One that takes 84 for ten sends too few
/// acquires.
#[tokio::test]
async fn a_store_on_a_client_of_the_caller_is_made_for_ten_connections() {
    let db = TestDatabase::new("mongoseal_connections").await;
    let store = MongoStore::new(&db.database, "mongoseal", secs(3600));
    assert_eq!(store.connections(), 10, "the driver's default");
    let larger = MongoStore::with_connections(&db.database, "mongoseal", secs(3600), 84);
    assert_eq!(larger.connections(), 84);
}

/// A shutdown must not wait until the driver has the next events of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: judges how long a shutdown takes"]
async fn shutdown_does_not_wait_for_the_next_events_of_a_change_stream() {
    let db = TestDatabase::new("mongoseal_soon").await;
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let seal = Mongoseal::connect(db.uri()).await.unwrap();
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
