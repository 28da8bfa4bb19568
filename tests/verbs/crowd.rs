//! Crowds of waiters of one key on a backend that can only compare and swap, takes a millisecond a call, and has no
//! notifications.

use std::future::IntoFuture;

use mongoseal::Error;
use tokio::{task::JoinSet, time::Instant};

use crate::{by_length, compare_and_swap::Table, secs};

/// How often a waiter polls depends on its place in the queue, and not on its time in it.
#[tokio::test(start_paused = true)]
async fn a_hundred_waiters_without_notifications_are_served_within_seconds() {
    let table = Table::new();
    let (seal, holder) = (table.seal(), table.seal().acquire("k").await.unwrap());
    let mut waiting = JoinSet::new();
    for _ in 0..by_length(50, 100) {
        let acquire = seal.acquire("k").wait(secs(600));
        waiting.spawn(async move { acquire.await?.release().await });
    }
    let began = Instant::now();
    let ending: JoinSet<_> = (0..50).map(|_| seal.acquire("k").wait(secs(5)).into_future()).collect();
    for ended in ending.join_all().await {
        assert!(matches!(ended, Err(Error::Held { .. })), "{ended:?}");
    }
    assert!(began.elapsed() < secs(7), "the waits of a crowd end in time: {:?}", began.elapsed());
    let began = Instant::now();
    holder.release().await.unwrap();
    waiting.join_all().await.into_iter().for_each(|served| drop(served.unwrap()));
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    // The handle of the first holder has a queue of its own, so a few of its swaps and theirs meet.
    let (failed, all) = (table.failed_swaps(), table.swaps());
    assert!(failed * 20 <= all, "the requests of a process do not compete: {failed} of {all}");
}

#[tokio::test(start_paused = true)]
async fn a_long_hold_is_polled_at_long_intervals() {
    let table = Table::new();
    let (seal, _holder) = (table.seal(), table.seal().acquire("k").ttl(secs(600)).await.unwrap());
    let _waiting = tokio::spawn(seal.acquire("k").wait(secs(600)).into_future());
    tokio::time::sleep(secs(5)).await;
    let before = table.swaps();
    tokio::time::sleep(secs(60)).await;
    let polls = table.swaps() - before;
    assert!((90..=190).contains(&polls), "each 0.32 to 0.64 seconds: {polls}");
}
