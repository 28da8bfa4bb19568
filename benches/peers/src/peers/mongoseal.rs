//! This library.

use async_trait::async_trait;
use mongoseal::{Error, Lease, Mongoseal};

use crate::{
    peer::{About, Client, Held, PATIENCE, Result, Setup},
    set,
};

/// Where the set is. Each handle opens a client, as most do.
pub(super) struct Connected(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Connected {
    fn about(&self) -> &About {
        &About {
            name: "mongoseal-connect",
            version: "0.1",
            waits: "a queue at the server and a change stream, its default",
            lasts: "30 s, its default, and is refreshed",
            only_waits: None,
            on_mongodb: true,
            note: Some("`connect` opens a client of up to 64 connections"),
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let options = set::options(&self.0, "peers_mongoseal_connect", setup).await?;
        Ok(Box::new(Handle(Mongoseal::builder().ttl(setup.ttl).connect_with(options).await?)))
    }
}

/// Where the set is. The handles are on clients of ten connections, the driver's default.
pub(super) struct Peer(pub(super) String);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "mongoseal",
            version: "0.1",
            waits: "a queue at the server and a change stream, its default",
            lasts: "30 s, its default, and is refreshed",
            only_waits: None,
            on_mongodb: true,
            note: None,
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let client = set::client(&self.0, "peers_mongoseal", setup).await?;
        let seal = Mongoseal::builder().ttl(setup.ttl).on_shared_client(&client.database("peers_mongoseal"))?;
        seal.prepare().await?;
        Ok(Box::new(Handle(seal)))
    }
}

pub(super) struct Handle(pub(super) Mongoseal);

#[async_trait]
impl Client for Handle {
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>> {
        match self.0.acquire(key).await {
            Ok(lease) => Ok(Some(Box::new(Own(lease)))),
            Err(Error::Held { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        Ok(Box::new(Own(self.0.acquire(key).wait(PATIENCE).await?)))
    }

    async fn close(&self) {
        self.0.shutdown().await;
    }
}

struct Own(Lease);

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        Some(self.0.token().get())
    }

    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await?;
        Ok(())
    }
}
