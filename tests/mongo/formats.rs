//! Records of a newer build: they are refused, and stay as they are.

use std::fmt::Debug;

use mongodb::bson::{DateTime, Document, doc};
use mongoseal::{Error, EventKind, Lease, LeaseId, Metadata, Mongoseal, Released, store::Store};
use tokio::sync::mpsc;

use crate::{Bench, inspect::key, noting_client, secs};

/// Demands the error that says to upgrade.
fn is_told_to_upgrade<T: Debug>(call: &str, of: &str, result: Result<T, Error>) {
    let error = result.expect_err(call);
    assert!(matches!(error, Error::Invalid { .. }), "{call}: {error:?}");
    for says in [format!("{of:?}"), "format version 2".into(), "version 1".into(), "upgrade mongoseal".into()] {
        assert!(error.to_string().contains(&says), "{call}: {error}");
    }
}

/// A lease whose record a newer build has written since, and that record.
async fn of_a_newer_build(bench: &Bench, of: &str) -> (Lease, Document) {
    let lease = bench.seal().acquire(of).ttl(secs(60)).group("g").without_refresh().await.unwrap();
    // Without a field of today, so that the version is looked at first.
    let newer = doc! { "$set": { "v": 2, "leases": {} }, "$unset": { "history": "" } };
    bench.records().update_one(doc! { "_id": of }, newer).await.unwrap();
    (lease, bench.record(of).await.unwrap())
}

#[tokio::test]
async fn each_call_for_a_key_whose_record_is_of_a_newer_format_says_to_upgrade_and_the_record_stays() {
    let bench = Bench::new("newer").await;
    let seal = bench.seal();
    let (lease, record) = of_a_newer_build(&bench, "k").await;
    let told = |call: &'static str, result: Result<(), Error>| is_told_to_upgrade(call, "k", result);
    told("acquire", seal.acquire("k").await.map(drop));
    told("an acquire that waits", seal.acquire("k").wait(secs(30)).await.map(drop));
    told("an acquire of several keys", seal.acquire_all(["j", "k"]).await.map(drop));
    told("campaign", seal.campaign("k").await.map(drop));
    told("refresh", lease.refresh().await);
    told("extend", lease.extend(secs(600)).await);
    told("describe", lease.describe(Metadata::default()).await);
    told("verify", lease.verify().await);
    let committed = lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await;
    told("transaction", committed);
    told("inspect", seal.inspect("k").await.map(drop));
    told("revoke", seal.revoke("k").await.map(drop));
    told("watch", seal.watch("k").await.map(drop));
    told("observe", seal.observe("k").await.map(drop));
    let (tell, mut states) = mpsc::channel(1);
    told("follow", bench.store(secs(24 * 3600)).follow(&key("k"), tell).await);
    assert!(states.recv().await.is_none());
    assert!(lease.is_valid(), "the time that was confirmed is this lease's");
    assert_eq!(bench.record("k").await.unwrap(), record);

    let (given, _) = of_a_newer_build(&bench, "given").await;
    is_told_to_upgrade("transfer", "given", given.transfer(LeaseId::random()).await);
    let (returned, _) = of_a_newer_build(&bench, "returned").await;
    is_told_to_upgrade("release", "returned", returned.release().await);

    // What is done to many keys leaves it out.
    assert!(seal.leases().with_expired().await.unwrap().next().await.is_none());
    assert!(seal.refresh_group("g", secs(60)).await.unwrap().is_empty());
    assert!(seal.release_group("g").await.unwrap().is_empty());
    let over = doc! { "$set": { "holders.0.expires_at": DateTime::from_millis(1) } };
    bench.records().update_many(doc! {}, over).await.unwrap();
    bench.records().drop_indexes().await.unwrap();
    let idle = doc! { "_id": "idle", "v": 2, "version": 7_i64, "holders": [], "queue": [], "handover": "",
    "history": [], "last_seen": DateTime::from_millis(1), "expires_at": DateTime::from_millis(1) };
    bench.records().insert_one(idle).await.unwrap();
    assert_eq!(seal.purge().await.unwrap(), mongoseal::Purged::default());
    for of in ["k", "given", "returned", "idle"] {
        assert_eq!(bench.record(of).await.unwrap().get_i32("v").unwrap(), 2, "{of}");
    }
}

#[tokio::test]
async fn a_watch_ends_with_the_error_when_a_newer_build_writes_the_record() {
    let bench = Bench::new("newer_watch").await;
    let seal = bench.seal();
    let lease = seal.acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(events.next().await.unwrap().unwrap().kind, EventKind::Holds { .. }));
    bench.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "v": 2 } }).await.unwrap();
    let ended = tokio::time::timeout(secs(20), events.next()).await.unwrap().unwrap();
    is_told_to_upgrade("watch", "k", ended);
    assert!(events.next().await.is_none());
    lease.orphan();
}

#[tokio::test]
async fn a_duplicate_key_of_two_first_inserts_is_retried_after_one_read() {
    let bench = Bench::new("first").await;
    let (client, sent) = noting_client(&bench.set.uri_with("appName=first")).await;
    let seal = Mongoseal::new(&client.database("mongoseal_first"));
    seal.prepare().await.unwrap();
    sent.lock().unwrap().clear();
    let taken =
        doc! { "errorCode": 11000, "errorExtraInfo": { "keyPattern": { "_id": 1 }, "keyValue": { "_id": "k" } } };
    let taken = bench.set.fail_command("first", &["findAndModify"], taken, 1).await;
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    assert_eq!(taken.off().await, 1);
    assert_eq!(sent.lock().unwrap().drain(..).collect::<Vec<_>>(), ["findAndModify", "find", "findAndModify"]);
    assert_eq!(lease.release().await.unwrap(), Released::Ours);
}
