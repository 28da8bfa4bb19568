//! What goes over the wire, counted.

use mongodb::bson::{Bson, doc};
use mongoseal::{Error, Mongoseal};

use crate::{Bench, eventually, noting_client, secs};

#[tokio::test]
async fn an_acquire_is_one_find_and_modify_and_a_release_is_one_command() {
    let bench = Bench::new("counted").await;
    let (client, sent) = noting_client(&bench.set.uri()).await;
    let seal = Mongoseal::new(&client.database("mongoseal_counted"));
    seal.prepare().await.unwrap();
    let names = || -> Vec<String> { sent.lock().unwrap().drain(..).collect() };
    assert_eq!(names(), ["hello", "replSetGetConfig", "createIndexes"], "the checks, once");

    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    assert_eq!(names(), ["findAndModify"]);
    lease.refresh().await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    lease.release().await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
}

#[tokio::test]
async fn a_refused_attempt_leaves_no_oplog_entry() {
    let bench = Bench::new("oplog").await;
    let seal = bench.seal();
    let entries = || async { bench.set.oplog_entries("mongoseal_oplog.mongoseal", &Bson::from("k")).await.len() };
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    assert_eq!(entries().await, 1);
    for _ in 0..20 {
        assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    }
    assert_eq!(entries().await, 1);
    lease.refresh().await.unwrap();
    assert_eq!(entries().await, 2, "a refresh writes");
    lease.release().await.unwrap();
    assert_eq!(entries().await, 3);
}

#[tokio::test]
async fn the_release_of_a_lease_whose_record_is_gone_writes_nothing() {
    let bench = Bench::new("absent").await;
    let seal = bench.seal();
    let lease = seal.acquire("k").ttl(secs(1)).without_refresh().await.unwrap();
    bench.records().delete_one(doc! { "_id": "k" }).await.unwrap();
    drop(lease);
    seal.shutdown().await;
    eventually(secs(2), "no record came back", || async { bench.record("k").await.is_none() }).await;
}
