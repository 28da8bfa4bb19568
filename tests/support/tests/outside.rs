//! A set of somebody else's can be the shared one.

use std::process::Command;

use mongodb::bson::{Document, doc};
use mongoseal_test_support::{ReplicaSet, shared};

/// The test of a process whose `MONGOSEAL_TEST_URI` is set.
#[tokio::test]
#[ignore = "needs MONGOSEAL_TEST_URI; it is run by the test below"]
async fn an_outside_set_serves() {
    let set = shared(3).await;
    assert_eq!(set.uri(), std::env::var("MONGOSEAL_TEST_URI").unwrap());
    assert!(std::ptr::eq(set, shared(1).await));
    let things = set.client().await.database("test").collection::<Document>("outside");
    things.insert_one(doc! { "_id": "it" }).await.unwrap();
    assert_eq!(set.oplog_entries("test.outside", &"it".into()).await.len(), 1);
    set.kill(0).await;
}

#[tokio::test]
async fn the_shared_set_may_be_an_outside_one_that_cannot_be_hurt() {
    let set = ReplicaSet::start(1).await;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "an_outside_set_serves"])
        .env("MONGOSEAL_TEST_URI", set.uri())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(said.contains("needs a replica set whose processes it controls"), "{said}");
}

#[tokio::test]
#[should_panic(expected = "nonsense")]
async fn a_server_that_does_not_start_says_why() {
    ReplicaSet::builder().parameter("nonsense", "1").start().await;
}
