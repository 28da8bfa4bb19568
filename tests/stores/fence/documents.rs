//! The fence works with all kinds of documents and filters.

use mongodb::bson::doc;
use mongoseal::fence::Change;

use crate::{Orders, TestDatabase, invalid, one, plus, refused_by, shop};

#[tokio::test]
async fn nothing_of_the_callers_filter_is_overridden() {
    let db = TestDatabase::new("mongoseal_fence_filters").await;
    for filter in [
        doc! { "$or": [{ "_id": 1 }, { "n": 77 }] },
        doc! { "$and": [{ "_id": 1 }, { "n": { "$gte": 0 } }] },
        doc! { "_id": 1, "$expr": { "$gt": [{ "$add": ["$n", 1] }, 0] } },
        doc! { "$nor": [{ "_id": { "$ne": 1 } }] },
        doc! { "_id": 1, "fence": { "$exists": true } },
        doc! { "_id": 1, "$comment": "whose" },
    ] {
        db.put(doc! { "_id": 1, "n": 0, "fence": 5_i64 }).await;
        db.put(doc! { "_id": 2, "n": 0, "fence": 1_i64 }).await;
        refused_by(db.by(4).update_one(filter.clone(), plus()).await, 5);
        let done = db.by(5).update_one(filter.clone(), plus()).await.unwrap();
        assert_eq!(done.modified_count, 1, "{filter}");
        assert_eq!(db.n().await, 1);
        assert_eq!(db.order(2).await.get_i32("n").unwrap(), 0, "{filter} does not mean this one");
    }
}

#[tokio::test]
async fn the_field_can_have_another_name() {
    let db = TestDatabase::new("mongoseal_fence_field").await;
    db.put(doc! { "_id": 1, "fence": "around the garden" }).await;
    let by = |number| db.by(number).field("written_by");
    by(5).update_one(one(), doc! { "$set": { "fence": "mended" } }).await.unwrap();
    assert_eq!(db.order(1).await, doc! { "_id": 1, "fence": "mended", "written_by": 5_i64 });
    refused_by(by(4).update_one(one(), doc! { "$set": { "fence": "broken" } }).await, 5);
}

#[tokio::test]
async fn what_the_fence_cannot_carry_is_refused_and_not_sent() {
    let db = TestDatabase::new("mongoseal_fence_touches").await;
    let document = doc! { "_id": 1, "fence": 3_i64 };
    db.put(document.clone()).await;
    let (by, touches) = (db.by(5), || doc! { "$set": { "fence": 1_i64 } });
    let good = || Change::insert_one(doc! { "_id": 2 });
    invalid(by.update_one(one(), touches()).await, "writes `fence`");
    invalid(by.update_one(one(), vec![doc! { "$unset": "fence" }]).await, "writes `fence`");
    invalid(by.find_one_and_update(one(), touches()).await, "writes `fence`");
    invalid(by.bulk_write([good(), Change::update_one(one(), touches())]).await, "writes `fence`");
    invalid(by.update_one(one(), doc! { "n": 1 }).await, "no update operator");
    invalid(by.replace_one(one(), doc! { "$set": { "n": 1 } }).await, "no operators");
    // An upsert without an id could insert a second document.
    let (unpinned, says) = (|| doc! { "_id": { "$gt": 1 } }, "names the `_id`");
    invalid(by.update_one(unpinned(), doc! {}).upsert(true).await, says);
    invalid(by.replace_one(unpinned(), doc! {}).upsert(true).await, says);
    invalid(by.find_one_and_update(unpinned(), doc! {}).upsert(true).await, says);
    invalid(by.bulk_write([good(), Change::update_one(unpinned(), doc! {}).upsert(true)]).await, says);
    invalid(by.bulk_write([good(), Change::delete_one(one()).upsert(true)]).await, "can upsert");
    invalid(db.by(5).field("$fence").delete_one(one()).await, "choose a name");
    assert_eq!(by.bulk_write([]).await.unwrap().inserted_count, 0);
    assert_eq!(db.order(1).await, document);
    assert_eq!(db.orders().count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn of_several_that_match_one_is_written_that_lets_the_token_pass() {
    let db = TestDatabase::new("mongoseal_fence_several").await;
    for (id, fence) in [(1, 9_i64), (2, 3)] {
        db.put(doc! { "_id": id, "state": "open", "fence": fence }).await;
    }
    let open = || doc! { "state": "open" };
    let closed = doc! { "$set": { "state": "closed" } };
    assert_eq!(db.by(5).update_one(open(), closed.clone()).await.unwrap().modified_count, 1);
    assert_eq!(db.order(1).await.get_str("state").unwrap(), "open");
    assert_eq!(db.order(2).await.get_str("state").unwrap(), "closed");
    refused_by(db.by(5).update_one(open(), closed).await, 9);
}

#[tokio::test]
async fn what_mongodb_itself_refuses_comes_with_the_drivers_error() {
    let db = shop("validated").await;
    db.database.run_command(doc! { "collMod": "orders", "validator": { "n": { "$lt": 10 } } }).await.unwrap();
    let error = db.by(5).update_one(one(), doc! { "$set": { "n": 11 } }).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().downcast_ref::<mongodb::error::Error>().unwrap();
    assert!(source.to_string().contains("failed validation"), "{source}");
    invalid(db.by(5).update_one(doc! { "_id": { "$wrong": 1 } }, doc! {}).await, "see the source");
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 0 });
}
