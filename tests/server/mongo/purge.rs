//! Purging expired leases and idle records on a real server.

use std::{collections::HashSet, mem::forget, time::Instant};

use mongodb::bson::{Bson, DateTime, doc};
use mongoseal::{
    Deadline, Error, FencingToken, Mongoseal, ReleaseOutcome,
    store::{Expired, MongoStore, Store},
};
use tokio::task::JoinSet;

use crate::{
    TestDatabase,
    inspect::{key, seen, store},
    millis, noting_client, secs,
};

#[tokio::test]
async fn a_purge_removes_exactly_what_is_over_and_an_idle_record_stays_for_the_retention() {
    let db = TestDatabase::new("mongoseal_purged").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let builder = Mongoseal::builder().retention(secs(2)).ttl(secs(2));
    let seal = builder.clone().on(&client.database("mongoseal_purged")).unwrap();
    seal.prepare().await.unwrap();
    // By another handle: one that holds a lease listens and refreshes.
    let live = db.build(builder).acquire("live").ttl(secs(2)).await.unwrap();
    // Else the server comes before us. Without an index the handle would make it again.
    let later = doc! { "name": "expires_at_1", "expireAfterSeconds": 86_400 };
    db.database.run_command(doc! { "collMod": "mongoseal", "index": later }).await.unwrap();
    let over = seal.acquire("over").ttl(millis(50)).without_refresh().await.unwrap();
    let token = over.token();
    forget(over);
    let idle = seal.acquire("idle").ttl(millis(50)).without_refresh().await.unwrap();
    let last = idle.token();
    idle.release().await.unwrap();
    tokio::time::sleep(millis(100)).await;

    sent.lock().unwrap().clear();
    let purged = seal.purge().await.unwrap();
    let names: Vec<_> = sent.lock().unwrap().drain(..).collect();
    assert_eq!(names, ["aggregate", "findAndModify"], "one command for what is over");
    let [gone] = purged.leases.as_slice() else { panic!("{purged:?}") };
    assert_eq!((gone.key.as_str(), gone.holder.token, gone.holder.is_expired()), ("over", token, true));
    assert!(purged.records.is_empty());
    assert!(db.record("idle").await.is_some(), "the version protects the tokens");

    tokio::time::sleep(millis(2_500)).await;
    let mut purged = seal.purge().await.unwrap();
    purged.records.sort();
    assert_eq!((purged.leases, purged.records), (vec![], vec![key("idle"), key("over")]));
    assert_eq!((db.record("idle").await, db.record("over").await), (None, None));
    live.verify().await.unwrap();
    assert!(seal.acquire("idle").await.unwrap().token() > last);
}

#[tokio::test]
async fn a_record_is_deleted_only_idle_and_at_the_version_that_was_seen() {
    let db = TestDatabase::new("mongoseal_forgotten").await;
    let (store, long) = (store(&db, secs(1)), store(&db, secs(3600)));
    let idle = doc! {
        "_id": "k", "v": 1, "version": 7_i64, "holders": [], "queue": [], "handover": "", "history": [],
        "last_seen": DateTime::from_millis(1), "expires_at": DateTime::from_millis(1),
    };
    db.records().insert_one(&idle).await.unwrap();
    let version = FencingToken::new(7).unwrap();
    let backlog = store.list_expired(None, 10, Deadline::after(store.clock(), secs(5))).await.unwrap();
    assert_eq!(backlog.expired, [Expired::Idle { key: key("k"), version }]);
    assert!(
        store
            .list_expired(Some("k".into()), 10, Deadline::after(store.clock(), secs(5)))
            .await
            .unwrap()
            .expired
            .is_empty(),
        "that was the last"
    );

    let kept = |store: MongoStore, version| async move {
        !store.delete_idle(&key("k"), version, Deadline::after(store.clock(), secs(5))).await.unwrap()
    };
    assert!(kept(store.clone(), FencingToken::new(6).unwrap()).await);
    for (field, value) in [
        ("expires_at", Bson::DateTime(DateTime::now())),
        ("holders", vec![Bson::Document(doc! { "expires_at": DateTime::from_millis(1) })].into()),
        ("queue", vec![Bson::Document(doc! { "expires_at": DateTime::from_millis(1) })].into()),
        ("queue", Bson::Null),
        ("handover", Bson::Null),
        ("history", vec![1].into()),
        ("v", 2.into()),
        ("v", 1_i64.into()),
    ] {
        let mut other = idle.clone();
        other.insert(field, value);
        db.records().replace_one(doc! { "_id": "k" }, &other).await.unwrap();
        assert!(kept(store.clone(), version).await, "{field}");
    }
    db.records().replace_one(doc! { "_id": "k" }, &idle).await.unwrap();
    let now = seen(&store, "k").await.1;
    let recent = DateTime::from_millis(now.millis() - 1_800_000);
    db.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "expires_at": recent } }).await.unwrap();
    assert!(kept(long, version).await, "younger than the retention");
    assert!(!kept(store.clone(), version).await);
    assert!(kept(store, version).await, "there is nothing any more");
    assert_eq!(db.record("k").await, None);
}

/// Acquires, refreshes and releases until told to stop, and demands that nothing is taken from it.
async fn live(seal: Mongoseal, of: String, until: Instant) -> usize {
    let mut rounds = 0;
    while Instant::now() < until {
        let lease = seal.acquire(of.as_str()).ttl(secs(3)).without_refresh().await.unwrap();
        for _ in 0..3 {
            lease.refresh().await.unwrap();
        }
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
        rounds += 1;
    }
    rounds
}

/// Acquires and forgets until told to stop.
async fn forgetful(seal: Mongoseal, of: String, until: Instant) -> usize {
    let mut forgotten = 0;
    while Instant::now() < until {
        if let Ok(lease) = seal.acquire(of.as_str()).ttl(millis(30)).without_refresh().await {
            forget(lease);
            forgotten += 1;
        }
        tokio::time::sleep(millis(fastrand::u64(10..60))).await;
    }
    forgotten
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_never_touches_a_live_lease() {
    let db = TestDatabase::new("mongoseal_purge_race").await;
    let until = Instant::now() + secs(4);
    let (mut holders, mut forgetting) = (JoinSet::new(), JoinSet::new());
    for number in 0..4 {
        holders.spawn(live(db.seal(), format!("live-{number}"), until));
        forgetting.spawn(forgetful(db.seal(), format!("short-{number}"), until));
    }
    let seal = db.seal();
    let mut purged = Vec::new();
    while Instant::now() < until {
        purged.extend(seal.purge().await.unwrap().leases);
    }
    let rounds: usize = holders.join_all().await.into_iter().sum();
    let forgotten: usize = forgetting.join_all().await.into_iter().sum();
    println!("{rounds} live leases, {forgotten} forgotten, {} of them purged", purged.len());
    assert!(rounds > 20 && purged.len() > 20, "{rounds} {}", purged.len());
    assert!(purged.iter().all(|lease| lease.holder.is_expired()));
    let told: HashSet<_> = purged.iter().map(|lease| (lease.key.to_string(), lease.holder.token)).collect();
    assert_eq!(told.len(), purged.len(), "each once");
    assert!(told.iter().all(|(key, _)| key.starts_with("short-")), "{told:?}");
}

#[tokio::test]
async fn a_purge_that_meets_a_network_error_says_so() {
    let db = TestDatabase::new("mongoseal_purge_broken").await;
    let client = mongodb::Client::with_uri_str(db.set.uri_with("appName=purge_broken")).await.unwrap();
    let seal = Mongoseal::new(&client.database("mongoseal_purge_broken"));
    forget(seal.acquire("k").ttl(millis(20)).without_refresh().await.unwrap());
    tokio::time::sleep(millis(50)).await;
    let broken = db.set.fail_command("purge_broken", &["findAndModify"], doc! { "closeConnection": true }, 1).await;
    assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })));
    assert_eq!(broken.off().await, 1);
    assert_eq!(seal.purge().await.unwrap().leases.len(), 1);
    // The search changes nothing and is made again.
    let broken = db.set.fail_command("purge_broken", &["aggregate"], doc! { "closeConnection": true }, 1).await;
    seal.purge().await.unwrap();
    assert_eq!(broken.off().await, 1);
}
