//! The first free key of several.

use std::future::IntoFuture;

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{eventually, secs};

use crate::world::{PATIENCE, World, soon};

/// Waits until so many are queued for each of these keys.
async fn queued(seal: &Mongoseal, keys: &[&str], count: usize) {
    for key in keys {
        let queue = async || seal.inspect(*key).await.unwrap().map_or(0, |seen| seen.queue.len());
        eventually(PATIENCE, "so many wait", async || queue().await == count).await;
    }
}

pub(crate) async fn the_keys_are_tried_in_their_order_and_the_first_free_one_is_granted(world: &World) {
    let (seal, other) = (world.seal(), world.seal());
    let first = other.acquire("a").ttl(secs(600)).await.unwrap();
    let granted = seal.acquire_any(["a", "c", "b"]).await.unwrap();
    assert_eq!(granted.key().as_str(), "c");
    let _b = other.acquire("b").ttl(secs(600)).await.unwrap();
    let refused = seal.acquire_any(["a", "b", "c"]).await;
    assert!(matches!(&refused, Err(Error::Held { key, .. }) if key.as_str() == "a"), "{refused:?}");
    let token = granted.token();
    granted.release().await.unwrap();
    let again = seal.acquire_any(["a", "b", "c"]).with(async |lease| (lease.key().clone(), lease.token())).await;
    assert!(matches!(&again, Ok((key, next)) if key.as_str() == "c" && *next > token), "{again:?}");
    first.release().await.unwrap();
}

pub(crate) async fn who_waits_for_several_keys_is_queued_for_each_and_leaves_the_others_at_the_grant(world: &World) {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let (seal, other) = (world.seal(), world.seal());
    let mut held = Vec::new();
    for key in KEYS {
        held.push(other.acquire(key).ttl(secs(600)).await.unwrap());
    }
    let waits = || tokio::spawn(seal.acquire_any(KEYS).ttl(secs(600)).wait(secs(3_600)).into_future());
    let dropped = waits();
    queued(&other, &KEYS, 1).await;
    let next = waits();
    queued(&other, &KEYS, 2).await;
    dropped.abort();
    queued(&other, &KEYS, 1).await;
    held.remove(1).release().await.unwrap();
    let granted = soon(next).await.unwrap().unwrap();
    assert_eq!(granted.key().as_str(), "b");
    queued(&other, &KEYS, 0).await;
    for lease in held {
        let key = lease.key().clone();
        lease.release().await.unwrap();
        drop(soon(other.acquire(key).wait(secs(3_600)).into_future()).await.unwrap());
    }
    granted.release().await.unwrap();
}
