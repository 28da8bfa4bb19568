//! Purging expired leases on a real server.

use std::mem::forget;

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};

use crate::{TestDatabase, millis, noting_client, secs};

#[tokio::test]
async fn a_purge_removes_exactly_what_has_expired_and_leaves_the_records() {
    let db = TestDatabase::new("mongoseal_purged").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_purged"));
    seal.prepare().await.unwrap();
    // By another handle: one that holds a lease listens and refreshes.
    let live = db.seal().acquire("live").ttl(secs(60)).await.unwrap();
    let over = seal.acquire("over").ttl(millis(500)).without_refresh().await.unwrap();
    let token = over.token();
    forget(over);
    let idle = seal.acquire("idle").ttl(millis(500)).without_refresh().await.unwrap();
    let last = idle.token();
    idle.release().await.unwrap();
    tokio::time::sleep(millis(600)).await;

    sent.take();
    let purged = seal.purge().await.unwrap();
    let names = sent.take_names();
    assert_eq!(names, ["aggregate", "findAndModify"], "one command for what has expired");
    let [gone] = purged.as_slice() else { panic!("{purged:?}") };
    assert_eq!((gone.key.as_str(), gone.holder.token, gone.holder.is_expired()), ("over", token, true));
    assert!(db.record("idle").await.is_some(), "the version protects the tokens");
    live.verify().await.unwrap();
    assert!(seal.acquire("idle").await.unwrap().token() > last);
}

#[tokio::test]
async fn a_purge_that_meets_a_network_error_says_so() {
    let db = TestDatabase::new("mongoseal_purge_broken").await;
    let client = mongodb::Client::with_uri_str(db.set.uri_with("appName=purge_broken")).await.unwrap();
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_purge_broken"));
    forget(seal.acquire("k").ttl(millis(500)).without_refresh().await.unwrap());
    tokio::time::sleep(millis(600)).await;
    let broken = db.set.fail_command("purge_broken", &["findAndModify"], doc! { "closeConnection": true }, 1).await;
    assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })));
    assert_eq!(broken.off().await, 1);
    assert_eq!(seal.purge().await.unwrap().len(), 1);
    // The search changes nothing and is made again.
    let broken = db.set.fail_command("purge_broken", &["aggregate"], doc! { "closeConnection": true }, 1).await;
    seal.purge().await.unwrap();
    assert_eq!(broken.off().await, 1);
}
