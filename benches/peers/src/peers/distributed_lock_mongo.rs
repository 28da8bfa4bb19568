//! The crate `distributed-lock-mongo`: one update pipeline for each key, on the server's clock.

use std::time::Duration;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::{MongoDistributedLock, MongoDistributedLockOptions, handle::MongoLockHandle};
use mongodb::Database;

use crate::{
    peer::{About, Client, Held, PATIENCE, Result, Setup},
    set,
};

/// Where the set is.
pub(super) struct Peer(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "distributed-lock-mongo",
            version: "0.2",
            waits: "attempts each 10 ms, its default",
            lasts: "30 s, its default; its option to extend is read by nothing",
            only_waits: None,
            on_mongodb: true,
            note: None,
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let client = set::client(&self.0, "peers_distributed_lock", setup).await?;
        Ok(Box::new(Locks { database: client.database("peers_distributed_lock"), ttl: setup.ttl }))
    }
}

struct Locks {
    database: Database,
    ttl: Duration,
}

impl Locks {
    fn lock(&self, key: &str) -> MongoDistributedLock {
        let options = MongoDistributedLockOptions { expiry: self.ttl, ..Default::default() };
        MongoDistributedLock::new(key.into(), self.database.clone(), None, Some(options))
    }
}

#[async_trait]
impl Client for Locks {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        let handle = self.lock(key).try_acquire().await?;
        Ok(handle.map(|handle| Box::new(Own(handle)) as Box<dyn Held>))
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        Ok(Box::new(Own(self.lock(key).acquire(Some(PATIENCE)).await?)))
    }
}

struct Own(MongoLockHandle);

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        None
    }

    async fn release(self: Box<Self>) -> Result<()> {
        Ok(self.0.release().await?)
    }
}
