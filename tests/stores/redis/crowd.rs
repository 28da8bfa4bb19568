//! Crowds of waiters of one key: they come, wait, end, are dropped, and are served in turn.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mongoseal::{Error, Lease, Mongoseal, Result};
use mongoseal_test_support::{Redis, by_length, eventually, secs};
use tokio::task::JoinSet;

use crate::send;

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

/// How many scripts the server has run: one for each swap.
async fn swaps(server: &Redis) -> u64 {
    let stats: String = send(server, "INFO commandstats").await;
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<u64>().ok();
    stats.lines().find_map(calls).unwrap_or_default()
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
    let (server, _holder, handles) = scene(handles).await;
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
    println!("{held} of {count} ended `Held`, the last {late:?} after its time, {} swaps", swaps(&server).await);
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
    let (server, holder, handles) = scene(3).await;
    let (grants, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let mut waiting = wait(&handles, crowd, secs(900));
    queued_are(&handles[0], crowd, secs(30)).await;
    println!("{crowd} were queued after {:?} by {} swaps", began.elapsed(), swaps(&server).await);
    let (began, before) = (Instant::now(), swaps(&server).await);
    waiting.abort_all();
    queued_are(&handles[0], 0, secs(30)).await;
    println!("{crowd} dropped waiters left in {:?} by {} swaps", began.elapsed(), swaps(&server).await - before);

    let mut waiting = JoinSet::new();
    for (number, seal) in handles.iter().cycle().take(crowd).enumerate() {
        let number = number.to_string();
        let acquire = seal.acquire("k").wait(secs(900)).metadata("number", &number);
        let grants = Arc::clone(&grants);
        waiting.spawn(async move {
            let lease = acquire.await.unwrap();
            grants.lock().unwrap().push((number, lease.token()));
            lease.release().await.unwrap();
        });
    }
    queued_are(&handles[0], crowd, secs(30)).await;
    let state = handles[0].inspect("k").await.unwrap().unwrap();
    let queue: Vec<_> = state.queue.iter().map(|waiter| waiter.metadata.get("number").unwrap().to_owned()).collect();
    let (began, before) = (Instant::now(), swaps(&server).await);
    holder.release().await.unwrap();
    waiting.join_all().await;
    println!("{crowd} were served in {:?} by {} swaps", began.elapsed(), swaps(&server).await - before);
    let grants = grants.lock().unwrap();
    assert!(grants.iter().map(|(number, _)| number.clone()).eq(queue), "each in its turn");
    assert!(grants.is_sorted_by(|(_, one), (_, next)| one < next), "with tokens that grow");
}
