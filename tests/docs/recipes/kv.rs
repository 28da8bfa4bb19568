//! The example `fence_redis`.

use std::time::{Duration, Instant};

use mongoseal::FencingToken;
use mongoseal_test_support::Redis;
use redis::aio::MultiplexedConnection;

use crate::{
    example,
    fence_redis::{connect, read, write},
    race::{Storage, race},
};

pub(crate) async fn the_example_runs_on_a_real_server() {
    let server = Redis::start().await;
    example("fence_redis", Some(("REDIS_URL", server.url())), "Redis refused token").await;
}

impl Storage for MultiplexedConnection {
    async fn write(&mut self, token: FencingToken) -> bool {
        write(self, "raced", &token.to_string(), token).await.unwrap().is_none()
    }

    async fn read(&mut self) -> Option<(String, u64)> {
        let (body, fence) = read(self, "raced").await.unwrap();
        body.zip(fence)
    }
}

pub(crate) async fn the_largest_of_racing_tokens_stays() {
    let server = Redis::start().await;
    let mut clients = Vec::new();
    for _ in 0..17 {
        clients.push(connect(&server.url()).await.unwrap());
    }
    race(clients).await;
}

pub(crate) async fn tokens_that_differ_by_one_are_told_apart_up_to_the_largest() {
    let server = Redis::start().await;
    let mut redis = connect(&server.url()).await.unwrap();
    let largest = FencingToken::MAX.get();
    for number in [1, 9, 10, 1 << 32, 226_650_000_000_000, largest - 1] {
        let [smaller, larger] = [number, number + 1].map(|number| FencingToken::new(number).unwrap());
        assert_eq!(write(&mut redis, "k", "it", larger).await.unwrap(), None);
        assert_eq!(write(&mut redis, "k", "late", smaller).await.unwrap(), Some(larger.get()));
        assert_eq!(read(&mut redis, "k").await.unwrap(), (Some("it".into()), Some(larger.get())));
    }
}

/// The limit that the recipe names.
pub(crate) async fn a_failover_that_loses_the_fence_lets_the_older_token_write() {
    let primary = Redis::start().await;
    let replica = Redis::start_replica(&primary).await;
    let (mut old, mut new) = (connect(&primary.url()).await.unwrap(), connect(&replica.url()).await.unwrap());
    let [older, newer] = [5, 6].map(|number| FencingToken::new(number).unwrap());
    assert_eq!(write(&mut old, "k", "older", older).await.unwrap(), None);
    let begin = Instant::now();
    while confirmed(&mut old).await < 1 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the replica does not follow");
    }

    let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async(&mut new).await.unwrap();
    // The old primary does not know yet.
    assert_eq!(write(&mut old, "k", "newer", newer).await.unwrap(), None, "it is answered");
    assert_eq!(confirmed(&mut old).await, 0, "WAIT would have told");
    primary.kill();
    assert_eq!(write(&mut new, "k", "late", older).await.unwrap(), None, "nothing refuses it");
    assert_eq!(write(&mut new, "k", "newer", newer).await.unwrap(), None);
    assert_eq!(write(&mut new, "k", "late", older).await.unwrap(), Some(6), "until the newer holder writes again");
}

/// How many replicas have confirmed what was written here.
async fn confirmed(redis: &mut MultiplexedConnection) -> u32 {
    redis::cmd("WAIT").arg(1).arg(200).query_async(redis).await.unwrap()
}
