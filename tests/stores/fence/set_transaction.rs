//! Transactions that commit only while all leases of a set hold.

use std::sync::Arc;

use mongodb::bson::doc;
use mongoseal::{Error, LeaseSet, LossCause, Mongoseal};

use crate::{Orders, TestDatabase, add_one, plus, secs, shop};

const KEYS: [&str; 3] = ["a", "b", "c"];

async fn three(db: &TestDatabase) -> LeaseSet {
    db.seal().acquire_all(KEYS).without_refresh().await.unwrap()
}

/// Adds one to the order, after something else was done in the work. Says how often it ran.
async fn add(db: &TestDatabase, set: &LeaseSet, meanwhile: impl AsyncFn(u32)) -> mongoseal::Result<u32> {
    let (orders, mut runs) = (db.orders(), 0);
    set.transaction(async |session| {
        runs += 1;
        add_one(&orders, session).await?;
        meanwhile(runs).await;
        Ok(runs)
    })
    .await
}

/// It is spawned, and its work returns an error of another kind.
#[tokio::test]
async fn it_commits_while_all_leases_hold_and_writes_the_record_of_each() {
    let db = shop("set_commits").await;
    let set = Arc::new(three(&db).await);
    let refreshes = async || {
        let mut refreshes = Vec::new();
        for key in KEYS {
            let record = db.record(key).await.unwrap();
            let holder = record.get_array("holders").unwrap()[0].as_document().unwrap();
            refreshes.push(holder.get_i64("refreshes").unwrap());
        }
        refreshes
    };
    let before = refreshes().await;
    let (orders, spawned) = (db.orders(), Arc::clone(&set));
    let task = tokio::spawn(async move {
        let work = async move |session: &mut mongodb::ClientSession| -> anyhow::Result<u64> {
            Ok(orders.update_many(doc! {}, plus()).session(session).await?.modified_count)
        };
        spawned.transaction(work).await
    });
    assert_eq!(task.await.unwrap().unwrap(), 1);
    assert_eq!(db.n().await, 1);
    assert!(refreshes().await.into_iter().eq(before.into_iter().map(|before| before + 1)));
    for key in KEYS {
        set.lease(key).unwrap().verify().await.unwrap();
    }
}

#[tokio::test]
async fn if_any_lease_of_the_set_is_lost_nothing_is_committed_and_the_error_names_its_key() {
    let db = shop("set_lost").await;
    for key in KEYS {
        let set = three(&db).await;
        db.seal().revoke(key).by("alice").await.unwrap();
        let done = add(&db, &set, async |_| ()).await;
        let revoked = |cause: &LossCause| matches!(cause, LossCause::Revoked { by, .. } if by == "alice");
        assert!(
            matches!(&done, Err(Error::Lost { key: of, cause, .. }) if of.as_str() == key && revoked(cause)),
            "{done:?}"
        );
        assert_eq!(db.n().await, 0);
        assert!(!set.is_valid());
        set.release().await.unwrap();
    }
}

/// Each transaction writes both records, whatever the order in which its keys were named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_sets_that_share_their_keys_all_commit() {
    const EACH: i32 = 4;
    let db = TestDatabase::new("mongoseal_fence_set_shared").await;
    db.put(doc! { "_id": 0 }).await;
    let patient = db.build(Mongoseal::builder().operation_timeout(secs(120)));
    let one = async |id: i32, keys: [&str; 2]| {
        let set = patient.acquire_all(keys).shared().ttl(secs(300)).await.unwrap();
        let orders = db.orders();
        for _ in 0..EACH {
            set.transaction(async |session| -> mongoseal::Result<()> {
                orders.update_one(doc! { "_id": id }, plus()).upsert(true).session(session).await?;
                Ok(())
            })
            .await
            .unwrap();
        }
        set.release().await.unwrap();
        assert_eq!(db.order(id).await.get_i32("n").unwrap(), EACH);
    };
    tokio::join!(one(1, ["x", "y"]), one(2, ["y", "x"]), one(3, ["x", "y"]), one(4, ["y", "x"]));
}

#[tokio::test]
async fn a_set_whose_leases_are_refreshed_meanwhile_commits_in_the_next_run() {
    let db = shop("set_refreshed").await;
    let set = three(&db).await;
    for (key, n) in KEYS.into_iter().zip(1..) {
        let refresh_once = async |run| {
            if run == 1 {
                set.lease(key).unwrap().refresh().await.unwrap();
            }
        };
        assert_eq!(add(&db, &set, refresh_once).await.unwrap(), 2, "{key}");
        assert_eq!(db.n().await, n);
    }
    assert!(set.is_valid());
}
