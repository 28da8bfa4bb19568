//! What requests cost: the figures of the page of the guide.

use std::time::{Duration, Instant};

use mongoseal::Mongoseal;
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, millis};

use crate::with_replica;

/// The median time of an acquire and a release of a free key that was held before.
async fn median(server: &Redis, replicas: u32) -> Duration {
    let redis = RedisBackend::new(server.url()).unwrap().with_replicas(replicas);
    let seal = Mongoseal::builder().connect_to(redis).await.unwrap();
    let mut times = Vec::new();
    for number in 0..200 {
        let key = format!("k{number}");
        seal.acquire(key.clone()).await.unwrap().release().await.unwrap();
        let began = Instant::now();
        seal.acquire(key).await.unwrap().release().await.unwrap();
        times.push(began.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

pub(crate) async fn an_acquire_and_a_release_take_milliseconds() {
    let (none, _replica) = with_replica().await;
    let every_second = Redis::start_with(&[("appendonly", "yes")]).await;
    let always = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
    for (name, median) in [
        ("no append-only file", median(&none, 0).await),
        ("appendfsync everysec", median(&every_second, 0).await),
        ("appendfsync always", median(&always, 0).await),
        ("one replica acknowledges", median(&none, 1).await),
    ] {
        println!("an acquire and a release, {name}: {median:?} in the median");
        assert!(median < millis(200), "{name}: {median:?}");
    }
}
