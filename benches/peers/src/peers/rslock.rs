//! Redis, by the crate `rslock`: the same key set on most of several servers that know nothing of each
//! other.

use std::time::Duration;

use async_trait::async_trait;
use mongoseal_test_support::Redis;
use rslock::{Lock, LockError, LockManager};

use crate::peer::{About, Client, Held, Result, Setup};

/// The servers.
pub(super) struct Peer(pub(super) [Redis; 3]);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "rslock",
            version: "0.10",
            waits: "attempts each 0 to 200 ms, by chance, its default",
            lasts: "30 s: the ttl is the caller's; `using` and `extend` refresh, which is not used here",
            only_waits: None,
            on_mongodb: false,
            note: Some("on three Redis servers that keep all in memory and do not replicate"),
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let waiting = LockManager::new(self.0.iter().map(Redis::url).collect());
        let mut once = waiting.clone();
        once.set_retry(1, Duration::ZERO);
        Ok(Box::new(Locks { waiting, once, ttl: setup.ttl }))
    }
}

struct Locks {
    waiting: LockManager,
    /// The same, that gives up after one attempt.
    once: LockManager,
    ttl: Duration,
}

#[async_trait]
impl Client for Locks {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        match self.once.lock(key, self.ttl).await {
            Ok(lock) => Ok(Some(Box::new(Own(lock)))),
            Err(LockError::Unavailable) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        Ok(Box::new(Own(self.waiting.acquire_no_guard(key, self.ttl).await?)))
    }
}

struct Own(Lock);

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        None
    }

    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await;
        Ok(())
    }
}
