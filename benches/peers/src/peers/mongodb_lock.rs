//! The crate `mongodb-lock`: a unique index, and a document for each lock.

use std::time::Duration;

use async_trait::async_trait;
use mongodb_lock::{Mutex, MutexGuard, MutexLockError};

use crate::{
    peer::{About, Client, Held, Result, Setup},
    set,
};

/// Where the set is.
pub(super) struct Peer(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "mongodb-lock",
            version: "0.3",
            waits: "attempts each 500 ms, its default",
            lasts: "until it is released: it has no ttl",
            only_waits: None,
            on_mongodb: true,
            note: Some(
                "releases by a drop, which does not wait for the command; a refused attempt sleeps before it says so, \
                 here the 1 ms that is given it",
            ),
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let client = set::client(&self.0, "peers_mongodb_lock", setup).await?;
        let mutex = Mutex::new(&client.database("peers_mongodb_lock"), "locks").await?;
        // Guards borrow it, and go from task to task here.
        Ok(Box::new(Locks(Box::leak(Box::new(mutex)))))
    }
}

struct Locks(&'static Mutex<String>);

#[async_trait]
impl Client for Locks {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        // Without time to try in, it says that time is over before it tries.
        let moment = Duration::from_millis(1);
        match self.0.lock(moment, moment, key.to_owned()).await {
            Ok(guard) => Ok(Some(Box::new(Guard(guard)))),
            Err(MutexLockError::LockTimeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        Ok(Box::new(Guard(self.0.lock_default(key.to_owned()).await?)))
    }
}

struct Guard(MutexGuard<'static, String>);

#[async_trait]
impl Held for Guard {
    fn token(&self) -> Option<u64> {
        None
    }

    async fn release(self: Box<Self>) -> Result<()> {
        drop(self.0);
        Ok(())
    }
}
