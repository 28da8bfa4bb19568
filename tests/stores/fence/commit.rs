//! Transactions whose commit or abort the server refuses.

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::TestDatabase;

use crate::{Orders, add, add_one, millis, secs, shop};

const FOREVER: u32 = 1_000_000;

fn overload() -> Document {
    doc! { "errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"] }
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
    let db = shop("commit").await;
    let (ours, _) = db.by_client("appName=commit").await;
    let mut n = 0;
    for (what, data, times) in [
        ("an overload that passes", overload(), 3),
        ("an overload without labels", doc! { "errorCode": 450, "errorLabels": [] }, 3),
        ("a refusal", doc! { "errorCode": 13, "errorLabels": [] }, 1),
        ("an overload that lasts", overload(), FOREVER),
    ] {
        let patience = if times == FOREVER { secs(3) } else { secs(60) };
        let seal = ours.build(Mongoseal::builder().operation_timeout(patience));
        let lease = seal.acquire("k").ttl(secs(60)).await.unwrap();
        let point = db.set.fail_command("commit", &["commitTransaction"], data, times).await;
        let (done, _) = add(&ours, &lease).await;
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
        assert_eq!(db.n().await, n, "{what}");
        lease.refresh().await.unwrap();
        tokio::time::sleep(millis(100)).await;
        lease.verify().await.unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_that_is_refused_for_a_while_is_retried_and_leaves_nothing_locked() {
    let db = shop("abort").await;
    let (ours, _) = db.by_client("appName=abort").await;
    let seal = ours.build(Mongoseal::builder().operation_timeout(secs(60)));
    let lease = seal.acquire("k").await.unwrap();
    let orders = ours.orders();
    let point = db.set.fail_command("abort", &["abortTransaction"], overload(), 4).await;
    let sold_out = async |session: &mut mongodb::ClientSession| -> mongoseal::Result<()> {
        add_one(&orders, session).await?;
        Err(Error::invalid("sold out"))
    };
    let done = lease.transaction(sold_out).await;
    assert!(matches!(&done, Err(Error::Invalid { message, .. }) if message == "sold out"), "{done:?}");
    unlocked(&db, "an abort that is refused").await;
    assert_eq!(point.off().await, 4);
    assert_eq!(db.n().await, 0);
    lease.release().await.unwrap();
}
