//! The commands that fenced writes send.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{Acknowledgment, CollectionOptions, ReadPreference, SelectionCriteria, WriteConcern},
};
use mongoseal::{Error, Fence, Mongoseal, fence::Change};
use mongoseal_test_support::{command_name, noting_client};

use crate::{Orders, TestDatabase, refused_by, secs, token};

#[tokio::test]
async fn a_write_is_one_command_and_only_one_that_found_nothing_asks_why() {
    let db = TestDatabase::new("mongoseal_fence_counted").await;
    let (orders, sent) = db.noted_orders().await;
    let by = orders.fenced(token(5));
    let one = || doc! { "_id": 1 };
    by.update_one(one(), doc! {}).upsert(true).await.unwrap();
    by.update_one(one(), doc! { "$set": { "n": 1 } }).await.unwrap();
    by.replace_one(one(), doc! { "n": 2 }).await.unwrap();
    by.find_one_and_update(one(), doc! { "$set": { "n": 3 } }).await.unwrap();
    by.delete_one(one()).await.unwrap();
    by.insert_one(one()).await.unwrap();
    assert_eq!(sent.take_names(), ["update", "update", "update", "findAndModify", "delete", "insert"]);

    by.update_one(doc! { "_id": 2 }, doc! {}).await.unwrap();
    assert_eq!(sent.take_names(), ["update", "find"]);
    refused_by(orders.fenced(token(4)).update_one(one(), doc! {}).await, 5);
    assert_eq!(sent.take_names(), ["update", "find"]);
    refused_by(orders.fenced(token(4)).update_one(one(), doc! {}).upsert(true).await, 5);
    assert_eq!(sent.take_names(), ["update", "find"]);
    // The fence sends an upsert again only if it met a document.
    let small = doc! { "collMod": "orders", "validator": { "n": { "$lt": 10 } } };
    db.database.run_command(small).await.unwrap();
    let refused = by.update_one(doc! { "_id": 3 }, doc! { "$set": { "n": 10 } }).upsert(true).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(sent.take_names(), ["update"]);
}

#[tokio::test]
async fn a_write_is_confirmed_by_a_majority_and_its_journal_whatever_the_client_says() {
    let db = TestDatabase::new("mongoseal_fence_enforced").await;
    let weak = db.set.uri_with("w=1&journal=false&readConcernLevel=linearizable&readPreference=secondary");
    let (client, sent) = noting_client(&weak).await;
    let options = CollectionOptions::builder()
        .write_concern(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Secondary { options: None }))
        .build();
    let database = client.database(db.database.name());
    let orders = database.collection_with_options::<Document>("orders", options);
    let by = orders.fenced(token(5));
    let one = || doc! { "_id": 1 };
    by.insert_one(one()).await.unwrap();
    by.update_one(one(), doc! { "$set": { "n": 1 } }).await.unwrap();
    by.replace_one(one(), doc! {}).await.unwrap();
    by.find_one_and_update(one(), doc! {}).await.unwrap();
    by.bulk_write([
        Change::update_one(one(), doc! {}),
        Change::insert_one(doc! { "_id": 2 }),
        Change::delete_one(doc! { "_id": 2 }),
    ])
    .await
    .unwrap();
    by.delete_one(one()).await.unwrap();
    let writes = sent.take();
    assert_eq!(writes.len(), 8);
    for write in &writes {
        let concern = write.get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w").unwrap(), "majority", "{write}");
        assert!(concern.get_bool("j").unwrap(), "{write}");
        assert!(concern.contains_key("wtimeout"), "{write}");
    }

    by.update_one(one(), doc! {}).await.unwrap();
    let look = sent.take().pop().unwrap();
    assert_eq!(look.get_document("readConcern").unwrap().get_str("level").unwrap(), "local");
    assert_eq!(look.get_document("projection").unwrap(), &doc! { "_id": 0, "fence": 1 }, "the token alone");
    assert!(look.contains_key("maxTimeMS"));

    let lease = Mongoseal::on_shared_client(&database).acquire("k").await.unwrap();
    sent.take();
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            orders.insert_one(one()).session(session).await?;
            Ok(())
        })
        .await
        .unwrap();
    let commands = sent.take();
    let names: Vec<_> = commands.iter().filter_map(|command| command.keys().next()).collect();
    assert_eq!(names, ["insert", "findAndModify", "commitTransaction"], "the record last");
    assert_eq!(commands[0].get_document("readConcern").unwrap().get_str("level").unwrap(), "snapshot");
    let concern = commands[2].get_document("writeConcern").unwrap();
    assert_eq!((concern.get_str("w"), concern.get_bool("j")), (Ok("majority"), Ok(true)));
}

/// The next refresh of a schedule would conflict with the record again, so it has to be as late as possible.
#[tokio::test]
async fn a_transaction_that_met_a_refresh_refreshes_the_lease_before_it_runs_again() {
    let db = TestDatabase::new("mongoseal_fence_refreshed").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let database = client.database(db.database.name());
    let orders = database.collection::<Document>("orders");
    let lease = Mongoseal::on_shared_client(&database).acquire("k").ttl(secs(3_600)).await.unwrap();
    sent.take();
    let mut runs = 0;
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs += 1;
            orders.insert_one(doc! { "_id": 1 }).session(&mut *session).await?;
            if runs == 1 {
                lease.refresh().await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    let mut sent = sent.take();
    sent.retain(|command| ["insert", "findAndModify"].iter().any(|name| command.contains_key(name)));
    let told: Vec<_> = sent.iter().map(|command| (command_name(command), command.contains_key("autocommit"))).collect();
    let [insert, check] = ["insert", "findAndModify"].map(|name| (Some(name), true));
    let refresh = (Some("findAndModify"), false);
    assert_eq!(told, [insert, refresh, check, refresh, insert, check]);
}

/// The server refuses a time limit above 2^31 - 1 milliseconds, which is 24.8 days.
#[tokio::test]
async fn an_operation_timeout_of_any_length_is_one_that_the_server_takes() {
    let db = TestDatabase::new("mongoseal_fence_long_timeout").await;
    let (orders, sent) = db.noted_orders().await;
    for timeout in [secs(30 * 24 * 3_600), Duration::MAX] {
        db.put(doc! { "_id": 1, "fence": 7_i64 }).await;
        let by = orders.fenced(token(5)).operation_timeout(timeout);
        refused_by(by.update_one(doc! { "_id": 1 }, doc! {}).await, 7);
        refused_by(by.update_one(doc! { "_id": 1 }, doc! {}).upsert(true).await, 7);
        refused_by(by.bulk_write([Change::update_one(doc! { "_id": 1 }, doc! {})]).await, 7);
        by.update_one(doc! { "_id": 2 }, doc! {}).await.unwrap();
        let limits = |command: &Document| {
            command.get("maxTimeMS").and_then(|limit| limit.as_i64().or(limit.as_i32().map(i64::from)))
        };
        let limits: Vec<_> = sent.take().iter().filter_map(limits).collect();
        assert_eq!(limits, [i64::from(i32::MAX); 5], "the bulk write and the four reads that ask why");
    }
}

#[test]
fn outside_of_a_runtime_a_write_is_refused_and_does_not_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async { Client::with_uri_str("mongodb://127.0.0.1:1").await.unwrap() });
    let orders = client.database("d").collection::<Document>("orders");
    let write = orders.fenced(token(1)).delete_one(doc! {}).into_future();
    let mut write = std::pin::pin!(write);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = write.as_mut().poll(&mut context) else { panic!("it is refused") };
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}
