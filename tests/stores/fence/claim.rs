//! A claim leaves the token before the holder writes anything.

use mongodb::{bson::doc, options::FindOneAndUpdateOptions};

use crate::{Orders, TestDatabase, one, refused_by};

#[tokio::test]
async fn an_earlier_holder_is_refused_once_the_next_one_has_claimed_though_it_has_written_nothing() {
    let db = TestDatabase::new("mongoseal_fence_claimed").await;
    for is_claimed in [false, true] {
        db.put(doc! { "_id": 1, "stock": 5 }).await;
        db.by(5).claim(one()).await.unwrap();
        // The earlier holder is paused between its read and its write, and the key is granted to the next one.
        if is_claimed {
            let claimed = db.by(6).claim(one()).await.unwrap();
            assert_eq!(claimed, Some(doc! { "_id": 1, "stock": 5, "fence": 6_i64 }));
        }
        let late = db.by(5).update_one(one(), doc! { "$set": { "stock": 4 } }).await;
        if is_claimed {
            refused_by(late, 6);
        } else {
            assert_eq!(late.unwrap().matched_count, 1, "without a claim nothing tells the holders apart");
        }
        assert_eq!(db.order(1).await.get_i32("stock").unwrap(), if is_claimed { 5 } else { 4 });
    }
}

#[tokio::test]
async fn a_claim_is_one_command_that_returns_the_document_and_changes_the_token_alone() {
    let db = TestDatabase::new("mongoseal_fence_claim").await;
    db.put(doc! { "_id": 1, "n": 1, "tags": ["a"] }).await;
    let (noted, sent) = db.by_client("appName=claim").await;
    let fenced = noted.by(5);
    let claimed = doc! { "_id": 1, "n": 1, "tags": ["a"], "fence": 5_i64 };
    for _time in 0..2 {
        assert_eq!(fenced.claim(one()).await.unwrap(), Some(claimed.clone()));
        assert_eq!(sent.take_names(), ["findAndModify"]);
    }
    assert_eq!(db.order(1).await, claimed);
    let options = FindOneAndUpdateOptions::builder().projection(doc! { "fence": 1 }).build();
    let projected = fenced.claim(doc! { "n": 1 }).with_options(options).await.unwrap();
    assert_eq!(projected, Some(doc! { "_id": 1, "fence": 5_i64 }), "as it is after the claim");

    assert_eq!(fenced.claim(doc! { "_id": 2 }).await.unwrap(), None);
    assert_eq!(fenced.claim(doc! { "_id": 2 }).upsert(true).await.unwrap(), Some(doc! { "_id": 2, "fence": 5_i64 }));
}

#[tokio::test]
async fn several_documents_are_claimed_in_the_order_of_their_ids() {
    let db = TestDatabase::new("mongoseal_fence_claim_all").await;
    for id in [1, 3, 4] {
        db.put(doc! { "_id": id }).await;
    }
    db.by(9).claim(doc! { "_id": 4 }).await.unwrap();
    let claimed = db.by(5).claim_all([3, 2, 1]).await.unwrap();
    assert_eq!(claimed, [Some(doc! { "_id": 3, "fence": 5_i64 }), None, Some(doc! { "_id": 1, "fence": 5_i64 })]);
    refused_by(db.by(6).claim_all([1, 4, 3]).await, 9);
    let left = [db.order(1).await, db.order(3).await].map(|order| order.get_i64("fence").unwrap());
    assert_eq!(left, [6, 5], "what comes after a refusal is not claimed");
}
