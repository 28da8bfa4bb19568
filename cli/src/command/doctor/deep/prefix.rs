//! The scratch prefix on Redis.

use std::sync::Arc;

use mongoseal::store::Store;
use mongoseal_redis::{RedisBackend, RedisStore};
use tokio::time::{sleep, timeout};

use super::{QUIET, REMOVAL_TIMEOUT, SCRATCH, Scratch};
use crate::{
    command::{
        finding::Finding,
        redis::{Answer, Lack, Refusal, Server},
    },
    connection::Connection,
    exit_status::Failure,
};

/// The keys with a prefix.
struct ScratchPrefix {
    server: Server,
    store: Arc<dyn Store>,
}

/// Chooses the prefix. Fails if there are keys with it.
pub(super) async fn create(
    uri: &str,
    connection: &Connection,
    prefix: String,
) -> Result<impl Scratch + use<>, Finding> {
    let refused = |error: mongoseal::Error| Finding::refused(SCRATCH, &Failure::from(error));
    let backend = RedisBackend::new(uri).and_then(|backend| backend.with_collection(&prefix)).map_err(refused)?;
    let store = Arc::new(RedisStore::new(backend.with_replicas(connection.redis_replicas()), connection.retention));
    let fail = |found: &str, advice: String| Err(Finding::fail(SCRATCH, found, advice));
    let server = match Server::open(uri, &prefix, connection.timeout).await {
        Ok(server) => server,
        Err(refusal) => return fail(&format!("cannot connect ({refusal})"), "retry".into()),
    };
    let keys = server.name("*");
    let is_used = match server.has_keys().await {
        // Whether the user may write one.
        Ok(false) => server.attempt(&["SET", &server.name(""), "", "XX"]).await.map(|()| false),
        read => read,
    };
    match is_used {
        Ok(false) => Ok(ScratchPrefix { server, store }),
        Ok(true) => fail(
            &format!("there are keys with the prefix {prefix:?}, and they are left as they are"),
            "pass another name with --scratch".into(),
        ),
        Err(Refusal::Denied(Lack::Command)) => fail("the user may not list keys", "grant +scan".into()),
        Err(Refusal::Denied(_)) => fail(
            "the user may not use the keys of the requirements",
            format!("grant ~{keys} and &{keys}, or pass a prefix with --scratch"),
        ),
        Err(refusal) => fail(&format!("cannot use the keys {keys} ({refusal})"), "retry".into()),
    }
}

impl ScratchPrefix {
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
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn remove(&self) -> Finding {
        match timeout(REMOVAL_TIMEOUT, self.delete_all()).await {
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
