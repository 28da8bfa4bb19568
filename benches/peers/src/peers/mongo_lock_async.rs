//! The crate `mongo-lock-async`: a document for each key, taken over where its time is over.

use std::time::Duration;

use async_trait::async_trait;
use mongo_lock_async::Lock;

use crate::{
    peer::{About, Client, Held, PATIENCE, POLL, Result, Setup},
    set,
};

/// Where the set is.
pub(super) struct Peer(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "mongo-lock-async",
            version: "0.4",
            waits: "attempts each 10 ms: the interval is the caller's",
            lasts: "30 s by the client's wall clock: the ttl is the caller's, and nobody refreshes",
            only_waits: None,
            on_mongodb: true,
            note: None,
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let client = set::client(&self.0, "peers_mongo_lock_async", setup).await?;
        mongo_lock_async::prepare_database(&client).await?;
        Ok(Box::new(Locks { client, ttl: setup.ttl }))
    }
}

struct Locks {
    client: mongodb::Client,
    ttl: Duration,
}

#[async_trait]
impl Client for Locks {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        let lock = Lock::try_acquire(&self.client, key, self.ttl).await?;
        Ok(lock.map(|lock| Box::new(Own(lock)) as Box<dyn Held>))
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let lock = Lock::try_acquire_with_timeout(&self.client, key, self.ttl, PATIENCE, POLL).await?;
        Ok(Box::new(Own(lock.ok_or("it did not become free")?)))
    }
}

struct Own(Lock);

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        None
    }

    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await?;
        Ok(())
    }
}
