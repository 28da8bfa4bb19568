//! etcd, by the crate `etcd-client`: the cluster's own lock, under a lease that the client keeps alive.

use async_trait::async_trait;
use etcd_client::LockOptions;
use mongoseal_test_support::Etcd;
use tokio_util::task::AbortOnDropHandle;

use crate::peer::{About, Client, Held, Result, Setup};

/// The cluster.
pub(super) struct Peer(pub(super) Etcd);

#[async_trait]
impl crate::peer::Peer for Peer {
    fn about(&self) -> &About {
        &About {
            name: "etcd",
            version: "0.21",
            waits: "a queue of keys and a watch, at the server",
            lasts: "30 s: the ttl is the caller's, and who refreshes the lease is the caller",
            only_waits: Some("its lock cannot be asked for without waiting"),
            on_mongodb: false,
            note: Some("on three members of its own; one lease for each client, refreshed here at a third of its ttl"),
        }
    }

    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>> {
        let mut client = etcd_client::Client::connect(self.0.urls(), None).await?;
        let lease = client.lease_grant(i64::try_from(setup.ttl.as_secs())?, None).await?.id();
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
        let third = setup.ttl / 3;
        let kept = tokio::spawn(async move {
            while keeper.keep_alive().await.is_ok() && answers.message().await.is_ok() {
                tokio::time::sleep(third).await;
            }
        });
        Ok(Box::new(Session { client, lease, _kept: AbortOnDropHandle::new(kept) }))
    }
}

struct Session {
    client: etcd_client::Client,
    lease: i64,
    _kept: AbortOnDropHandle<()>,
}

#[async_trait]
impl Client for Session {
    async fn attempt(&self, _key: &str) -> Result<Option<Box<dyn Held>>> {
        Err("its lock cannot be asked for without waiting".into())
    }

    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let mut client = self.client.clone();
        let granted = client.lock(key, Some(LockOptions::new().with_lease(self.lease))).await?;
        let revision = granted.header().map(etcd_client::ResponseHeader::revision);
        let key = granted.key().to_vec();
        Ok(Box::new(Own { client, key, revision: revision.map(u64::try_from).transpose()? }))
    }

    async fn close(&self) {
        // A lease that nobody ends stays until its ttl is over, which does no harm.
        self.client.clone().lease_revoke(self.lease).await.ok();
    }
}

struct Own {
    client: etcd_client::Client,
    key: Vec<u8>,
    /// That of the cluster when the lock was granted: it only grows.
    revision: Option<u64>,
}

#[async_trait]
impl Held for Own {
    fn token(&self) -> Option<u64> {
        self.revision
    }

    async fn release(mut self: Box<Self>) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        self.client.unlock(key).await?;
        Ok(())
    }
}
