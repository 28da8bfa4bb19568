//! Fenced writes whose replies are lost, late, or ambiguous.

use mongodb::{
    Client, Database,
    bson::{Document, doc},
};
use mongoseal::{Error, Fence, Mongoseal};
use mongoseal_test_support::{FailPoint, ReplicaSet};

use crate::{Orders, one, plus, secs, shop, token, write_in_each_way};

fn unavailable<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        // A retry could write twice.
        Err(Error::Unavailable { message, .. }) => {
            assert!(message.contains("read before you write again") || !message.contains("retry"), "{message}");
        }
        other => panic!("it is not known, and not {other:?}"),
    }
}

#[tokio::test]
async fn a_write_whose_reply_is_lost_is_sent_again_by_the_driver_and_counted_once() {
    let db = shop("lost_reply").await;
    let by = db.by_client("appName=lost_reply").await.0.by(5);
    by.update_one(one(), plus()).await.unwrap();
    let after_execution = doc! {
        "configureFailPoint": "onPrimaryTransactionalWrite", "mode": { "times": 1 }, "data": { "closeConnection": true },
    };
    let lost = db.set.fail_point(0, after_execution).await;
    by.update_one(one(), plus()).await.unwrap();
    assert_eq!(lost.off().await, 1);
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 2, "fence": 5_i64 });
}

/// Without the driver's retries, each write is sent once.
/// A request of a lease can be sent twice. Such a write cannot.
#[tokio::test]
async fn a_write_whose_reply_is_lost_or_that_no_majority_confirmed_is_no_success_and_is_sent_once() {
    let unconfirmed = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    for (name, fault) in [("lost", doc! { "closeConnection": true }), ("unconfirmed", unconfirmed)] {
        let db = shop(name).await;
        let by = db.by_client(&format!("appName=fence_{name}&retryWrites=false")).await.0.by(5);
        let commands = ["update", "delete", "insert", "findAndModify"];
        let armed = db.set.fail_command(&format!("fence_{name}"), &commands, fault, 1_000_000).await;
        let mut writes = 0;
        write_in_each_way(&by, async |write, answer| {
            unavailable(answer.map(|()| write));
            writes += 1;
        })
        .await;
        assert_eq!(armed.off().await, writes, "{name}");
    }
}

/// A set whose server blocks a command of the client `slow` for a minute: longer than its calls may take.
async fn blocking(command: &str) -> (ReplicaSet, Database, FailPoint) {
    let set = ReplicaSet::start(1).await;
    let client = Client::with_uri_str(set.uri_with("appName=slow")).await.unwrap();
    let database = client.database("blocking");
    database.collection("orders").insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();
    let data = doc! { "blockConnection": true, "blockTimeMS": 60_000 };
    let slow = set.fail_command("slow", &[command], data, 1).await;
    (set, database, slow)
}

/// Demands that it ends while the server blocks what it has sent.
async fn while_blocked<T>(call: impl Future<Output = T>, slow: FailPoint) -> T {
    let ended = tokio::time::timeout(secs(30), call).await.expect("it does not wait for the server");
    slow.hit(1).await;
    ended
}

#[tokio::test]
async fn a_write_takes_no_longer_than_its_timeout() {
    let (_set, database, slow) = blocking("update").await;
    let by = database.collection::<Document>("orders").fenced(token(5)).operation_timeout(secs(2));
    let write = by.update_one(one(), plus()).into_future();
    unavailable(while_blocked(write, slow).await);
}

/// The server that would abort it cannot be reached.
#[tokio::test]
async fn a_transaction_does_not_wait_past_its_timeout_to_be_aborted() {
    let (_set, database, slow) = blocking("abortTransaction").await;
    let seal = Mongoseal::builder().operation_timeout(secs(2)).on_shared_client(&database).unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let orders = database.collection::<Document>("orders");
    let failed = lease.transaction(async |session| -> mongoseal::Result<()> {
        orders.find_one(doc! {}).session(session).await?;
        Err(Error::unavailable("what this work needs is away"))
    });
    unavailable(while_blocked(failed, slow).await);
}
