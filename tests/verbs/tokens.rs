//! Tokens grow, whatever becomes of the record.

use mongoseal::{
    FencingToken, Mongoseal,
    store::{Deadline, MemoryStore, Snapshot, Store},
};

use crate::secs;

/// Acquires and releases, and demands a larger token than any before.
async fn next(seal: &Mongoseal, last: &mut Option<FencingToken>) {
    let lease = seal.acquire("k").await.unwrap();
    assert!(Some(lease.token()) > *last, "{:?} after {last:?}", lease.token());
    *last = Some(lease.token());
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_over_expiry_collection_after_the_retention_deletion_and_restore() {
    let store = MemoryStore::default();
    let (seal, mut last) = (Mongoseal::in_memory_on(&store), None);
    next(&seal, &mut last).await;
    let key = "k".parse().unwrap();
    let Ok(Some(Snapshot { record: old, .. })) = store.read(&key, Deadline::after(store.clock(), secs(1))).await else {
        panic!("a record is there")
    };

    // A holder that dies, and another after its ttl.
    seal.acquire("k").await.unwrap().orphan();
    tokio::time::sleep(secs(31)).await;
    next(&seal, &mut last).await;

    // The retention is a day.
    tokio::time::sleep(secs(23 * 3600)).await;
    assert!(!store.is_empty());
    tokio::time::sleep(secs(12 * 3600)).await;
    assert!(store.is_empty(), "collected");
    next(&seal, &mut last).await;

    store.remove(&key);
    next(&seal, &mut last).await;

    store.restore(key, *old);
    next(&seal, &mut last).await;
}
