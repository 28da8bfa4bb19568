//! The commands that fenced writes send.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{Acknowledgment, CollectionOptions, ReadPreference, SelectionCriteria, WriteConcern},
};
use mongoseal::{Error, Fence, fence::Change};
use mongoseal_test_support::command_name;

use crate::{Orders, TestDatabase, add_one, one, refused_by, secs, shop, token, write_in_each_way};

#[tokio::test]
async fn only_a_write_that_found_nothing_asks_why_and_only_an_upsert_that_met_a_document_is_sent_again() {
    let db = TestDatabase::new("mongoseal_fence_counted").await;
    db.put(doc! { "_id": 1, "fence": 5_i64 }).await;
    let (noted, sent) = db.by_client("appName=counted").await;
    noted.by(5).update_one(doc! { "_id": 2 }, doc! {}).await.unwrap();
    assert_eq!(sent.take_names(), ["update", "find"]);
    for is_upsert in [false, true] {
        refused_by(noted.by(4).update_one(one(), doc! {}).upsert(is_upsert).await, 5);
        assert_eq!(sent.take_names(), ["update", "find"], "an upsert: {is_upsert}");
    }
    let small = doc! { "collMod": "orders", "validator": { "n": { "$lt": 10 } } };
    db.database.run_command(small).await.unwrap();
    let refused = noted.by(5).update_one(doc! { "_id": 3 }, doc! { "$set": { "n": 10 } }).upsert(true).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(sent.take_names(), ["update"]);
}

#[tokio::test]
async fn a_write_is_one_command_confirmed_by_a_majority_and_its_journal_whatever_the_client_says() {
    let db = shop("enforced").await;
    let weak = "w=1&journal=false&readConcernLevel=linearizable&readPreference=secondary";
    let (noted, sent) = db.by_client(weak).await;
    let options = CollectionOptions::builder()
        .write_concern(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Secondary { options: None }))
        .build();
    let orders = noted.database.collection_with_options::<Document>("orders", options);
    let by = orders.fenced(token(5));
    write_in_each_way(&by, async |write, answer| {
        answer.unwrap_or_else(|error| panic!("{write}: {error:?}"));
        let commands = sent.take();
        let [command] = commands.as_slice() else { panic!("{write}: {commands:?}") };
        let concern = command.get_document("writeConcern").unwrap();
        assert_eq!((concern.get_str("w"), concern.get_bool("j")), (Ok("majority"), Ok(true)), "{write}");
        assert!(concern.contains_key("wtimeout"), "{write}");
    })
    .await;

    by.update_one(doc! { "_id": 2 }, doc! {}).await.unwrap();
    let look = sent.take().pop().unwrap();
    assert_eq!(look.get_document("readConcern").unwrap().get_str("level").unwrap(), "local");
    assert_eq!(look.get_document("projection").unwrap(), &doc! { "_id": 0, "fence": 1 }, "the token alone");
    assert!(look.contains_key("maxTimeMS"));

    let lease = noted.seal().acquire("k").await.unwrap();
    sent.take();
    lease.transaction(async |session| add_one(&orders, session).await).await.unwrap();
    let commands = sent.take();
    let names: Vec<_> = commands.iter().filter_map(command_name).collect();
    assert_eq!(names, ["update", "findAndModify", "commitTransaction"], "the record last");
    assert_eq!(commands[0].get_document("readConcern").unwrap().get_str("level").unwrap(), "snapshot");
    let concern = commands[2].get_document("writeConcern").unwrap();
    assert_eq!((concern.get_str("w"), concern.get_bool("j")), (Ok("majority"), Ok(true)));
}

/// The next refresh of a schedule would conflict with the record again, so it has to be as late as possible.
#[tokio::test]
async fn a_transaction_that_met_a_refresh_refreshes_the_lease_before_it_runs_again() {
    let db = shop("refreshed").await;
    let (noted, sent) = db.by_client("appName=refreshed").await;
    let lease = noted.seal().acquire("k").ttl(secs(3_600)).await.unwrap();
    let (orders, mut runs) = (noted.orders(), 0);
    sent.take();
    lease
        .transaction(async |session| {
            runs += 1;
            add_one(&orders, session).await?;
            if runs == 1 { lease.refresh().await } else { Ok(()) }
        })
        .await
        .unwrap();
    let mut sent = sent.take();
    sent.retain(|command| ["update", "findAndModify"].iter().any(|name| command.contains_key(name)));
    let told: Vec<_> = sent.iter().map(|command| (command_name(command), command.contains_key("autocommit"))).collect();
    let [update, check] = ["update", "findAndModify"].map(|name| (Some(name), true));
    let refresh = (Some("findAndModify"), false);
    assert_eq!(told, [update, refresh, check, refresh, update, check]);
}

/// The server refuses a time limit above 2^31 - 1 milliseconds, which is 24.8 days.
#[tokio::test]
async fn an_operation_timeout_of_any_length_is_one_that_the_server_takes() {
    let db = TestDatabase::new("mongoseal_fence_long_timeout").await;
    let (noted, sent) = db.by_client("appName=long_timeout").await;
    db.put(doc! { "_id": 1, "fence": 7_i64 }).await;
    for timeout in [secs(30 * 24 * 3_600), Duration::MAX] {
        let by = noted.by(5).operation_timeout(timeout);
        refused_by(by.update_one(one(), doc! {}).await, 7);
        refused_by(by.update_one(one(), doc! {}).upsert(true).await, 7);
        refused_by(by.bulk_write([Change::update_one(one(), doc! {})]).await, 7);
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
    let mut write = orders.fenced(token(1)).delete_one(doc! {}).into_future();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = write.as_mut().poll(&mut context) else { panic!("it is refused") };
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}
