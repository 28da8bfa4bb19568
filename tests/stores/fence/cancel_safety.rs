//! Fenced futures that are dropped half-way behave as documented.

use mongodb::bson::doc;
use mongoseal::fence::Change;
use tokio::{sync::Notify, time::timeout};

use crate::{Orders, TestDatabase, add_one, eventually, millis, one, secs, shop};

/// Drops the call when it has come this far.
async fn drop_half_way<F: IntoFuture>(call: F, so_far: impl Future<Output = ()>) {
    tokio::select! {
        () = so_far => {}
        _ = call.into_future() => panic!("it was to be dropped half-way"),
    }
}

#[tokio::test]
async fn a_fenced_write_dropped_half_way_is_made_all_the_same_and_harms_no_connection() {
    let db = TestDatabase::new("mongoseal_fence_dropped").await;
    // The pool has one connection.
    let by = db.by_client("appName=dropped&maxPoolSize=1").await.0.by(5);
    let commands = ["update", "insert", "delete", "findAndModify"];
    for id in 0..4 {
        let slow = doc! { "blockConnection": true, "blockTimeMS": 1_000 };
        let slow = db.set.fail_command("dropped", &commands, slow, 1).await;
        let one = doc! { "_id": id };
        match id {
            0 => drop_half_way(by.update_one(one, doc! {}).upsert(true), slow.hit(1)).await,
            1 => drop_half_way(by.find_one_and_update(one, doc! {}).upsert(true), slow.hit(1)).await,
            2 => drop_half_way(by.insert_one(one), slow.hit(1)).await,
            _ => drop_half_way(by.bulk_write([Change::insert_one(one)]), slow.hit(1)).await,
        }
        eventually(secs(60), "it is made", || async {
            db.orders().find_one(doc! { "_id": id }).await.unwrap().is_some()
        })
        .await;
        slow.off().await;
        assert_eq!(by.update_one(doc! { "_id": id }, doc! {}).await.unwrap().matched_count, 1, "it is whole");
    }
}

#[tokio::test]
async fn a_fenced_write_dropped_before_it_was_polled_sends_nothing() {
    let db = TestDatabase::new("mongoseal_fence_unpolled").await;
    let (noted, sent) = db.by_client("appName=unpolled").await;
    drop(noted.by(5).insert_one(one()).into_future());
    drop(noted.by(5).bulk_write([Change::insert_one(one())]));
    tokio::time::sleep(millis(100)).await;
    assert_eq!(sent.take_names(), [""; 0]);
}

#[tokio::test]
async fn a_transaction_dropped_in_its_work_is_aborted() {
    let db = shop("dropped_work").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let (orders, wrote) = (db.orders(), Notify::new());
    let transaction = lease.transaction(async |session| -> mongoseal::Result<()> {
        add_one(&orders, session).await?;
        wrote.notify_one();
        std::future::pending().await
    });
    drop_half_way(transaction, wrote.notified()).await;
    // Whoever writes the document waits for the transaction's end: that comes at once.
    let update = orders.update_one(one(), doc! { "$inc": { "n": 10 } }).into_future();
    timeout(secs(30), update).await.expect("nothing is in the way").unwrap();
    assert_eq!(db.n().await, 10);
    lease.refresh().await.unwrap();
}

#[tokio::test]
async fn a_transaction_dropped_in_its_commit_may_be_made_all_the_same() {
    let db = shop("dropped_commit").await;
    let (ours, _) = db.by_client("appName=dropped_commit").await;
    let lease = ours.seal().acquire("k").await.unwrap();
    let orders = ours.orders();
    let slow = doc! { "blockConnection": true, "blockTimeMS": 1_000 };
    let slow = db.set.fail_command("dropped_commit", &["commitTransaction"], slow, 1).await;
    drop_half_way(lease.transaction(async |session| add_one(&orders, session).await), slow.hit(1)).await;
    eventually(secs(60), "it is committed", || async { db.n().await == 1 }).await;
    slow.off().await;
    lease.refresh().await.unwrap();
}
