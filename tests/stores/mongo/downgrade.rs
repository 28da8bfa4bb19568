//! Leases whose holder lets other holders in, on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Fence, LeaseState, Mongoseal};

use crate::{TestDatabase, eventually, secs};

#[tokio::test]
async fn a_downgrade_lets_sharers_in_at_once_and_keeps_lease_token_and_expiry() {
    let db = TestDatabase::new("mongoseal_downgrade").await;
    let writer = db.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let reader = db.seal();
    let waits = tokio::spawn(reader.acquire("k").shared().wait(secs(60)).into_future());
    let queued = async || db.record("k").await.is_some_and(|record| record.get_array("queue").unwrap().len() == 1);
    eventually(secs(5), "it waits", queued).await;
    let before = db.record("k").await.unwrap();
    writer.downgrade(2).await.unwrap();
    let first = tokio::time::timeout(secs(2), waits).await.expect("it is told").unwrap().unwrap();
    assert!(first.token() > writer.token());
    let after = db.record("k").await.unwrap();
    let holder = |record: &Document| record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let (mut expected, found) = (holder(&before), holder(&after));
    for changed in ["limit", "refreshes", "last_seen"] {
        expected.insert(changed, found.get(changed).unwrap().clone());
    }
    assert_eq!(found, expected);
    assert_eq!(found.get_i32("limit"), Ok(2));
    assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })), "two hold it");
    writer.downgrade(2).await.unwrap();
    assert!(matches!(writer.downgrade(3).await, Err(Error::Invalid { .. })));
    writer.refresh().await.unwrap();
    writer.verify().await.unwrap();
    first.verify().await.unwrap();
    assert_eq!(writer.state(), LeaseState::Held);
}

#[tokio::test]
async fn a_stored_limit_of_1_is_exclusive_and_can_be_downgraded() {
    let db = TestDatabase::new("mongoseal_downgrade_one").await;
    let writer = db.seal().acquire("k").await.unwrap();
    let records = db.client.database("mongoseal_downgrade_one").collection::<Document>("mongoseal");
    let one = records.update_one(doc! { "_id": "k" }, doc! { "$set": { "holders.0.limit": 1 } }).await.unwrap();
    assert_eq!(one.modified_count, 1);
    assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    writer.refresh().await.unwrap();
    writer.downgrade(2).await.unwrap();
    let _sharer = db.seal().acquire("k").shared().await.unwrap();
}

#[tokio::test]
async fn any_number_of_sharers_is_let_in() {
    let db = TestDatabase::new("mongoseal_downgrade_all").await;
    let seal = db.seal();
    let writer = seal.acquire("k").await.unwrap();
    writer.downgrade(u32::MAX).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(seal.acquire("k").shared().await.unwrap());
    }
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    writer.downgrade(u32::MAX).await.unwrap();
}

#[tokio::test]
async fn a_downgrade_whose_reply_is_lost_or_refused_is_sent_again_and_made_once() {
    let name = "downgrade_faults";
    let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
    for fault in [
        doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        doc! { "closeConnection": true },
        doc! { "errorCode": 91 },
    ] {
        let (client, sent) = crate::noting_client(&db.set.uri_with(&format!("appName={name}"))).await;
        let seal = Mongoseal::new(&client.database(db.database.name()));
        let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
        let point = db.set.fail_command(name, &["findAndModify"], fault.clone(), 2).await;
        sent.take();
        lease.downgrade(2).await.unwrap();
        drop(point);
        // A lease that is held for a second also opens a change stream.
        let attempts = sent.count("findAndModify");
        assert_eq!(attempts, 3, "{fault}");
        let sharer = db.seal().acquire("k").shared().await.unwrap();
        assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })));
        sharer.release().await.unwrap();
        lease.release().await.unwrap();
    }
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
                lease.downgrade(2).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs, 2);
    assert_eq!(orders.find_one(doc! {}).await.unwrap().unwrap().get_i32("n"), Ok(1));
    // Beside a sharer it commits, too.
    let sharer = seal.acquire("k").shared().await.unwrap();
    for one in [&lease, &sharer] {
        one.transaction(async |session| -> mongoseal::Result<()> {
            orders.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).session(session).await?;
            Ok(())
        })
        .await
        .unwrap();
    }
    assert_eq!(orders.find_one(doc! {}).await.unwrap().unwrap().get_i32("n"), Ok(3));
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
    lease.downgrade(2).await.unwrap();
    write(&lease).await.unwrap();
    let sharer = seal.acquire("k").shared().await.unwrap();
    write(&lease).await.unwrap();
    write(&sharer).await.unwrap();
    let error = write(&lease).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { newer, .. } if newer == sharer.token()), "{error}");
    assert!(lease.is_valid());
}
