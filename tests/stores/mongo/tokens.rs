//! Tokens grow on a real server, even if the record is deleted or restored.

use mongodb::bson::doc;
use mongoseal::{FencingToken, Mongoseal};

use crate::{TestDatabase, by_length, eventually, millis, secs};

/// Acquires and releases, and demands a larger token than any before.
async fn next(seal: &Mongoseal, last: &mut Option<FencingToken>) {
    let lease = seal.acquire("k").await.unwrap();
    assert!(Some(lease.token()) > *last, "{:?} after {last:?}", lease.token());
    *last = Some(lease.token());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn tokens_grow_over_ttl_collection_deletion_drop_and_restore() {
    let db = TestDatabase::new("mongoseal_collected").await;
    let seal = db.build(Mongoseal::builder().ttl(millis(200)).retention(secs(1)));
    let mut last = None;
    next(&seal, &mut last).await;
    let old = db.record("k").await.unwrap();

    for _ in 0..by_length(1, 3) {
        next(&seal, &mut last).await;
        eventually(secs(60), "an idle record is collected after its retention", || async {
            db.record("k").await.is_none()
        })
        .await;
    }
    next(&seal, &mut last).await;
    db.records().delete_one(doc! { "_id": "k" }).await.unwrap();
    next(&seal, &mut last).await;
    db.records().drop().await.unwrap();
    next(&seal, &mut last).await;
    db.records().replace_one(doc! { "_id": "k" }, old).upsert(true).await.unwrap();
    next(&seal, &mut last).await;
}
