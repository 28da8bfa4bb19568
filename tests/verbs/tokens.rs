//! Tokens grow, whatever becomes of the record.

use mongoseal::{
    Deadline, FencingToken, Mongoseal,
    store::{Snapshot, Store},
};

use crate::{faulty::Faulty, secs};

/// Acquires and releases, and demands a larger token than any before.
async fn next(seal: &Mongoseal, last: &mut Option<FencingToken>) {
    let lease = seal.acquire("k").await.unwrap();
    assert!(Some(lease.token()) > *last, "{:?} after {last:?}", lease.token());
    *last = Some(lease.token());
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_over_a_thousand_releases_in_one_instant() {
    let (seal, mut last) = (Mongoseal::in_memory(), None);
    for _ in 0..1000 {
        next(&seal, &mut last).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_over_expiry_collection_deletion_and_restore() {
    let store = Faulty::new();
    let (seal, mut last) = (store.seal(), None);
    next(&seal, &mut last).await;
    let key = "k".parse().unwrap();
    let Some(Snapshot { record: old, .. }) =
        store.records.read(&key, Deadline::after(store.records.clock(), secs(1))).await.unwrap()
    else {
        panic!("a record is there")
    };

    // A holder that dies, and another after its ttl.
    std::mem::forget(seal.acquire("k").without_refresh().await.unwrap());
    tokio::time::sleep(secs(31)).await;
    next(&seal, &mut last).await;

    tokio::time::sleep(secs(2 * 24 * 3600)).await;
    assert!(store.records.is_empty(), "collected");
    next(&seal, &mut last).await;

    store.records.remove(&key);
    next(&seal, &mut last).await;

    store.records.restore(key, *old);
    next(&seal, &mut last).await;
}
