//! Sharers that become exclusive holders, on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{EndReason, Error, Fence, LeaseState};

use crate::{TestDatabase, secs};

#[tokio::test]
async fn a_sharer_that_is_alone_becomes_exclusive_and_its_new_token_passes_the_fence() {
    let db = TestDatabase::new("mongoseal_upgrade").await;
    let seal = db.seal();
    let sharer = seal.acquire("k").shared().ttl(secs(60)).await.unwrap();
    let other = db.seal().acquire("k").shared().await.unwrap();
    let orders = db.database.collection::<Document>("orders");
    let set = |n| doc! { "$set": { "n": n } };
    // A later sharer has the larger token.
    orders.fenced(&other).update_one(doc! { "_id": 1 }, set(1)).upsert(true).await.unwrap();
    assert!(matches!(orders.fenced(&sharer).update_one(doc! { "_id": 1 }, set(2)).await, Err(Error::Fenced { .. })));
    assert!(matches!(sharer.upgrade().await, Err(Error::Held { token, .. }) if token == other.token()));
    sharer.verify().await.unwrap();
    let late = other.token();
    other.release().await.unwrap();

    let holder = sharer.upgrade().await.unwrap();
    assert!(holder.token() > late);
    assert_eq!(sharer.state(), LeaseState::Ended { reason: EndReason::Transferred });
    holder.verify().await.unwrap();
    orders.fenced(&holder).update_one(doc! { "_id": 1 }, set(3)).await.unwrap();
    assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    let record = db.record("k").await.unwrap();
    let stored = record.get_array("holders").unwrap()[0].as_document().unwrap();
    assert_eq!((stored.get_i32("limit"), stored.get_i64("version")), (Ok(0), Ok(i64::from(holder.token()))));
    holder.release().await.unwrap();
    drop(db.seal().acquire("k").await.unwrap());
}
