//! Slow queries of a service take the connections of their client. Leases on a client of their own outlive them.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
};
use mongoseal::Mongoseal;
use mongoseal_test_support::ReplicaSet;
use tokio::task::JoinSet;

use crate::{
    connect,
    locked::{acquire_all, lost},
    secs,
};

const TTL: Duration = secs(5);
const LEASES: usize = 50;
const QUERIES: usize = 40;
const QUERY: Duration = secs(3);

/// On a shared client, the queries take all connections.
pub(super) async fn leases_on_a_client_of_their_own_outlive_slow_queries() {
    let set = ReplicaSet::builder().start().await;
    let client = Client::with_uri_str(set.uri()).await.unwrap();
    let database = client.database("service");
    let own = connect(Mongoseal::builder().database("service"), set.uri()).await;
    let shared = Mongoseal::on_shared_client(&database);
    let leases = acquire_all(&own, "own", LEASES, TTL).await;
    let on_shared = acquire_all(&shared, "shared", LEASES, TTL).await;
    let (own_leader, leader_on_shared) =
        (own.campaign("own").ttl(TTL).await.unwrap(), shared.campaign("shared").ttl(TTL).await.unwrap());

    let orders = database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let slow = format!("sleep({}) || true", QUERY.as_millis());
    let mut running = JoinSet::new();
    for _ in 0..QUERIES {
        let (orders, slow) = (orders.clone(), slow.clone());
        running.spawn(async move {
            loop {
                orders.find_one(doc! { "$where": &slow }).await.unwrap();
            }
        });
    }
    tokio::time::sleep(2 * TTL).await;
    let (gone, gone_on_shared) = (lost(&leases), lost(&on_shared));
    let (leads, leads_on_shared) = (own_leader.lease().is_valid(), leader_on_shared.lease().is_valid());
    running.abort_all();
    println!(
        "{QUERIES} queries of {QUERY:?}, ttl {TTL:?}: a client of its own lost {gone} of {LEASES} leases and leads: {leads}; that of the queries lost {gone_on_shared} and leads: {leads_on_shared}"
    );
    assert!(gone == 0 && leads, "{gone} were lost");
    // Otherwise the queries did not take the connections, and the test shows nothing.
    assert!(gone_on_shared > 0, "the shared client lost none");
    tokio::time::timeout(secs(60), own.shutdown()).await.unwrap();
}
