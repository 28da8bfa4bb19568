//! Leases whose holder lets other holders in, on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Fence, Sharing};

use crate::{TestDatabase, bad_input::put, secs};

#[tokio::test]
async fn a_stored_limit_of_1_is_exclusive_and_can_be_downgraded() {
    let db = TestDatabase::new("mongoseal_downgrade_one").await;
    let writer = db.seal().acquire("k").await.unwrap();
    put(&db, "k", "holders.0.limit", Some(&1.into())).await;
    assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    writer.refresh().await.unwrap();
    writer.downgrade(Sharing::UpTo(2)).await.unwrap();
    let _sharer = db.seal().acquire("k").shared().await.unwrap();
}

/// The record of a lease is written by its transaction and by its downgrade, so one of the two comes first.
#[tokio::test]
async fn a_transaction_under_a_lease_that_is_downgraded_meanwhile_starts_over_and_commits() {
    let db = TestDatabase::new("mongoseal_downgrade_transaction").await;
    let orders = db.database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();
    let seal = db.seal();
    let lease = seal.acquire("k").ttl(secs(60)).await.unwrap();
    let mut runs = 0;
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs += 1;
            let added = doc! { "$inc": { "n": 1 } };
            orders.update_one(doc! { "_id": 1 }, added).session(session).await?;
            if runs == 1 {
                lease.downgrade(Sharing::UpTo(2)).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs, 2);
    assert_eq!(orders.find_one(doc! {}).await.unwrap().unwrap().get_i32("n"), Ok(1));
}

#[tokio::test]
async fn a_fence_refuses_a_downgraded_lease_once_a_later_sharer_has_written() {
    let db = TestDatabase::new("mongoseal_downgrade_fence").await;
    let orders = db.database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let seal = db.seal();
    let lease = seal.acquire("k").await.unwrap();
    let write = async |lease: &mongoseal::Lease| {
        orders.fenced(lease).update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).await
    };
    write(&lease).await.unwrap();
    lease.downgrade(Sharing::UpTo(2)).await.unwrap();
    write(&lease).await.unwrap();
    let sharer = seal.acquire("k").shared().await.unwrap();
    write(&lease).await.unwrap();
    write(&sharer).await.unwrap();
    let error = write(&lease).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { newer, .. } if newer == sharer.token()), "{error}");
    assert!(lease.is_valid());
}
