//! Fenced bulk writes.

use mongodb::bson::{Bson, doc};
use mongoseal::{Error, fence::Change};

use crate::{Orders, TestDatabase, invalid, one, plus, refused_by, shop};

#[tokio::test]
async fn a_mixed_bulk_is_made_in_order_and_counted() {
    let db = shop("mixed").await;
    db.put(doc! { "_id": 2, "n": 0, "fence": 4_i64 }).await;
    let done = db
        .by(5)
        .bulk_write([
            Change::update_one(one(), plus()),
            Change::update_one(one(), vec![doc! { "$set": { "n": { "$add": ["$n", 10] } } }]),
            Change::replace_one(doc! { "_id": 3 }, doc! { "n": 3 }).upsert(true),
            Change::insert_one(doc! { "_id": 4, "n": 4 }),
            Change::update_one(doc! { "_id": 4 }, plus()),
            Change::delete_one(doc! { "_id": 2 }),
            Change::delete_one(doc! { "_id": 99 }),
        ])
        .await
        .unwrap();
    let counts =
        (done.matched_count, done.modified_count, done.upserted_count, done.inserted_count, done.deleted_count);
    assert_eq!(counts, (3, 3, 1, 1, 1));
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 11, "fence": 5_i64 });
    assert_eq!(db.order(3).await, doc! { "_id": 3, "n": 3, "fence": 5_i64 });
    assert_eq!(db.order(4).await, doc! { "_id": 4, "n": 5, "fence": 5_i64 });
    assert_eq!(db.orders().count_documents(doc! {}).await.unwrap(), 3);
}

#[tokio::test]
async fn three_thousand_changes_are_three_commands() {
    let db = TestDatabase::new("mongoseal_fence_chunks").await;
    let (noted, sent) = db.by_client("appName=chunks").await;
    let upserts = (0..2_500).map(|id| Change::update_one(doc! { "_id": id }, doc! {}).upsert(true));
    let done = noted.by(5).bulk_write(upserts).await.unwrap();
    assert_eq!(done.upserted_count, 2_500);
    assert_eq!(sent.take_names(), ["update"; 3]);
    assert_eq!(db.orders().count_documents(doc! { "fence": 5_i64 }).await.unwrap(), 2_500);
}

#[tokio::test]
async fn a_change_that_mongodb_or_a_later_holder_refuses_ends_the_bulk_there() {
    let db = TestDatabase::new("mongoseal_fence_bulk_stops").await;
    db.put(doc! { "_id": 1, "n": "text" }).await;
    let changes = [
        Change::update_one(doc! { "_id": 2 }, doc! {}).upsert(true),
        Change::update_one(one(), plus()),
        Change::update_one(doc! { "_id": 3 }, doc! {}).upsert(true),
    ];
    let error = db.by(5).bulk_write(changes).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid { source: Some(source), .. } if source.to_string().contains("$inc")),
        "{error:?}"
    );
    let ids = db.orders().distinct("_id", doc! {}).await.unwrap();
    assert_eq!(ids, [Bson::Int32(1), Bson::Int32(2)]);
    let seven = |id: i32| Change::update_one(doc! { "_id": id }, doc! { "$set": { "n": 7 } });
    db.put(doc! { "_id": 3, "fence": 9_i64 }).await;
    refused_by(db.by(5).bulk_write([seven(2), seven(3)]).await, 9);
    assert_eq!(db.order(2).await, doc! { "_id": 2, "n": 7, "fence": 5_i64 }, "what came before is made");
    // A plain duplicate is the caller's, as with a single insertion.
    let error = invalid(db.by(5).bulk_write([Change::insert_one(one())]).await, "refused the write");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("E11000"));
}
