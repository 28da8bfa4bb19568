//! A claim leaves the token before the holder writes anything.

use mongodb::bson::doc;
use mongoseal::{Fence, FencingToken, Mongoseal};

use crate::{Orders, TestDatabase, refused_by, token};

/// The tokens of two holders, of which the earlier one does not know of the later one.
async fn two_holders(seal: &Mongoseal) -> [FencingToken; 2] {
    let mut tokens = Vec::new();
    for _holder in 0..2 {
        let lease = seal.acquire("orders/1").await.unwrap();
        tokens.push(lease.token());
        lease.release().await.unwrap();
    }
    tokens.try_into().unwrap()
}

#[tokio::test]
async fn an_earlier_holder_is_refused_once_the_next_one_has_claimed_though_it_has_written_nothing() {
    let db = TestDatabase::new("mongoseal_fence_claimed").await;
    let [earlier, later] = two_holders(&db.seal()).await;
    for is_claimed in [false, true] {
        db.put(doc! { "_id": 1, "stock": 5 }).await;
        let read = db.orders().fenced(earlier).claim(doc! { "_id": 1 }).await.unwrap().unwrap();
        // The earlier holder is paused between its read and its write, and the key is granted to the next one.
        if is_claimed {
            let claimed = db.orders().fenced(later).claim(doc! { "_id": 1 }).await.unwrap().unwrap();
            assert_eq!(claimed, doc! { "_id": 1, "stock": 5, "fence": later });
        }
        let sold = doc! { "$set": { "stock": read.get_i32("stock").unwrap() - 1 } };
        let late = db.orders().fenced(earlier).update_one(doc! { "_id": 1 }, sold).await;
        if is_claimed {
            refused_by(late, later.get());
        } else {
            assert_eq!(late.unwrap().matched_count, 1, "without a claim nothing tells the holders apart");
        }
        let stock = db.order(1).await.get_i32("stock").unwrap();
        assert_eq!(stock, if is_claimed { 5 } else { 4 });
    }
}

#[tokio::test]
async fn a_claim_is_one_command_that_returns_the_document_and_changes_the_token_alone() {
    let db = TestDatabase::new("mongoseal_fence_claim").await;
    db.put(doc! { "_id": 1, "n": 1, "tags": ["a"] }).await;
    let (orders, sent) = db.noted_orders().await;
    let fenced = orders.fenced(token(5));
    let claimed = doc! { "_id": 1, "n": 1, "tags": ["a"], "fence": 5_i64 };
    sent.take_names();
    for _time in 0..2 {
        assert_eq!(fenced.claim(doc! { "_id": 1 }).await.unwrap(), Some(claimed.clone()));
        assert_eq!(sent.take_names(), ["findAndModify"]);
    }
    assert_eq!(db.order(1).await, claimed);
    refused_by(db.by(4).claim(doc! { "_id": 1 }).await, 5);
    let projected = fenced
        .claim(doc! { "n": 1 })
        .with_options(mongodb::options::FindOneAndUpdateOptions::builder().projection(doc! { "fence": 1 }).build());
    assert_eq!(projected.await.unwrap(), Some(doc! { "_id": 1, "fence": 5_i64 }), "as it is after the claim");

    assert_eq!(fenced.claim(doc! { "_id": 2 }).await.unwrap(), None);
    assert_eq!(fenced.claim(doc! { "_id": 2 }).upsert(true).await.unwrap(), Some(doc! { "_id": 2, "fence": 5_i64 }));
    refused_by(db.by(4).claim(doc! { "_id": 2 }).upsert(true).await, 5);
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
