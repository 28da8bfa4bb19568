//! Transactions whose commit or abort the server refuses.

use mongodb::{
    Client,
    bson::{Document, doc},
};
use mongoseal::{Error, Mongoseal};

use crate::{Orders, TestDatabase, millis, secs};

const FOREVER: u32 = 1_000_000;

/// A client of the database with this name, which has the driver's default settings.
async fn named(db: &TestDatabase, app: &str) -> mongodb::Database {
    let client = Client::with_uri_str(db.set.uri_with(&format!("appName={app}"))).await.unwrap();
    client.database(db.database.name())
}

/// Demands that no transaction has locked the order, nor the record of the lease: MongoDB would end it after a minute only.
async fn unlocked(db: &TestDatabase, what: &str) {
    for collection in ["orders", "mongoseal"] {
        let update = doc! { "q": {}, "u": { "$currentDate": { "last_seen": true } }, "multi": true };
        let command = doc! { "update": collection, "updates": [update], "maxTimeMS": 30_000 };
        let written: Document = db.database.run_command(command).await.unwrap();
        assert!(!written.contains_key("writeErrors"), "{what}, {collection}: {written}");
    }
}

/// The driver aborts no transaction whose commit it has sent, and returns no error if the server refuses an abort.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_refused_for_a_while_is_retried_and_one_that_is_not_made_leaves_nothing_locked() {
    let db = TestDatabase::new("mongoseal_fence_commit").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let database = named(&db, "commit").await;
    let overload = || doc! { "errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"] };
    let mut n = 0;
    for (what, data, times) in [
        ("an overload that passes", overload(), 3),
        ("an overload without labels", doc! { "errorCode": 450, "errorLabels": [] }, 3),
        ("a refusal", doc! { "errorCode": 13, "errorLabels": [] }, 1),
        ("an overload that lasts", overload(), FOREVER),
    ] {
        let patience = if times == FOREVER { secs(3) } else { secs(60) };
        let seal = Mongoseal::builder().operation_timeout(patience).on_shared_client(&database).unwrap();
        let lease = seal.acquire("k").ttl(secs(60)).await.unwrap();
        let point = db.set.fail_command("commit", &["commitTransaction"], data, times).await;
        let orders = database.collection::<Document>("orders");
        let done = lease
            .transaction(async |session| -> mongoseal::Result<()> {
                orders.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).session(session).await?;
                Ok(())
            })
            .await;
        unlocked(&db, what).await;
        let hits = point.off().await;
        match times {
            3 => {
                done.unwrap();
                n += 1;
            }
            1 => assert!(matches!(done, Err(Error::Invalid { .. })), "{what}: {done:?}"),
            _ => {
                let Err(Error::Unavailable { message, .. }) = done else { panic!("{what}: {done:?}") };
                assert!(message.contains("may have been committed or not"), "{message}");
                // Of the engine's delays, and the driver sends each two times more.
                assert!((2..60).contains(&hits), "{hits} commits");
            }
        }
        assert_eq!(db.order(1).await.get_i32("n").unwrap(), n, "{what}");
        lease.refresh().await.unwrap();
        tokio::time::sleep(millis(100)).await;
        lease.verify().await.unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_that_is_refused_for_a_while_is_retried_and_leaves_nothing_locked() {
    let db = TestDatabase::new("mongoseal_fence_abort").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let database = named(&db, "abort").await;
    let seal = Mongoseal::builder().operation_timeout(secs(60)).on_shared_client(&database).unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let orders = database.collection::<Document>("orders");
    let overload = doc! { "errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"] };
    let point = db.set.fail_command("abort", &["abortTransaction"], overload, 4).await;
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            orders.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).session(session).await?;
            Err(Error::invalid("sold out"))
        })
        .await;
    assert!(matches!(&done, Err(Error::Invalid { message, .. }) if message == "sold out"), "{done:?}");
    unlocked(&db, "an abort that is refused").await;
    assert_eq!(point.off().await, 4);
    assert_eq!(db.order(1).await.get_i32("n").unwrap(), 0);
    lease.release().await.unwrap();
}
