//! Records of two versions of the library in one collection: a newer format is refused, and unknown fields are kept.

use std::fmt::Debug;

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongoseal::{
    Error, Lease, LeaseId, Metadata, ReleaseOutcome, Sharing,
    record::{Acquire, KeyFilter, Outcome, Release, Request, Revoke, WaitSpec},
    store::{Deadline, MongoStore, Store},
};
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};

use crate::{TestDatabase, bad_input::put, noting_seal, secs, terms};

/// Demands the error that says to upgrade.
fn is_told_to_upgrade<T: Debug>(call: &str, of: &str, result: Result<T, Error>) {
    let error = result.expect_err(call);
    assert!(matches!(error, Error::Invalid { .. }), "{call}: {error:?}");
    for says in [format!("{of:?}"), "format version 2".into(), "version 1".into(), "upgrade mongoseal".into()] {
        assert!(error.to_string().contains(&says), "{call}: {error}");
    }
}

/// A lease whose record a newer build has written since, and that record.
async fn of_a_newer_build(db: &TestDatabase, of: &str, newer: &Document) -> (Lease, Document) {
    let lease = db.seal().acquire(of).ttl(secs(60)).group("g").without_refresh().await.unwrap();
    db.records().update_one(doc! { "_id": of }, newer.clone()).await.unwrap();
    (lease, db.record(of).await.unwrap())
}

#[tokio::test]
async fn each_call_for_a_key_whose_record_is_of_a_newer_format_says_to_upgrade_and_the_record_stays() {
    each_call_says_to_upgrade("mongoseal_newer", doc! { "$set": { "v": 2 } }).await;
    // The handle looks at the version before it misses a field of today.
    let newer = doc! { "$set": { "v": 2, "leases": {} }, "$unset": { "history": "" } };
    each_call_says_to_upgrade("mongoseal_newer_other_fields", newer).await;
}

async fn each_call_says_to_upgrade(database: &str, newer: Document) {
    let db = TestDatabase::new(database).await;
    let seal = db.seal();
    let (lease, record) = of_a_newer_build(&db, "k", &newer).await;
    let told = |call: &'static str, result: Result<(), Error>| is_told_to_upgrade(call, "k", result);
    told("acquire", seal.acquire("k").await.map(drop));
    told("an acquire that waits", seal.acquire("k").wait(secs(30)).await.map(drop));
    told("an acquire of several keys", seal.acquire_all(["j", "k"]).await.map(drop));
    told("campaign", seal.campaign("k").await.map(drop));
    told("refresh", lease.refresh().await);
    told("extend", lease.extend(secs(600)).await);
    told("describe", lease.update_metadata(Metadata::default()).await);
    told("verify", lease.verify().await);
    let committed = lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await;
    told("transaction", committed);
    told("inspect", seal.inspect("k").await.map(drop));
    told("revoke", seal.revoke("k").await.map(drop));
    told("watch", seal.watch("k").await.map(drop));
    told("observe", seal.observe("k").await.map(drop));
    let (tell, mut states) = mpsc::channel(1);
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    told("follow", store.follow(&KeyFilter::Key("k".parse().unwrap()), Vec::new(), tell).await);
    assert!(states.recv().await.is_none());
    assert!(lease.is_valid(), "the time that was confirmed is this lease's");
    assert_eq!(db.record("k").await.unwrap(), record);

    let (given, _) = of_a_newer_build(&db, "given", &newer).await;
    is_told_to_upgrade("transfer", "given", given.transfer(LeaseId::random()).await);
    let (returned, _) = of_a_newer_build(&db, "returned", &newer).await;
    is_told_to_upgrade("release", "returned", returned.release().await);
    // This handle knows the key as one that is free.
    seal.acquire("free").await.unwrap().release().await.unwrap();
    let mut events = seal.watch("free").await.unwrap();
    db.records().update_one(doc! { "_id": "free" }, newer).await.unwrap();
    let ended = timeout(secs(20), events.next()).await.unwrap().unwrap();
    is_told_to_upgrade("a watch that has begun", "free", ended);
    assert!(events.next().await.is_none());
    is_told_to_upgrade("acquire", "free", seal.acquire("free").await);

    // What is done to many keys leaves it out.
    assert!(seal.leases().with_expired().await.unwrap().next().await.is_none());
    assert!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.is_empty());
    assert!(seal.release_group("g").await.unwrap().is_empty());
    let over = doc! { "$set": { "holders.0.expires_at": DateTime::from_millis(1) } };
    db.records().update_many(doc! {}, over).await.unwrap();
    assert_eq!(seal.purge().await.unwrap(), []);
    for of in ["k", "given", "returned", "free"] {
        assert_eq!(db.record(of).await.unwrap().get_i32("v").unwrap(), 2, "{of}");
    }
}

#[tokio::test]
async fn a_duplicate_key_of_two_first_inserts_is_retried_after_one_read() {
    let db = TestDatabase::new("mongoseal_first_inserts").await;
    let (seal, sent) = noting_seal(&db, "appName=first").await;
    sent.take();
    let taken =
        doc! { "errorCode": 11000, "errorExtraInfo": { "keyPattern": { "_id": 1 }, "keyValue": { "_id": "k" } } };
    // The first command is that of the fast path.
    let taken = db.set.fail_command("first", &["findAndModify"], taken, 2).await;
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    assert_eq!(taken.off().await, 2);
    let sent = sent.take_names();
    assert_eq!(sent, ["findAndModify", "findAndModify", "find", "findAndModify"]);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

/// What a later build puts into the record, into holders and into waiters.
fn later() -> Bson {
    Bson::from(
        doc! { "a": [1, { "b": "$$NOW" }], "c": ["$$ROOT", "$owner"], "d": DateTime::from_millis(1_700_000_000_000) },
    )
}

#[tokio::test]
async fn fields_of_a_later_build_stay_in_the_record_in_holders_and_in_waiters_whatever_is_done() {
    let db = TestDatabase::new("mongoseal_two_builds").await;
    let (seal, store) = (db.seal(), MongoStore::new(&db.database, "mongoseal", secs(24 * 3600)));
    let add = async |at: &str| put(&db, "k", &format!("{at}later"), Some(&later())).await;
    // The record has so many holders and waiters, and it and each of them has the field.
    let there = async |when: &str, holders: usize, waiters: usize| {
        let record = db.record("k").await.unwrap();
        assert_eq!(record.get("later"), Some(&later()), "after {when}");
        for (array, count) in [("holders", holders), ("queue", waiters)] {
            let entries = record.get_array(array).unwrap();
            assert_eq!(entries.len(), count, "after {when}: {array}");
            for entry in entries {
                assert_eq!(entry.as_document().unwrap().get("later"), Some(&later()), "after {when}: {array}");
            }
        }
    };
    let key = "k".parse().unwrap();
    let applied = async |request: &Request| {
        store.apply(&key, request.clone(), Deadline::after(store.clock(), secs(5))).await.unwrap().outcome
    };
    let wait = Some(WaitSpec { ttl: 600_000, queue_limit: 9 });
    let wait = Request::Acquire(Acquire { terms: terms(LeaseId::random(), 600_000), wait });

    let lease = seal.acquire("k").ttl(secs(600)).group("g").without_refresh().await.unwrap();
    let _beside = seal.acquire("beside").group("g").await.unwrap();
    add("").await;
    add("holders.0.").await;
    there("being put there", 1, 0).await;

    assert!(matches!(applied(&wait).await, Outcome::Queued { .. }));
    add("queue.0.").await;
    there("a waiter came", 1, 1).await;
    assert!(matches!(applied(&wait).await, Outcome::Queued { .. }));
    there("it kept its place", 1, 1).await;
    for _ in 0..2 {
        assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    }
    there("an acquire was refused", 1, 1).await;
    db.seal().resume("k", lease.id(), lease.token()).without_refresh().await.unwrap().orphan();
    there("a resume", 1, 1).await;
    lease.refresh().await.unwrap();
    there("refresh", 1, 1).await;
    let mut metadata = Metadata::default();
    metadata.insert("step", "2").unwrap();
    lease.update_metadata(metadata).await.unwrap();
    there("describe", 1, 1).await;
    assert_eq!(seal.refresh_group("g", secs(800)).await.unwrap().refreshed.len(), 2);
    there("a refresh of the group", 1, 1).await;
    lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await.unwrap();
    there("a transaction", 1, 1).await;
    assert!(matches!(applied(&Request::Prune).await, Outcome::Pruned { .. }));
    there("a purge", 1, 1).await;
    let other = LeaseId::random();
    let token = lease.transfer(other).await.unwrap();
    there("transfer", 1, 1).await;

    assert_eq!(applied(&Request::Release(Release { lease: other, token })).await, Outcome::Released);
    there("a release handed the key over", 1, 0).await;
    let upto = db.record("k").await.unwrap().get_i64("version").unwrap().try_into().unwrap();
    let revoke = Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto });
    assert!(matches!(applied(&revoke).await, Outcome::Revoked { .. }));
    there("revoke", 0, 0).await;
    add("history.0.").await;

    let last = seal.acquire("k").ttl(secs(600)).group("h").without_refresh().await.unwrap();
    add("holders.0.").await;
    there("acquire", 1, 0).await;
    assert_eq!(seal.release_group("h").await.unwrap().len(), 1);
    there("a release of the group", 0, 0).await;
    last.orphan();
    let set = seal.acquire_all(["k", "beside too"]).await.unwrap();
    set.release().await.unwrap();
    there("a set was released", 0, 0).await;
    let record = db.record("k").await.unwrap();
    assert_eq!(record.get_array("history").unwrap()[0].as_document().unwrap().get("later"), Some(&later()));
    assert_eq!(seal.inspect("k").await.unwrap().unwrap().history.len(), 2, "and it is read");
}

#[tokio::test]
async fn a_value_is_a_document_that_a_shell_shows() {
    let db = TestDatabase::new("mongoseal_value").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let content = json!({ "page": 7, "big": i64::MAX, "half": 0.5, "$set": [null, true, { "a.b": "text" }] });
    lease.put_value(&content).await.unwrap();
    let stored = db.record("k").await.unwrap();
    let value = stored.get_document("value").unwrap();
    let expected: Document =
        doc! { "$set": [Bson::Null, true, { "a.b": "text" }], "big": i64::MAX, "half": 0.5, "page": 7 };
    assert_eq!(value.get_document("content").unwrap(), &expected);
    assert_eq!((value.get_i64("token").unwrap(), stored.get_i32("v").unwrap()), (i64::from(lease.token()), 1));
}

#[tokio::test]
async fn a_stored_limit_of_1_is_exclusive_and_can_be_downgraded() {
    let db = TestDatabase::new("mongoseal_downgrade_one").await;
    let writer = db.seal().acquire("k").await.unwrap();
    put(&db, "k", "holders.0.limit", Some(&1.into())).await;
    assert!(matches!(db.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    writer.refresh().await.unwrap();
    writer.downgrade(Sharing::UpTo(2)).await.unwrap();
    let _sharer = db.seal().acquire("k").shared().await.unwrap();
}
