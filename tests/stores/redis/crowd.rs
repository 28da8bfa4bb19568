//! Crowds of waiters of one key: they come, wait, end, are dropped, and are served in turn.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use mongoseal::{Error, Lease, Mongoseal, Result};
use mongoseal_test_support::{Redis, by_length, eventually, secs};
use tokio::task::JoinSet;

/// A server of its own, a holder of the key, and handles whose waiters want it.
async fn scene(handles: usize) -> (Redis, Lease, Vec<Mongoseal>) {
    let server = Redis::start().await;
    let handle = async || mongoseal_redis::connect(server.url()).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..handles {
        all.push(handle().await);
    }
    let holder = handle().await.acquire("k").ttl(secs(600)).await.unwrap();
    (server, holder, all)
}

/// Waits until so many are queued.
async fn queued_are(seal: &Mongoseal, count: usize, within: Duration) {
    let queued = async || seal.inspect("k").await.unwrap().map_or(0, |state| state.queue.len());
    eventually(within, "all are queued, or have left", async || queued().await == count).await;
}

fn wait(handles: &[Mongoseal], count: usize, wait: Duration) -> JoinSet<Result<Lease>> {
    handles.iter().cycle().take(count).map(|seal| seal.acquire("k").wait(wait).into_future()).collect()
}

/// So many waits of 14 seconds come together and end together.
async fn all_waits_end_in_time(handles: usize, count: usize) {
    const WAIT: Duration = secs(14);
    let (_server, _holder, handles) = scene(handles).await;
    let began = Instant::now();
    let mut waiting = wait(&handles, count, WAIT);
    let asked = began.elapsed();
    let (mut held, mut others) = (0, Vec::new());
    while let Some(ended) = waiting.join_next().await {
        match ended.unwrap() {
            Err(Error::Held { .. }) => held += 1,
            other => others.push(other),
        }
    }
    let late = began.elapsed().saturating_sub(WAIT + asked);
    println!("{held} of {count} ended `Held`, the last {late:?} after its time");
    assert!(others.is_empty(), "{} others, one of them {:?}", others.len(), others.first());
    assert!(late < secs(2), "{late:?}");
    queued_are(&handles[0], 0, secs(2)).await;
}

/// If each request is a read and a swap of its own, those of one process make each other's swaps fail.
pub(crate) async fn three_hundred_waits_of_a_handle_end_held_and_in_time() {
    all_waits_end_in_time(1, 300).await;
}

pub(crate) async fn a_thousand_waits_of_three_handles_end_held_and_in_time() {
    all_waits_end_in_time(3, 1_000).await;
}

pub(crate) async fn a_crowd_is_queued_leaves_when_it_is_dropped_and_is_served_in_its_turn() {
    let crowd = by_length(150, 1_000);
    let (_server, holder, handles) = scene(3).await;
    let mut waiting = wait(&handles, crowd, secs(900));
    queued_are(&handles[0], crowd, secs(30)).await;
    waiting.abort_all();
    queued_are(&handles[0], 0, secs(30)).await;

    let mut waiting = JoinSet::new();
    for (number, seal) in handles.iter().cycle().take(crowd).enumerate() {
        let number = number.to_string();
        let acquire = seal.acquire("k").wait(secs(900)).metadata("number", &number);
        waiting.spawn(async move {
            let lease = acquire.await.unwrap();
            let token = lease.token();
            lease.release().await.unwrap();
            (token, number)
        });
    }
    queued_are(&handles[0], crowd, secs(30)).await;
    let state = handles[0].inspect("k").await.unwrap().unwrap();
    let queue = state.queue.iter().map(|waiter| waiter.metadata.get("number").unwrap());
    holder.release().await.unwrap();
    let mut grants = waiting.join_all().await;
    grants.sort();
    assert!(grants.iter().map(|(_, number)| number.as_str()).eq(queue), "each in its turn, with tokens that grow");
}
