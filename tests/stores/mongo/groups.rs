//! Leases of a group on a real server.

use std::time::Instant;

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Lease, Mongoseal};
use mongoseal_test_support::ReplicaSet;
use tokio::task::JoinSet;

use crate::{TestDatabase, by_length, millis, noting_client, secs};

fn many() -> usize {
    by_length(100, 1_000)
}

/// So many leases of a group, on keys that look alike.
async fn take_many(seal: &Mongoseal) -> Vec<Lease> {
    let mut leases = Vec::new();
    for chunk in (0..many()).collect::<Vec<_>>().chunks(50) {
        let asked: Vec<_> = chunk
            .iter()
            .map(|number| {
                tokio::spawn(seal.acquire(format!("volumes/{number:04}")).group("job").ttl(secs(60)).into_future())
            })
            .collect();
        for lease in asked {
            leases.push(lease.await.unwrap().unwrap());
        }
    }
    leases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_many_leases_is_refreshed_and_released_in_two_commands_each() {
    let db = TestDatabase::new("mongoseal_groups").await;
    let holder = db.seal();
    let (many, leases) = (many(), take_many(&holder).await);
    let _beside = holder.acquire("volumes/beside").await.unwrap();
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_groups"));
    seal.prepare().await.unwrap();
    let names = || sent.take_names();
    names();

    let began = Instant::now();
    let refreshed = seal.refresh_group("job", secs(600)).await.unwrap().refreshed;
    println!("{many} leases refreshed in {:?}", began.elapsed());
    assert_eq!(refreshed.len(), many);
    assert_eq!(names(), ["aggregate", "update"]);
    let (first, now) = (&refreshed[0], seal.inspect(&refreshed[0].key).await.unwrap().unwrap());
    assert_eq!(first.holder.remaining, Some(secs(600) + first.holder.grace));
    assert!(now.holders[0].last_seen >= first.holder.last_seen, "it was refreshed after it was listed");
    assert!(now.holders[0].remaining.unwrap() + now.read_at.since(first.read_at) >= secs(600) + first.holder.grace);
    let mut left = seal.leases().remaining_at_least(secs(500)).await.unwrap();
    let mut count = 0;
    while let Some(lease) = left.next().await {
        lease.unwrap();
        count += 1;
    }
    assert_eq!(count, many);

    names();
    let began = Instant::now();
    let released = seal.release_group("job").await.unwrap();
    println!("{many} leases released in {:?}", began.elapsed());
    assert_eq!(released.len(), many);
    assert!(released.is_sorted_by_key(|lease| std::cmp::Reverse(lease.holder.token)), "the newest first");
    assert_eq!(names(), ["aggregate", "update"]);
    for lease in leases {
        assert!(matches!(lease.verify().await, Err(Error::Lost { .. })));
    }
    let next = seal.leases().await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(next.key.as_str(), "volumes/beside");
    holder.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_holders_refresh_all_the_time_is_refreshed() {
    let db = TestDatabase::new("mongoseal_busy_group").await;
    let holder = db.seal();
    let elsewhere = Mongoseal::builder().database("mongoseal_busy_group").connect(db.set.uri()).await.unwrap();
    let mut leases = Vec::new();
    for number in 0..20 {
        let acquire = holder.acquire(format!("k{number}")).group("g").ttl(secs(60));
        leases.push(acquire.refresh_every(millis(200)).await.unwrap());
    }
    for round in 1..=4_u64 {
        let ttl = secs(100 * round);
        let seal = if round % 2 == 0 { &holder } else { &elsewhere };
        assert_eq!(seal.refresh_group("g", ttl).await.unwrap().refreshed.len(), 20);
        let mut all = elsewhere.leases().group("g").remaining_at_least(secs(100 * round - 10)).await.unwrap();
        let mut count = 0;
        while all.next().await.is_some() {
            count += 1;
        }
        assert_eq!(count, 20, "round {round}");
    }
    assert!(leases.iter().all(Lease::is_valid));
    elsewhere.shutdown().await;
    holder.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_refreshed_though_more_requests_for_its_keys_come_than_the_client_has_connections() {
    let db = TestDatabase::new("mongoseal_wanted_group").await;
    let client = mongodb::Client::with_uri_str(db.set.uri_with("maxPoolSize=10")).await.unwrap();
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_wanted_group"));
    let mut asking = JoinSet::new();
    for number in 0..30 {
        let lease = seal.acquire(format!("k{number}")).group("g").ttl(secs(60)).without_refresh().await.unwrap();
        asking.spawn(async move {
            loop {
                lease.refresh().await.unwrap();
            }
        });
    }
    for _ in 0..by_length(3, 20) {
        assert_eq!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.len(), 30);
    }
    asking.shutdown().await;
}

#[tokio::test]
async fn a_group_with_a_record_that_was_written_over_says_which() {
    let db = TestDatabase::new("mongoseal_broken_group").await;
    let seal = db.seal();
    for key in ["a", "b", "c"] {
        seal.acquire(key).shared().group("g").without_refresh().await.unwrap().orphan();
    }
    // A second holder, of somebody else's making.
    let broken = doc! { "$push": { "holders": { "lease": 1 } } };
    db.records().update_one(doc! { "_id": "b" }, broken).await.unwrap();
    let before = db.record("b").await;
    let refused = seal.refresh_group("g", secs(600)).await;
    assert!(matches!(refused, Err(Error::Corrupt { key, .. }) if key.as_str() == "b"));
    assert!(matches!(seal.release_group("g").await, Err(Error::Corrupt { key, .. }) if key.as_str() == "b"));
    assert_eq!(db.record("b").await, before, "it was left as it was");
    let mut left = seal.leases().group("g").await.unwrap();
    assert_eq!(left.next().await.unwrap().unwrap().key.as_str(), "b");
    assert!(left.next().await.is_none(), "the others were released");
}

#[tokio::test]
async fn groups_and_tokens_of_other_keys_are_not_mixed_up() {
    let db = TestDatabase::new("mongoseal_alike_group").await;
    let seal = db.seal();
    let one = seal.acquire("$a.b").shared().group("$$NOW").await.unwrap();
    // The same token under another key and another group, as concurrent grants can have it.
    let mut twin = db.record("$a.b").await.unwrap();
    twin.insert("_id", "twin");
    let holder = twin.get_array_mut("holders").unwrap()[0].as_document_mut().unwrap();
    holder.insert("group", "other");
    db.records().insert_one(&twin).await.unwrap();
    let two = seal.acquire("twin").shared().group("$$NOW").await.unwrap();
    assert_eq!(seal.release_group("$$NOW").await.unwrap().len(), 2);
    assert!(!one.is_valid() && !two.is_valid());
    let twin = seal.inspect("twin").await.unwrap().unwrap();
    assert!(twin.holders.len() == 1 && twin.holders[0].token == one.token(), "{twin:?}");
}

#[tokio::test]
async fn a_set_of_keys_is_released_by_one_command() {
    let db = TestDatabase::new("mongoseal_set_commands").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_set_commands"));
    let all = seal.acquire_all(["a", "b", "c", "d"]).await.unwrap();
    sent.take();
    assert!(all.release().await.unwrap().iter().all(|(_, how)| *how == mongoseal::ReleaseOutcome::Released));
    assert_eq!(sent.take_names(), ["update"]);
    let again = seal.acquire_all(["a", "b", "c", "d"]).await.unwrap();
    db.seal().revoke("c").await.unwrap();
    let released = again.release().await.unwrap();
    for (key, how) in released {
        assert_eq!(how == mongoseal::ReleaseOutcome::Released, key.as_str() != "c", "{key}: {how:?}");
    }
}

#[tokio::test]
async fn an_index_of_groups_is_used_where_there_is_one() {
    let db = TestDatabase::new("mongoseal_indexed_group").await;
    let seal = db.seal();
    for number in 0..20 {
        let acquire = seal.acquire(format!("k{number}")).without_refresh();
        let acquire = if number < 2 { acquire.group("g") } else { acquire };
        acquire.await.unwrap().orphan();
    }
    let partial = doc! { "partialFilterExpression": { "holders.group": { "$gt": "" } } };
    let mut index = doc! { "key": { "holders.group": 1 }, "name": "groups" };
    index.extend(partial);
    db.database.run_command(doc! { "createIndexes": "mongoseal", "indexes": [index] }).await.unwrap();
    db.database.run_command(doc! { "profile": 2 }).await.unwrap();
    assert_eq!(seal.release_group("g").await.unwrap().len(), 2);
    db.database.run_command(doc! { "profile": 0 }).await.unwrap();
    let asked = db.database.collection::<Document>("system.profile");
    let listed = asked.find_one(doc! { "command.aggregate": "mongoseal" }).await.unwrap().unwrap();
    assert_eq!(listed.get_str("planSummary").unwrap(), "IXSCAN { holders.group: 1 }");
    assert_eq!(listed.get_i32("docsExamined").unwrap(), 2);
}

#[tokio::test]
async fn a_group_is_refreshed_whatever_concerns_the_client_has() {
    let db = TestDatabase::new("mongoseal_concerned_group").await;
    let lease = db.seal().acquire("k").group("g").grace(secs(5)).without_refresh().await.unwrap();
    let uri = db.set.uri_with("readConcernLevel=linearizable&w=1&readPreference=secondary");
    let seal = Mongoseal::builder().database("mongoseal_concerned_group").connect(uri).await.unwrap();
    assert_eq!(seal.refresh_group("g", secs(600)).await.unwrap().refreshed.len(), 1);
    let left = seal.inspect("k").await.unwrap().unwrap().holders[0].remaining.unwrap();
    assert!(left > secs(600), "and keeps its grace: {left:?}");
    lease.orphan();
}

#[tokio::test]
async fn a_group_is_refreshed_and_released_but_for_a_record_that_a_transaction_has_locked() {
    let db = TestDatabase::new("mongoseal_locked_group").await;
    let builder = Mongoseal::builder().database("mongoseal_locked_group").operation_timeout(secs(3));
    let seal = builder.connect(db.set.uri()).await.unwrap();
    for key in ["a", "b", "c"] {
        seal.acquire(key).group("g").ttl(secs(60)).without_refresh().await.unwrap().orphan();
    }
    let mut session = db.database.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let beside = doc! { "$set": { "beside": true } };
    db.records().update_one(doc! { "_id": "b" }, beside).session(&mut session).await.unwrap();
    let names_the_locked_key = |error: Error| {
        let is_unavailable = matches!(error, Error::Unavailable { .. });
        assert!(is_unavailable && error.to_string().contains("that on \"b\""), "{error:?}");
    };
    names_the_locked_key(seal.refresh_group("g", secs(600)).await.unwrap_err());
    let lasting = async || {
        let long = seal.leases().group("g").remaining_at_least(secs(500)).await.unwrap().collect().await.unwrap();
        long.into_iter().map(|lease| lease.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(lasting().await, ["a", "c"]);
    names_the_locked_key(seal.release_group("g").await.unwrap_err());
    assert_eq!(lasting().await, [""; 0]);
    session.abort_transaction().await.unwrap();
    let left = seal.refresh_group("g", secs(600)).await.unwrap().refreshed;
    assert_eq!(left.iter().map(|lease| lease.key.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn a_refresh_of_a_group_that_is_stuck_does_not_hold_up_the_handle() {
    // Of a set of its own, because a fail point is one for all who use a server.
    let set = ReplicaSet::start(1).await;
    let uri = set.uri_with("appName=stuck");
    let seal =
        Mongoseal::builder().database("mongoseal_stuck_group").operation_timeout(secs(2)).connect(uri).await.unwrap();
    let lease = seal.acquire("k").group("g").without_refresh().await.unwrap();
    let stuck =
        set.fail_command("stuck", &["update"], doc! { "blockConnection": true, "blockTimeMS": 20_000 }, 1).await;
    assert!(matches!(seal.refresh_group("g", secs(600)).await, Err(Error::Unavailable { .. })));
    // The update of the group is stuck for 20 seconds.
    tokio::time::timeout(secs(15), lease.refresh()).await.unwrap().unwrap();
    drop(stuck);
}

#[tokio::test]
async fn what_is_done_to_many_leases_is_confirmed_by_a_majority_or_not_believed() {
    let db = TestDatabase::new("mongoseal_confirmed_group").await;
    let server = db.set;
    let (client, sent) = noting_client(&server.uri_with("appName=confirmed&w=1")).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_confirmed_group"));
    let unconfirmed = || doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    let both = seal.acquire_all(["a", "b"]).group("g").await.unwrap();
    let failing = server.fail_command("confirmed", &["update"], unconfirmed(), 1).await;
    sent.take();
    assert_eq!(both.release().await.unwrap().len(), 2);
    assert!(sent.count("findAndModify") == 2, "each by itself, too");
    failing.off().await;

    let lease = seal.acquire("c").group("g").without_refresh().await.unwrap();
    let failing = server.fail_command("confirmed", &["update"], unconfirmed(), 1).await;
    sent.take();
    assert_eq!(seal.refresh_group("g", secs(600)).await.unwrap().refreshed.len(), 1);
    assert!(lease.remaining() > secs(590));
    assert!(sent.count("update") == 2);
    failing.off().await;
    lease.orphan();
}
