//! This library on Redis, on a server that flushes each write to its file.

use async_trait::async_trait;
use mongoseal::Mongoseal;
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::Redis;

use super::mongoseal::Handle;
use crate::peer::{About, Client, Result, Setup};

const OPTIONS: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

/// A server, and its replica if it has one.
pub(super) struct Peer {
    server: Redis,
    replica: Option<Redis>,
}

impl Peer {
    pub(super) async fn start() -> Self {
        Self { server: Redis::start_with(&OPTIONS).await, replica: None }
    }

    /// Starts a server with a replica that acknowledges each write.
    pub(super) async fn start_replicated() -> Result<Self> {
        let server = Redis::start_with(&OPTIONS).await;
        let replica = Some(Redis::start_replica(&server).await);
        let peer = Self { server, replica };
        // Returns as soon as the replica acknowledges writes.
        let seal = peer.handle(&Setup::default()).await?;
        seal.acquire("replicated").await?.release().await?;
        seal.shutdown().await;
        Ok(peer)
    }

    async fn handle(&self, setup: &Setup) -> mongoseal::Result<Mongoseal> {
        let redis = RedisBackend::new(self.server.url())?.with_replicas(self.replica.is_some().into());
        Mongoseal::builder().ttl(setup.ttl).connect_to(redis).await
    }
}

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        const ALONE: About = About {
            name: "mongoseal-redis",
            version: "0.1",
            waits: "a queue at the server and its messages, the default",
            lasts: "30 s, its default, and is refreshed",
            only_waits: None,
            on_mongodb: false,
            note: Some("on one Redis server with appendonly yes and appendfsync always"),
        };
        const REPLICATED: About = About {
            name: "mongoseal-redis-replica",
            note: Some("on such a server with a replica that acknowledges each write: with_replicas(1)"),
            ..ALONE
        };
        if self.replica.is_some() { &REPLICATED } else { &ALONE }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        Ok(Box::new(Handle(self.handle(setup).await?)))
    }
}
