//! Waiters of a key: the order in which they are granted it, and how they leave the queue.

use std::sync::{Arc, Mutex};

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{millis, secs};
use tokio::task::JoinSet;

use crate::world::{World, soon, wait};

pub(crate) async fn waiters_of_many_handles_are_served_in_the_order_they_came(world: &World) {
    let first = world.seal().acquire("k").await.unwrap();
    let (served, mut waiting) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for number in 0..12 {
        let (seal, served) = (world.seal(), Arc::clone(&served));
        waiting.spawn(async move {
            let lease = seal.acquire("k").wait(secs(3_600)).await.unwrap();
            served.lock().unwrap().push((number, lease.token()));
            lease.release().await.unwrap();
        });
        world.queued(number + 1).await;
    }
    let token = first.token();
    first.release().await.unwrap();
    soon(waiting.join_all()).await;
    let served = served.lock().unwrap().clone();
    assert!(served.iter().map(|(number, _)| *number).eq(0..12), "{served:?}");
    assert!(served[0].1 > token && served.is_sorted_by(|one, next| one.1 < next.1), "tokens grow: {served:?}");
    world.queued(0).await;
}

pub(crate) async fn a_wait_that_ends_and_one_that_is_dropped_leave_the_queue(world: &World) {
    let seal = world.seal();
    let holder = seal.acquire("k").ttl(secs(600)).await.unwrap();
    for at_most in [millis(0), millis(1), millis(300)] {
        let ended = seal.acquire("k").wait(at_most).await;
        assert!(matches!(ended, Err(Error::Held { token, .. }) if token == holder.token()), "{ended:?}");
        world.queued(0).await;
    }
    let dropped = wait(&world.seal());
    world.queued(1).await;
    let next = wait(&world.seal());
    world.queued(2).await;
    dropped.abort();
    world.queued(1).await;
    holder.release().await.unwrap();
    soon(next).await.unwrap().unwrap().release().await.unwrap();
}

pub(crate) async fn of_a_crowd_as_many_wait_as_there_is_room_for_and_the_others_are_told(world: &World) {
    let seal = world.build(Mongoseal::builder().queue_limit(7));
    let _holder = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let mut waiting: JoinSet<_> = (0..30).map(|_| seal.acquire("k").wait(secs(3_600)).into_future()).collect();
    for _ in 0..23 {
        let told = soon(waiting.join_next()).await.unwrap().unwrap();
        assert!(matches!(&told, Err(Error::QueueFull { key, length: 7 }) if key.as_str() == "k"), "{told:?}");
    }
    world.queued(7).await;
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })), "one attempt needs no room");
}

pub(crate) async fn sets_of_the_same_keys_never_block_each_other_for_ever(world: &World) {
    let mut asking = JoinSet::new();
    for number in 0..6 {
        let seal = world.seal();
        asking.spawn(async move {
            let keys = if number % 2 == 0 { ["a", "b", "c"] } else { ["c", "b", "a"] };
            for _ in 0..3 {
                // Its release hands the first key of either order over.
                let set = seal.acquire_all(keys).ttl(secs(600)).wait(secs(3_600)).await.unwrap();
                set.release().await.unwrap();
            }
        });
    }
    soon(asking.join_all()).await;
}
