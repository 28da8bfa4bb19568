//! Handles on Redis.

use std::{sync::Arc, time::Duration};

use crate::{
    Builder, Mongoseal, Result,
    engine::{owned_runtime::DedicatedThread, shared::Shared},
    store::{RedisBackend, RedisStore, Store},
};

impl Builder {
    /// Sets how many replicas of a Redis server must acknowledge each write, by `WAIT`. Default: none.
    ///
    /// If fewer acknowledge it in time, the request is not confirmed, and it is retried. So a lease needs that many live
    /// replicas, and costs a round trip to them. It makes the loss of a lease in a failover rare, and does not rule it out:
    /// see [the guide](crate::guide::redis).
    pub fn redis_replicas(mut self, count: u32) -> Self {
        self.redis_replicas = Some(count);
        self
    }

    /// Connects on this runtime, which is that of the thread if there is one.
    pub(super) async fn connect_redis(self, uri: &str, thread: Option<Arc<DedicatedThread>>) -> Result<Mongoseal> {
        let settings = self.settings()?;
        #[cfg(feature = "mongodb")]
        self.refuse_connections()?;
        #[cfg(feature = "mongodb")]
        if self.database.is_some() || self.allow_sharded {
            return Err(crate::Error::invalid(
                "`database` and `allow_sharded` are options of MongoDB: leave them out, and put the number of a Redis database into the connection string",
            ));
        }
        let runtime = thread.as_ref().map(|thread| thread.runtime().clone());
        let backend = configured(RedisBackend::on_runtime(uri, runtime)?, &self)?;
        let store = Arc::new(RedisStore::new(backend, settings.retention));
        let seal = Mongoseal { shared: Shared::new(store, settings, thread)? };
        seal.prepare().await?;
        Ok(seal)
    }
}

/// The backend with the builder's settings.
fn configured(mut backend: RedisBackend, builder: &Builder) -> Result<RedisBackend> {
    if let Some(prefix) = &builder.collection {
        backend = backend.with_collection(prefix)?;
    }
    Ok(match builder.redis_replicas {
        Some(count) => backend.with_replicas(count),
        None => backend,
    })
}

/// The store of a sibling on the connections of `store`, with the builder's prefix and replicas. `None`: the sibling uses
/// `store`.
pub(super) fn sibling_store(
    store: &RedisStore,
    builder: &Builder,
    retention: Duration,
) -> Result<Option<Arc<dyn Store>>> {
    #[cfg(feature = "mongodb")]
    if builder.database.is_some() {
        return Err(crate::Error::invalid(
            "`database` is an option of MongoDB: leave it out of the settings of the sibling",
        ));
    }
    if builder.collection.is_none() && builder.redis_replicas.is_none() {
        return Ok(None);
    }
    let backend = configured(store.backend().clone(), builder)?;
    Ok(Some(Arc::new(RedisStore::new(backend, retention))))
}
