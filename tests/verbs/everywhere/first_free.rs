//! The first free key of several.

use std::future::IntoFuture;

use mongoseal::Error;
use mongoseal_test_support::secs;

use crate::world::{World, soon};

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
    let queued = async |count| {
        for key in KEYS {
            world.queued_for(key, count).await;
        }
    };
    let mut held = Vec::new();
    for key in KEYS {
        held.push(other.acquire(key).ttl(secs(600)).await.unwrap());
    }
    let waits = || tokio::spawn(seal.acquire_any(KEYS).ttl(secs(600)).wait(secs(3_600)).into_future());
    let dropped = waits();
    queued(1).await;
    let next = waits();
    queued(2).await;
    dropped.abort();
    queued(1).await;
    held.remove(1).release().await.unwrap();
    let granted = soon(next).await.unwrap().unwrap();
    assert_eq!(granted.key().as_str(), "b");
    queued(0).await;
    for lease in held {
        let key = lease.key().clone();
        lease.release().await.unwrap();
        drop(soon(other.acquire(key).wait(secs(3_600)).into_future()).await.unwrap());
    }
    granted.release().await.unwrap();
}
