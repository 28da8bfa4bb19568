//! Leases of a group on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Mongoseal};
use tokio::task::JoinSet;

use crate::{TestDatabase, acquire_all, by_length, noting_seal, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_many_leases_is_refreshed_and_released_in_two_commands_each() {
    let db = TestDatabase::new("mongoseal_groups").await;
    let (holder, (seal, sent)) = (db.seal(), noting_seal(&db, "appName=noting").await);
    let many = by_length(100, 1_000);
    let acquire = |number| holder.acquire(format!("volumes/{number:04}")).group("job").ttl(secs(60));
    let leases = acquire_all((0..many).map(acquire)).await;
    let _beside = holder.acquire("volumes/beside").await.unwrap();
    sent.take();
    assert_eq!(seal.refresh_group("job", secs(600)).await.unwrap().refreshed.len(), many);
    assert_eq!(sent.take_names(), ["aggregate", "update"]);
    let left = seal.leases().free_in_at_least(secs(500)).await.unwrap().collect().await.unwrap();
    assert_eq!(left.len(), many);

    sent.take();
    let released = seal.release_group("job").await.unwrap();
    assert_eq!(released.len(), many);
    assert!(released.is_sorted_by_key(|lease| std::cmp::Reverse(lease.holder.token)), "the newest first");
    assert_eq!(sent.take_names(), ["aggregate", "update"]);
    for lease in leases {
        assert!(matches!(lease.verify().await, Err(Error::Lost { .. })));
    }
    let left = seal.leases().await.unwrap().collect().await.unwrap();
    assert_eq!(left.iter().map(|lease| lease.key.as_str()).collect::<Vec<_>>(), ["volumes/beside"]);
}

/// Refreshes of its members wait at the server for the transaction. If they have all connections, its commit waits for
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_refreshed_though_more_requests_for_its_keys_come_than_the_client_has_connections() {
    let db = TestDatabase::new("mongoseal_wanted_group").await;
    let (seal, _) = noting_seal(&db, "maxPoolSize=10").await;
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
async fn an_index_of_groups_is_used_where_there_is_one() {
    let db = TestDatabase::new("mongoseal_indexed_group").await;
    let seal = db.seal();
    for number in 0..20 {
        let acquire = seal.acquire(format!("k{number}")).without_refresh();
        let acquire = if number < 2 { acquire.group("g") } else { acquire };
        acquire.await.unwrap().orphan();
    }
    let partial = doc! { "holders.group": { "$gt": "" } };
    let index = doc! { "key": { "holders.group": 1 }, "name": "groups", "partialFilterExpression": partial };
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
async fn a_group_is_refreshed_and_released_but_for_a_record_that_a_transaction_has_locked() {
    let db = TestDatabase::new("mongoseal_locked_group").await;
    let seal = Mongoseal::builder().operation_timeout(secs(3)).connect(db.uri()).await.unwrap();
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
        let long = seal.leases().group("g").free_in_at_least(secs(500)).await.unwrap().collect().await.unwrap();
        long.into_iter().map(|lease| lease.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(lasting().await, ["a", "c"]);
    names_the_locked_key(seal.release_group("g").await.unwrap_err());
    assert_eq!(lasting().await, [""; 0]);
    session.abort_transaction().await.unwrap();
    let left = seal.refresh_group("g", secs(600)).await.unwrap().refreshed;
    assert_eq!(left.iter().map(|lease| lease.key.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_of_a_group_that_the_server_does_not_answer_ends_with_the_operation_timeout() {
    let db = TestDatabase::new("mongoseal_silent_group").await;
    let builder = Mongoseal::builder().operation_timeout(secs(2));
    let seal = builder.connect(db.uri() + "&appName=silent").await.unwrap();
    let lease = seal.acquire("a").group("g").ttl(secs(600)).await.unwrap();
    let silent = doc! { "blockConnection": true, "blockTimeMS": 60_000 };
    let silenced = db.set.fail_command("silent", &["update"], silent, 1).await;
    let refreshed = tokio::time::timeout(secs(45), seal.refresh_group("g", secs(600))).await;
    assert!(matches!(refreshed.expect("it does not wait for the server"), Err(Error::Unavailable { .. })));
    silenced.hit(1).await;
    lease.refresh().await.unwrap();
}
