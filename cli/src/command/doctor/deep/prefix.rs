//! The scratch prefix on Redis.

use std::{sync::Arc, time::Duration};

use mongoseal::store::Store;
use mongoseal_redis::{RedisBackend, RedisStore};
use tokio::time::{sleep, timeout};

use super::{CLOSE_TIMEOUT, SCRATCH, Scratch};
use crate::{
    command::{
        finding::Finding,
        redis::{Answer, Lack, Refusal, Server},
    },
    connection::Connection,
    exit_status::Failure,
};

/// How long no key may appear until all are deleted. A request of a requirement that was ended is repeated sooner than that.
const QUIET: Duration = Duration::from_secs(1);

/// The keys with a prefix.
pub(in super::super) struct ScratchPrefix {
    server: Server,
    store: Arc<dyn Store>,
    prefix: String,
}

impl ScratchPrefix {
    pub(in super::super) async fn open(uri: &str, connection: &Connection, prefix: String) -> Result<Self, Failure> {
        let backend = RedisBackend::new(uri)?.with_collection(&prefix)?.with_replicas(connection.redis_replicas());
        let server = Server::open(uri, &prefix, connection.timeout).await;
        let server = server.map_err(|refusal| Failure::invalid(format!("cannot use the server ({refusal}): retry")))?;
        Ok(Self { server, store: Arc::new(RedisStore::new(backend, connection.retention)), prefix })
    }

    /// Deletes the keys until no late request of a requirement has written another.
    async fn delete_all(&self) -> Answer<()> {
        loop {
            self.server.delete_keys().await?;
            sleep(QUIET).await;
            if !self.server.has_keys().await? {
                return Ok(());
            }
        }
    }
}

impl Scratch for ScratchPrefix {
    async fn create(self) -> Result<Self, Finding> {
        let fail = |found: String, advice: String| Err(Finding::fail(SCRATCH, found, advice));
        let keys = self.server.name("*");
        match self.server.has_keys().await {
            Ok(false) => match self.server.attempt(&["SET", &self.server.name(""), "", "XX"]).await {
                Ok(()) => Ok(self),
                Err(Refusal::Denied(Lack::Keys)) => fail(
                    "the user may not use the keys of the requirements".into(),
                    format!("grant ~{keys} and &{keys}, or pass a prefix with --scratch"),
                ),
                Err(refusal) => fail(format!("cannot write a key ({refusal})"), "retry".into()),
            },
            Ok(true) => fail(
                format!("there are keys with the prefix {:?}, and they are left as they are", self.prefix),
                "pass another name with --scratch".into(),
            ),
            Err(Refusal::Denied(Lack::Command)) => fail("the user may not list keys".into(), "grant +scan".into()),
            Err(refusal) => fail(format!("cannot list keys ({refusal})"), "retry".into()),
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn remove(&self) -> Finding {
        match timeout(CLOSE_TIMEOUT, self.delete_all()).await {
            Ok(Ok(())) => Finding::pass(SCRATCH, format!("the keys {} are deleted", self.server.name("*"))),
            Ok(Err(refusal)) => self.left(&refusal.to_string()),
            Err(_elapsed) => self.left("another program writes such keys"),
        }
    }

    fn left(&self, why: &str) -> Finding {
        let found = format!("cannot delete the keys {}, which may be left ({why})", self.server.name("*"));
        Finding::fail(SCRATCH, found, "delete them with redis-cli")
    }
}
