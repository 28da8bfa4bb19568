//! A transaction and a takeover of its key race: at most one succeeds.

use std::sync::Arc;

use mongodb::{
    bson::{Document, doc},
    options::{ReadConcern, ReadPreference, SelectionCriteria},
};
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{ReplicaSet, by_length};
use tokio::sync::Barrier;

use crate::{Orders, TestDatabase, eventually, millis, secs};

/// Lets transactions race with takeovers. The documents they write are not what they meet in: the next
/// holder only looks.
///
/// They race until each may have come first often enough.
async fn race(db: &TestDatabase, by_expiry: bool) {
    let orders = db.orders();
    orders.insert_one(doc! { "_id": -1 }).await.unwrap();
    // In how many rounds the transaction committed and the next holder saw it, and in how many it did not commit.
    let (mut before, mut never) = (0, 0);
    let enough = by_length(5, 25);
    for round in 0.. {
        if before >= enough && never >= enough {
            break;
        }
        assert!(round < 2_000, "both are met: {before} and {never}");
        let key = format!("race/{round}");
        let (first, second) = (db.seal(), db.seal());
        second.prepare().await.unwrap();
        let lease = first.acquire(key.as_str()).ttl(secs(60)).without_refresh().await.unwrap();
        if by_expiry {
            // A server's clock that is ahead of the holder's: its time is over in a moment.
            let soon = vec![doc! { "$set": { "holders": { "$map": {
                "input": "$holders", "in": { "$mergeObjects": ["$$this", { "expires_at": { "$add": ["$$NOW", 5 + round * 7 % 40] } }] },
            } } } }];
            db.records().update_one(doc! { "_id": &key }, soon).await.unwrap();
        }
        let start = Arc::new(Barrier::new(2));
        let pause = |most: u64| millis(u64::try_from(round).unwrap() * 7 % most);
        let takeover = {
            let (start, orders, key) = (Arc::clone(&start), orders.clone(), key.clone());
            let wait = pause(9);
            tokio::spawn(async move {
                start.wait().await;
                tokio::time::sleep(wait).await;
                let next = taken_over(&second, &key, by_expiry).await;
                let seen = orders
                    .find_one(doc! { "_id": round })
                    .read_concern(ReadConcern::linearizable())
                    .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                    .await
                    .unwrap();
                drop(next);
                seen.is_some()
            })
        };
        start.wait().await;
        let work = pause(11);
        let done = lease
            .transaction(async |session| -> mongoseal::Result<()> {
                orders.insert_one(doc! { "_id": round }).session(session).await?;
                tokio::time::sleep(work).await;
                Ok(())
            })
            .await;
        let seen = takeover.await.unwrap();
        let there = orders.find_one(doc! { "_id": round }).await.unwrap().is_some();
        match &done {
            Ok(()) => assert!(there),
            Err(Error::Lost { .. }) => assert!(!there),
            Err(error) => panic!("{error:?}"),
        }
        match (there, seen) {
            (true, true) => before += 1,
            (false, false) => never += 1,
            (true, false) => panic!("it was committed after the next holder had begun"),
            (false, true) => panic!("what was aborted was seen"),
        }
    }
}

async fn taken_over(seal: &Mongoseal, key: &str, by_expiry: bool) -> mongoseal::Lease {
    if !by_expiry {
        seal.revoke(key).await.unwrap();
    }
    loop {
        match seal.acquire(key).ttl(secs(60)).without_refresh().await {
            Ok(lease) => return lease,
            Err(Error::Held { .. }) => tokio::time::sleep(millis(1)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_revocation_and_a_transaction_that_race_never_both() {
    let db = TestDatabase::new("mongoseal_fence_race_revoked").await;
    race(&db, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_expiry_and_a_transaction_that_race_never_both() {
    let db = TestDatabase::new("mongoseal_fence_race_expired").await;
    race(&db, true).await;
}

/// Nothing ends a transaction whose process died but its age.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_before_its_commit_keeps_the_key_until_mongodb_ends_the_transaction() {
    let set = ReplicaSet::builder().parameter("transactionLifetimeLimitSeconds", "4").start().await;
    let database = set.client().await.database("mongoseal_fence_dead");
    let seal = Mongoseal::builder().operation_timeout(secs(1)).on_shared_client(&database).unwrap();
    let lease = seal.acquire("k").ttl(millis(500)).without_refresh().await.unwrap();
    // As the transaction leaves the record when its process dies between its two last commands.
    let other = set.client().await;
    let mut session = other.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let records = other.database("mongoseal_fence_dead").collection::<Document>("mongoseal");
    let touch = doc! { "$inc": { "holders.0.refreshes": 1_i64 } };
    records.update_one(doc! { "_id": "k" }, touch).session(&mut session).await.unwrap();
    std::mem::forget(session);
    lease.cancelled().await;
    // The holder counts a little less than the server.
    let kept = loop {
        match seal.acquire("k").await {
            Err(Error::Held { .. }) => {}
            kept => break kept,
        }
    };
    assert!(matches!(kept, Err(Error::Unavailable { .. })), "{kept:?}");
    eventually(secs(120), "the key is free", async || seal.acquire("k").await.is_ok()).await;
}
