//! Many handles on one client.

use std::env;

use mongodb::{
    Client,
    bson::{Document, doc},
};
use mongoseal::{Error, Lease, LeaseState, Mongoseal};
use tokio::task::JoinSet;

use crate::{Bench, secs};

/// How many change streams clients of this name have open.
async fn streams(client: &Client, name: &str) -> usize {
    let admin = client.database("admin");
    let operations = admin.aggregate([
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": {
            "appName": name, "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true },
        } },
    ]);
    let mut operations = operations.with_type::<Document>().await.unwrap();
    let mut count = 0;
    while operations.advance().await.unwrap() {
        count += 1;
    }
    count
}

/// `MONGOSEAL_HOLD` says for how many seconds they hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_siblings_on_ten_connections_lose_no_lease_and_have_one_change_stream() {
    let hold = secs(env::var("MONGOSEAL_HOLD").map_or(12, |seconds| seconds.parse().unwrap()));
    let bench = Bench::new("siblings").await;
    let client = Client::with_uri_str(bench.set.uri_with("appName=siblings&maxPoolSize=10")).await.unwrap();
    let first = Mongoseal::new(&client.database("mongoseal_siblings"));
    let siblings: Vec<Mongoseal> = (0..100).map(|_| Mongoseal::builder().sibling_of(&first).unwrap()).collect();
    let mut leases = Vec::new();
    for (number, seal) in siblings.iter().enumerate() {
        leases.push(seal.acquire(format!("k{number}")).ttl(secs(5)).await.unwrap());
    }
    // Each waits for the next one's key.
    let mut waiting = JoinSet::new();
    for (number, seal) in siblings.iter().enumerate() {
        let key = format!("k{}", (number + 1) % siblings.len());
        waiting.spawn(seal.acquire(key).ttl(secs(5)).wait(secs(3600)).into_future());
    }
    let states: Vec<_> = leases.iter().map(Lease::watch_state).collect();
    tokio::time::sleep(hold).await;
    let lost = states.iter().filter(|states| states.get() != LeaseState::Held).count();
    assert_eq!(lost, 0, "leases of 100 are not held");
    assert!(waiting.try_join_next().is_none(), "all wait");
    assert_eq!(streams(&bench.client, "siblings").await, 1);
    for lease in leases {
        lease.release().await.unwrap();
    }
    while let Some(waited) = waiting.join_next().await {
        waited.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn the_client_of_siblings_is_closed_by_the_last_that_is_shut_down() {
    let bench = Bench::new("last_sibling").await;
    let builder = Mongoseal::builder().database("mongoseal_last_sibling");
    let seal = builder.connect(bench.set.uri()).await.unwrap();
    let sibling = Mongoseal::builder().sibling_of(&seal).unwrap();
    seal.shutdown().await;
    seal.shutdown().await;
    sibling.acquire("k").await.unwrap().release().await.unwrap();
    sibling.shutdown().await;
    assert!(matches!(sibling.acquire("k").await, Err(Error::Invalid { .. })));
}
