//! Purging expired leases on a real server.

use std::{collections::HashSet, mem::forget, time::Instant};

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal, ReleaseOutcome};
use tokio::task::JoinSet;

use crate::{TestDatabase, millis, noting_client, secs};

#[tokio::test]
async fn a_purge_removes_exactly_what_has_expired_and_leaves_the_records() {
    let db = TestDatabase::new("mongoseal_purged").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::new(&client.database("mongoseal_purged"));
    seal.prepare().await.unwrap();
    // By another handle: one that holds a lease listens and refreshes.
    let live = db.seal().acquire("live").ttl(secs(5)).await.unwrap();
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
        purged.extend(seal.purge().await.unwrap());
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
