//! Crowds of waiters of one key on a backend that can only compare and swap, takes a millisecond a call, and has no
//! notifications.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::eventually;
use tokio::{task::JoinSet, time::Instant};

use crate::{by_length, compare_and_swap::Table, secs};

#[tokio::test(start_paused = true)]
async fn a_hundred_waiters_without_notifications_are_served_within_seconds() {
    let table = Table::new();
    let (seal, holder) = (table.seal(), table.seal().acquire("k").await.unwrap());
    let mut waiting = JoinSet::new();
    for _ in 0..by_length(50, 100) {
        let acquire = seal.acquire("k").wait(secs(600));
        waiting.spawn(async move { acquire.await?.release().await });
    }
    tokio::time::sleep(secs(5)).await;
    let (began, before) = (Instant::now(), table.swaps());
    holder.release().await.unwrap();
    waiting.join_all().await.into_iter().for_each(|served| drop(served.unwrap()));
    let took = began.elapsed();
    println!("they are served in {took:?} by {} swaps", table.swaps() - before);
    assert!(took < secs(5), "{took:?}");
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

#[tokio::test(start_paused = true)]
async fn a_crowd_comes_waits_ends_is_dropped_and_is_served_in_turn() {
    const WAIT: Duration = secs(8);
    let crowd = by_length(60, 300);
    let table = Table::new();
    let handles: Vec<Mongoseal> = (0..3).map(|_| table.seal()).collect();
    let holder = table.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let (served, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let (mut ending, mut dropped, mut serving) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    for number in 0..crowd {
        let seal = &handles[number % 3];
        match number % 10 {
            0..4 => drop(ending.spawn(seal.acquire("k").wait(WAIT).into_future())),
            4..8 => drop(dropped.spawn(seal.acquire("k").wait(secs(600)).into_future())),
            _ => {
                let acquire = seal.acquire("k").wait(secs(600)).metadata("number", number.to_string());
                let served = Arc::clone(&served);
                serving.spawn(async move {
                    let lease = acquire.await.unwrap();
                    served.lock().unwrap().push((number.to_string(), lease.token()));
                    lease.release().await.unwrap();
                });
            }
        }
    }
    let queue = async || handles[0].inspect("k").await.unwrap().unwrap().queue;
    let queued =
        async |count: usize| eventually(secs(30), "the queue is so long", async || queue().await.len() == count).await;
    queued(crowd).await;
    let report = |what: &str, began: Instant, before: (usize, usize)| {
        let (swaps, failed) = (table.swaps() - before.0, table.failed_swaps() - before.1);
        println!("{what} {:?} by {swaps} swaps, {failed} of which failed", began.elapsed());
    };
    let counts = || (table.swaps(), table.failed_swaps());
    report("all were queued after", began, (0, 0));

    let (dropping, before) = (Instant::now(), counts());
    dropped.abort_all();
    queued(crowd * 6 / 10).await;
    report("four tenths had left after they were dropped", dropping, before);

    while let Some(ended) = ending.join_next().await {
        let ended = ended.unwrap();
        assert!(matches!(ended, Err(Error::Held { .. })), "{ended:?}");
    }
    let late = began.elapsed().saturating_sub(WAIT);
    println!("the last of four tenths of the waits ended {late:?} after its time");
    assert!(late < secs(2), "{late:?}");

    queued(crowd / 5).await;
    let order: Vec<_> = queue().await.iter().map(|waiter| waiter.metadata.get("number").unwrap().to_owned()).collect();
    let (serving_since, before) = (Instant::now(), counts());
    holder.release().await.unwrap();
    serving.join_all().await;
    report("a fifth was served in", serving_since, before);
    let served = served.lock().unwrap();
    assert!(served.iter().map(|(number, _)| number.clone()).eq(order), "each in its turn");
    assert!(served.is_sorted_by(|(_, one), (_, next)| one < next), "with tokens that grow");
    assert!(serving_since.elapsed() < secs(20), "{:?}", serving_since.elapsed());
}
