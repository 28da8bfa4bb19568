//! What people write themselves: `find_one_and_update` until it succeeds.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use mongodb::{
    Collection,
    bson::{DateTime, Document, doc},
    error::{Error, ErrorKind},
};

use crate::{
    peer::{About, Client, Held, POLL, Result, Setup},
    set,
};

/// Where the set is.
pub(super) struct Peer(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "poll loop",
            version: "-",
            waits: "attempts each 10 ms",
            lasts: "30 s by the client's wall clock, and nobody refreshes",
            only_waits: None,
            on_mongodb: true,
            note: None,
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let client = set::client(&self.0, "peers_poll_loop", setup).await?;
        let owner = format!("owner {}", COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(Box::new(Polling { locks: client.database("peers_poll_loop").collection("locks"), owner, ttl: setup.ttl }))
    }
}

struct Polling {
    locks: Collection<Document>,
    owner: String,
    ttl: Duration,
}

#[async_trait]
impl Client for Polling {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        let now = DateTime::now();
        let until = DateTime::from_millis(now.timestamp_millis() + i64::try_from(self.ttl.as_millis())?);
        // Where it is held the filter finds nothing, and the insert finds the key taken.
        let filter = doc! { "_id": key, "expires_at": { "$lte": now } };
        let update = doc! { "$set": { "owner": &self.owner, "expires_at": until } };
        match self.locks.find_one_and_update(filter, update).upsert(true).await {
            Ok(_) => Ok(Some(Box::new(Own { locks: self.locks.clone(), key: key.into(), owner: self.owner.clone() }))),
            Err(error) if is_duplicate(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        loop {
            if let Some(held) = self.attempt(key).await? {
                return Ok(held);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn is_duplicate(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(failed) if failed.code == 11000)
}

struct Own {
    locks: Collection<Document>,
    key: String,
    owner: String,
}

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        None
    }

    async fn release(self: Box<Self>) -> Result<()> {
        self.locks.delete_one(doc! { "_id": &self.key, "owner": &self.owner }).await?;
        Ok(())
    }
}
