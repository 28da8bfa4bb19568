//! For every fenced verb: an equal or a larger token passes and is stored; a smaller token is refused and changes
//! nothing.

use mongodb::{
    bson::{Document, doc},
    options::{ReturnDocument, UpdateOptions},
};
use mongoseal::{Error, Fence, OnceOutcome, Tick};
use serde::{Deserialize, Serialize};

use crate::{Orders, TestDatabase, invalid, is_duplicate, millis, refused_by, secs, token};

fn one() -> Document {
    doc! { "_id": 1 }
}

#[tokio::test]
async fn an_update_passes_for_an_equal_and_a_larger_token_and_is_refused_for_a_smaller_one() {
    let db = TestDatabase::new("mongoseal_fence_update").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    for number in [5, 5, 8] {
        let done = db.by(number).update_one(one(), doc! { "$inc": { "n": 1 } }).await.unwrap();
        assert_eq!((done.matched_count, done.modified_count, done.upserted_id), (1, 1, None));
        assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::try_from(number).unwrap());
    }
    refused_by(db.by(7).update_one(one(), doc! { "$inc": { "n": 1 } }).await, 8);
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 3, "fence": 8_i64 });
}

#[tokio::test]
async fn a_pipeline_passes_and_is_refused_alike() {
    let db = TestDatabase::new("mongoseal_fence_pipeline").await;
    db.put(doc! { "_id": 1, "n": 1, "gone": true }).await;
    let double = || vec![doc! { "$set": { "n": { "$multiply": ["$n", 2] } } }, doc! { "$unset": "gone" }];
    db.by(5).update_one(one(), double()).await.unwrap();
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 2, "fence": 5_i64 });
    refused_by(db.by(4).update_one(one(), double()).await, 5);
    // A stage that makes a new document takes no token away.
    db.by(6).update_one(one(), vec![doc! { "$replaceWith": { "_id": 1, "m": 1 } }]).await.unwrap();
    assert_eq!(db.order(1).await, doc! { "_id": 1, "m": 1, "fence": 6_i64 });
}

#[tokio::test]
async fn a_replacement_passes_and_is_refused_alike_whatever_it_carries_in_the_field() {
    let db = TestDatabase::new("mongoseal_fence_replace").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    db.by(5).replace_one(one(), doc! { "n": 1 }).await.unwrap();
    // As it was read: with the token of before.
    let mut read = db.order(1).await;
    read.insert("n", 2);
    db.by(6).replace_one(one(), read).await.unwrap();
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 2, "fence": 6_i64 });
    refused_by(db.by(5).replace_one(one(), doc! { "n": 3, "fence": 99_i64 }).await, 6);
    assert_eq!(db.order(1).await.get_i32("n").unwrap(), 2);
}

#[tokio::test]
async fn a_document_is_found_and_updated_or_refused_alike() {
    let db = TestDatabase::new("mongoseal_fence_find_and").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let plus = || doc! { "$inc": { "n": 1 } };
    let before = db.by(5).find_one_and_update(one(), plus()).await.unwrap().unwrap();
    assert_eq!(before, doc! { "_id": 1, "n": 0 });
    let after = db.by(6).find_one_and_update(one(), plus()).return_document(ReturnDocument::After).await.unwrap();
    assert_eq!(after, Some(doc! { "_id": 1, "n": 2, "fence": 6_i64 }));
    refused_by(db.by(5).find_one_and_update(one(), plus()).await, 6);
    assert_eq!(db.order(1).await.get_i32("n").unwrap(), 2);
    assert_eq!(db.by(5).find_one_and_update(doc! { "_id": 2 }, plus()).await.unwrap(), None);
}

#[tokio::test]
async fn a_deletion_passes_and_is_refused_alike_and_leaves_nothing_that_refuses() {
    let db = TestDatabase::new("mongoseal_fence_delete").await;
    db.put(doc! { "_id": 1, "fence": 5_i64 }).await;
    refused_by(db.by(4).delete_one(one()).await, 5);
    assert_eq!(db.by(5).delete_one(one()).await.unwrap().deleted_count, 1);
    assert_eq!(db.by(5).delete_one(one()).await.unwrap().deleted_count, 0);
    db.by(4).insert_one(one()).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), 4, "as the documentation warns");
}

#[tokio::test]
async fn an_insertion_carries_the_token_and_tells_a_later_holder_from_a_plain_duplicate() {
    let db = TestDatabase::new("mongoseal_fence_insert").await;
    let done = db.by(5).insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
    assert_eq!(done.inserted_id.as_i32(), Some(1));
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 1, "fence": 5_i64 });
    for number in [5, 6] {
        let error = invalid(db.by(number).insert_one(one()).await, "with code 11000");
        assert!(is_duplicate(&error), "{error:?}");
    }
    refused_by(db.by(4).insert_one(one()).await, 5);
    let id = db.by(5).insert_one(doc! { "n": 2 }).await.unwrap().inserted_id;
    assert!(id.as_object_id().is_some());
}

#[tokio::test]
async fn a_filter_that_finds_nothing_is_not_a_refusal() {
    let db = TestDatabase::new("mongoseal_fence_nothing").await;
    db.put(doc! { "_id": 1, "state": "paid", "fence": 9_i64 }).await;
    let open = || doc! { "_id": 1, "state": "open" };
    let done = db.by(5).update_one(open(), doc! { "$set": { "n": 1 } }).await.unwrap();
    assert_eq!((done.matched_count, done.modified_count), (0, 0));
    assert_eq!(db.by(5).replace_one(open(), doc! {}).await.unwrap().matched_count, 0);
    assert_eq!(db.by(5).delete_one(open()).await.unwrap().deleted_count, 0);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    _id: i32,
    lines: Vec<String>,
    #[serde(default)]
    fence: Option<mongoseal::FencingToken>,
}

#[tokio::test]
async fn documents_of_a_type_are_written_and_read_as_such() {
    let db = TestDatabase::new("mongoseal_fence_typed").await;
    let orders = db.database.collection::<Order>("orders");
    let order = |line: &str, fence| Order { _id: 1, lines: vec![line.into()], fence };
    orders.fenced(token(5)).insert_one(order("pen", None)).await.unwrap();
    orders.fenced(token(6)).replace_one(one(), order("ink", Some(token(5)))).await.unwrap();
    let pushed = doc! { "$push": { "lines": "cap" } };
    let read = orders.fenced(token(6)).find_one_and_update(one(), pushed).await.unwrap();
    assert_eq!(read, Some(order("ink", Some(token(6)))));
    refused_by(orders.fenced(token(5)).replace_one(one(), order("nib", None)).await, 6);
    db.put(doc! { "_id": 2, "lines": 7 }).await;
    let misfit = orders.fenced(token(5)).find_one_and_update(doc! { "_id": 2 }, doc! {}).await;
    invalid(misfit, "was written, but");
}

#[tokio::test]
async fn options_of_the_driver_count() {
    let db = TestDatabase::new("mongoseal_fence_options").await;
    db.put(doc! { "_id": 1, "lines": [{ "sku": "a", "n": 1 }, { "sku": "b", "n": 1 }] }).await;
    let options = UpdateOptions::builder().array_filters(vec![doc! { "line.sku": "b" }]).build();
    let update = doc! { "$inc": { "lines.$[line].n": 1 } };
    db.by(5).update_one(one(), update).with_options(options).await.unwrap();
    let order = db.order(1).await;
    assert_eq!(order.get_array("lines").unwrap()[1], doc! { "sku": "b", "n": 2 }.into());
    // An element that the filter found is still the one that `$` means.
    db.by(5).update_one(doc! { "_id": 1, "lines.sku": "a" }, doc! { "$set": { "lines.$.n": 9 } }).await.unwrap();
    let order = db.order(1).await;
    assert_eq!(order.get_array("lines").unwrap()[0], doc! { "sku": "a", "n": 9 }.into());

    let collation =
        mongodb::options::Collation::builder().locale("en").strength(mongodb::options::CollationStrength::Secondary);
    let options = UpdateOptions::builder().collation(collation.build()).build();
    db.put(doc! { "_id": 2, "name": "Ada", "fence": 9_i64 }).await;
    let other_case = db.by(5).update_one(doc! { "name": "ADA" }, doc! {}).with_options(options);
    refused_by(other_case.await, 9);
}

#[tokio::test]
async fn a_lease_writes_while_it_holds_and_is_refused_here_once_it_has_ended() {
    let db = TestDatabase::new("mongoseal_fence_lease").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let lease = db.seal().acquire("orders/1").await.unwrap();
    db.orders().fenced(&lease).update_one(one(), doc! { "$inc": { "n": 1 } }).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(lease.token()));
    let old = lease.token();
    lease.release().await.unwrap();

    let lease = db.seal().acquire("orders/1").ttl(millis(500)).without_refresh().await.unwrap();
    lease.cancelled().await;
    let before = db.order(1).await;
    let (orders, sent) = db.noted_orders().await;
    let ended = orders.fenced(&lease).update_one(one(), doc! { "$inc": { "n": 1 } }).await;
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    assert_eq!(sent.take_names(), [""; 0], "nothing is sent");
    assert_eq!(db.order(1).await, before);

    // What it believes does not matter: its token is what counts, and that was not overtaken yet.
    orders.fenced(lease.token()).update_one(one(), doc! { "$inc": { "n": 1 } }).await.unwrap();
    let next = db.seal().acquire("orders/1").wait(secs(60)).await.unwrap();
    orders.fenced(&next).update_one(one(), doc! { "$inc": { "n": 1 } }).await.unwrap();
    let late = orders.fenced(old).update_one(one(), doc! { "$inc": { "n": 1 } }).await;
    refused_by(late, next.token().get());
}

#[tokio::test]
async fn a_leader_and_the_work_of_a_tick_write_as_the_holder_that_they_are() {
    let db = TestDatabase::new("mongoseal_fence_leader").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let (orders, seal) = (db.orders(), db.seal());
    let plus = || doc! { "$inc": { "n": 1 } };
    let leader = seal.campaign("scheduler").value("here").await.unwrap();
    orders.fenced(&leader).update_one(one(), plus()).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(leader.token()));
    let ran = seal.once("orders/nightly", Tick::number(1)).run(async |tick| {
        orders.fenced(tick).update_one(one(), plus()).await?;
        Ok::<_, Error>(tick.token())
    });
    let OnceOutcome::Ran(token) = ran.await.unwrap() else { panic!("the tick is new") };
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(token));
}
