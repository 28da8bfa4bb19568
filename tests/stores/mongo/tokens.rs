//! Tokens grow on a real server, even if the record is deleted or restored.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

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
async fn tokens_grow_over_many_releases_and_the_record_is_never_without_its_version() {
    let db = TestDatabase::new("mongoseal_thousand").await;
    let (seal, mut last) = (db.seal(), None);
    next(&seal, &mut last).await;
    let done = Arc::new(AtomicBool::new(false));
    let watch = {
        let (records, done) = (db.records(), Arc::clone(&done));
        tokio::spawn(async move {
            let (mut looks, mut seen) = (0_u32, 0);
            while !done.load(Ordering::Relaxed) {
                let record = records.find_one(doc! { "_id": "k" }).await.unwrap().expect("a released record stays");
                let version = record.get_i64("version").unwrap();
                assert!(version >= seen, "{version} after {seen}");
                (looks, seen) = (looks + 1, version);
            }
            looks
        })
    };
    for _ in 0..by_length(100, 1_000) {
        next(&seal, &mut last).await;
    }
    done.store(true, Ordering::Relaxed);
    assert!(watch.await.unwrap() > 0);
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
