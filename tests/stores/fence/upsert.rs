//! Upserts, and concurrent first writes of a document.

use std::sync::Arc;

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Fence, fence::Change};
use mongoseal_test_support::{ReplicaSet, by_length};
use tokio::{sync::Barrier, task::JoinSet};

use crate::{Orders, TestDatabase, invalid, is_duplicate, one, plus, refused_by, token};

#[tokio::test]
async fn an_upsert_inserts_or_updates_and_never_makes_a_second_document() {
    let db = TestDatabase::new("mongoseal_fence_upsert").await;
    let done = db.by(5).update_one(one(), plus()).upsert(true).await.unwrap();
    assert_eq!((done.matched_count, done.upserted_id), (0, Some(1.into())));
    let done = db.by(6).update_one(one(), vec![doc! { "$set": { "n": 2 } }]).upsert(true).await.unwrap();
    assert_eq!((done.matched_count, done.upserted_id), (1, None));
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 2, "fence": 6_i64 });
    db.by(5).replace_one(doc! { "_id": 2 }, doc! { "n": 7 }).upsert(true).await.unwrap();
    assert_eq!(db.order(2).await, doc! { "_id": 2, "n": 7, "fence": 5_i64 });
    let before = db.by(5).find_one_and_update(doc! { "_id": 3 }, doc! {}).upsert(true).await.unwrap();
    assert_eq!(before, None);
    assert_eq!(db.order(3).await, doc! { "_id": 3, "fence": 5_i64 });
    assert_eq!(db.orders().count_documents(doc! {}).await.unwrap(), 3);
}

#[tokio::test]
async fn a_document_that_the_callers_own_filter_keeps_out_is_a_duplicate_and_not_a_refusal() {
    let db = TestDatabase::new("mongoseal_fence_kept_out").await;
    db.put(doc! { "_id": 1, "state": "paid", "fence": 3_i64 }).await;
    let open = || doc! { "_id": 1, "state": "open" };
    let error = invalid(db.by(5).update_one(open(), doc! {}).upsert(true).await, "with code 11000");
    assert!(is_duplicate(&error), "{error:?}");
    // And of a later holder's it cannot be told which of the two it was: the token comes first.
    refused_by(db.by(2).update_one(open(), doc! {}).upsert(true).await, 3);
}

/// Between the look of an upsert and its insert somebody else inserts the document, each time.
#[tokio::test]
async fn a_first_write_that_meets_another_succeeds_or_is_refused_and_sees_no_duplicate() {
    let set = ReplicaSet::start(1).await;
    let client = set.client().await;
    let orders = client.database("mongoseal_fence_meet").collection::<Document>("orders");
    orders.insert_one(doc! { "_id": -1 }).await.unwrap();
    for (id, first) in [3_i64, 9, 3, 9, 3, 9, 3, 9].into_iter().enumerate() {
        let id = i32::try_from(id).unwrap();
        let one = move || doc! { "_id": id };
        let hang = doc! { "configureFailPoint": "hangBeforeUpsertPerformsInsert", "mode": "alwaysOn" };
        let hang = set.fail_point(0, hang).await;
        let by = orders.fenced(token(5));
        let late = tokio::spawn(async move {
            match id / 2 {
                0 => by.update_one(one(), plus()).upsert(true).await.map(drop),
                1 => by.find_one_and_update(one(), plus()).upsert(true).await.map(drop),
                2 => by.replace_one(one(), doc! { "n": 1 }).upsert(true).await.map(drop),
                _ => {
                    let changes = [
                        Change::update_one(doc! { "_id": -1 }, plus()),
                        Change::update_one(one(), plus()).upsert(true),
                        Change::update_one(doc! { "_id": -1 }, plus()),
                    ];
                    let done = by.bulk_write(changes).await;
                    done.map(|done| assert_eq!((done.matched_count, done.upserted_count), (3, 0)))
                }
            }
        });
        hang.hit(1).await;
        orders.insert_one(doc! { "_id": id, "n": 0, "fence": first }).await.unwrap();
        hang.off().await;
        let late = late.await.unwrap();
        let order = orders.find_one(one()).await.unwrap().unwrap();
        if first > 5 {
            refused_by(late, 9);
            assert_eq!(order, doc! { "_id": id, "n": 0, "fence": 9_i64 });
        } else {
            late.unwrap();
            assert_eq!(order, doc! { "_id": id, "n": 1, "fence": 5_i64 });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_first_writes_the_document_carries_the_largest_token_and_no_other_error_is_seen() {
    let db = TestDatabase::new("mongoseal_fence_race").await;
    for round in 0..by_length(4, 20) {
        let start = Arc::new(Barrier::new(64));
        let mut racers = JoinSet::new();
        for number in 1..=64_u64 {
            let (by, start) = (db.by(number), Arc::clone(&start));
            racers.spawn(async move {
                start.wait().await;
                let one = doc! { "_id": round };
                let push = doc! { "$push": { "by": i64::try_from(number).unwrap() } };
                let done = match number % 3 {
                    0 => by.update_one(one, push).upsert(true).await.map(drop),
                    1 => by.find_one_and_update(one, push).upsert(true).await.map(drop),
                    _ => by.bulk_write([Change::update_one(one, push).upsert(true)]).await.map(drop),
                };
                (number, done)
            });
        }
        let (mut wrote, mut refused) = (Vec::new(), 0);
        for (number, done) in racers.join_all().await {
            match done {
                Ok(()) => wrote.push(i64::try_from(number).unwrap()),
                Err(Error::Fenced { newer }) => {
                    assert!(newer.get() > number);
                    refused += 1;
                }
                Err(error) => panic!("{number}: {error:?}"),
            }
        }
        wrote.sort_unstable();
        let order = db.order(round).await;
        let by: Vec<i64> = order.get_array("by").unwrap().iter().map(|by| by.as_i64().unwrap()).collect();
        assert_eq!(by, wrote, "each that was told so wrote once, in the order of the tokens");
        assert_eq!(order.get_i64("fence").unwrap(), 64, "the largest is never refused");
        assert_eq!(wrote.len() + refused, 64);
    }
}
