//! What requests cost: the figures of the page of the guide.

use std::time::{Duration, Instant};

use mongoseal::{Builder, Mongoseal};
use mongoseal_test_support::{Redis, eventually, millis, secs};

use crate::send;

/// The median time of an acquire and a release of a free key that was held before.
async fn median(builder: Builder, server: &Redis) -> Duration {
    let seal = builder.connect(server.url()).await.unwrap();
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
    let (none, every_second) = (Redis::start().await, Redis::start_with(&[("appendonly", "yes")]).await);
    let always = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
    let replica = Redis::start_replica(&none).await;
    let follows = async || send::<u32>(&none, "WAIT 1 100").await == 1;
    eventually(secs(30), "the replica follows", follows).await;
    let plain = Mongoseal::builder;
    for (name, median) in [
        ("no append-only file", median(plain(), &none).await),
        ("appendfsync everysec", median(plain(), &every_second).await),
        ("appendfsync always", median(plain(), &always).await),
        ("one replica acknowledges", median(plain().redis_replicas(1), &none).await),
    ] {
        println!("an acquire and a release, {name}: {median:?} in the median");
        assert!(median < millis(200), "{name}: {median:?}");
    }
    drop(replica);
}
