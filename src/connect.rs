//! How handles are made on a store: in memory, on MongoDB, on Redis, and as siblings.
//!
//! This is the only module that knows both the engine and a particular store.

#[cfg(feature = "mongodb")]
mod mongo;
#[cfg(feature = "redis")]
mod redis;

use std::sync::Arc;
#[cfg(any(feature = "mongodb", feature = "redis"))]
use std::{any::Any, time::Duration};

#[cfg(any(feature = "mongodb", feature = "redis"))]
use crate::engine::{context::ensure_runtime, owned_runtime::DedicatedThread};
use crate::{
    Builder, Error, Mongoseal, Result, Ttl,
    engine::settings::Settings,
    store::{MemoryStore, Store},
};

impl Mongoseal {
    /// Makes a handle on records of its own in this process: a second call makes a handle that neither sees nor excludes the
    /// leases of the first. For two handles that exclude each other, as two processes on MongoDB do, use
    /// [`in_memory_on`](Self::in_memory_on).
    ///
    /// It is for tests, examples and programs of one process. It has tokio's clock, which a test can pause.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::in_memory_on(&MemoryStore::default())
    }

    /// Makes a handle on the records of a store in this process. Handles on one store behave like processes on one
    /// collection.
    ///
    /// The ttl is the default of a handle, 30 seconds, or the retention of the store if that is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Error, Mongoseal, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let store = MemoryStore::default();
    /// let (alice, bob) = (Mongoseal::in_memory_on(&store), Mongoseal::in_memory_on(&store));
    /// let lease = alice.acquire("reports/nightly").await?;
    /// assert!(matches!(bob.acquire("reports/nightly").await, Err(Error::Held { .. })));
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory_on(store: &MemoryStore) -> Self {
        let ttl = Ttl::DEFAULT.duration().min(Store::retention(store));
        match Self::builder().ttl(ttl).on_store(Arc::new(store.clone())) {
            Ok(seal) => seal,
            // A test proves that the default settings are valid, also with the shortest retention.
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }
}

impl Builder {
    /// Makes a handle on records of its own in this process: see [`Mongoseal::in_memory`]. For handles that exclude each
    /// other, pass clones of one [`MemoryStore`] to [`on_store`](Self::on_store).
    ///
    /// # Errors
    ///
    /// As [`on_store`](Self::on_store).
    pub fn in_memory(self) -> Result<Mongoseal> {
        let store = MemoryStore::new(self.settings()?.retention);
        self.on_store(Arc::new(store))
    }
}

impl Builder {
    /// Makes a sibling of another handle: a handle with settings of its own on the other's client. So a process can
    /// have a handle for each of many tenants. Each sibling is shut down by itself, and the last one closes the client.
    ///
    /// Siblings on the same collection share its records, and one change stream for all their waiters and holders. If
    /// this builder names a database or a collection, the sibling keeps its records there: it shares the client with
    /// the other handle, but no record. A client that [`connect`](Self::connect) opened has at most 16 change streams,
    /// or half of a larger `maxPoolSize` less 16. If none is left, a sibling polls and logs a warning. On Redis each sibling that waits or
    /// holds has a connection for its messages.
    ///
    /// Siblings also share the [thread](Self::dedicated_thread), if the other handle has one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other, or if the other handle and all
    /// its siblings were shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let tenant = Mongoseal::builder().owner("tenant-7").sibling_of(&seal)?;
    /// let lease = tenant.acquire("tenant-7/import").await?;
    /// tenant.shutdown().await;
    /// assert!(!lease.is_valid());
    /// seal.acquire("tenant-7/import").await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On MongoDB a tenant can have a collection of its own:
    ///
    /// ```no_run
    /// use mongoseal::Mongoseal;
    ///
    /// # async fn tenant() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::connect("mongodb://localhost:27017").await?;
    /// let tenant = Mongoseal::builder().collection("tenant_7").sibling_of(&seal)?;
    /// # tenant.acquire("import").await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sibling_of(self, other: &Mongoseal) -> Result<Mongoseal> {
        if self.dedicated_thread {
            return Err(Error::invalid(
                "a sibling runs on the threads of the other handle: set `dedicated_thread` on that handle",
            ));
        }
        #[cfg(feature = "mongodb")]
        if self.allow_sharded {
            return Err(Error::invalid(
                "a sibling is on the deployment of the other handle: set `allow_sharded` on that handle",
            ));
        }
        #[cfg(feature = "mongodb")]
        self.refuse_connections()?;
        let settings = self.settings()?;
        #[cfg(any(feature = "mongodb", feature = "redis"))]
        if let Some(store) = sibling_store(&*other.shared.context.store, &self, settings.retention)? {
            return Ok(Mongoseal { shared: other.shared.sibling_on(store, settings)? });
        }
        let retention = other.shared.context.store.retention();
        self.ensure_retention(retention)?;
        Ok(Mongoseal { shared: other.shared.sibling(Settings { retention, ..settings })? })
    }
}

#[cfg(any(feature = "mongodb", feature = "redis"))]
impl Mongoseal {
    /// Connects to a MongoDB replica set, or to a Redis server, with the default settings, and checks it. The scheme of the
    /// connection string chooses: `mongodb` and `mongodb+srv`, or `redis` and `rediss`. Each needs its feature, and
    /// `rediss` the feature `redis-rustls`.
    ///
    /// The client belongs to the handle, and [`shutdown`](Self::shutdown) closes it.
    ///
    /// **On MongoDB** the database is that of the connection string, or `mongoseal`. The collection is `mongoseal`.
    /// Concerns, read preference and retries of the connection string have no effect: each command sets what the
    /// guarantees need. The client opens up to 64 connections to a server as requests need them, or `maxPoolSize` of the
    /// connection string if that is more, and up to 8 at a time, or `maxConnecting` of it. If `serverSelectionTimeoutMS` is longer than an attempt, it is shortened, so that
    /// the error says why no server could be reached.
    ///
    /// Some options of a connection string need a feature of this crate, and the error names the one that is off:
    /// `compressors` needs `zstd-compression`, `zlib-compression` or `snappy-compression`, `authMechanism` `aws-auth`,
    /// `gssapi-auth`, `azure-oidc` or `gcp-oidc`, `proxyHost` `socks5-proxy`, `tlsCertificateKeyFilePassword`
    /// `cert-key-password`, and `mongodb+srv` `dns-resolver`, which is on by default.
    ///
    /// **On Redis** the keys begin with `mongoseal:`. Redis promises less than MongoDB: see
    /// [the guide](crate::guide::redis).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the connection string or the deployment must be changed. [`Error::Unavailable`] if the
    /// store did not answer within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the client. A check that is in flight may go on and does no harm.
    pub async fn connect(uri: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(uri).await
    }
}

#[cfg(any(feature = "mongodb", feature = "redis"))]
impl Builder {
    /// Sets the collection of the records, which should hold nothing else. On Redis it is the prefix of the keys. Default:
    /// `mongoseal`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.collection = Some(name.into());
        self
    }

    /// Connects to a MongoDB replica set or to a Redis server, and checks it. See [`Mongoseal::connect`].
    ///
    /// # Errors
    ///
    /// As [`Mongoseal::connect`], and [`Error::Invalid`] if the settings contradict each other.
    ///
    /// # Cancel safety
    ///
    /// As [`Mongoseal::connect`].
    pub async fn connect(self, uri: impl AsRef<str>) -> Result<Mongoseal> {
        ensure_runtime()?;
        if !self.dedicated_thread {
            return self.connect_here(uri.as_ref(), None).await;
        }
        let thread = Arc::new(DedicatedThread::start()?);
        let (runtime, uri) = (thread.runtime().clone(), uri.as_ref().to_owned());
        // The client reads its connections on the runtime where it is made.
        let connected = runtime.spawn(async move { self.connect_here(&uri, Some(thread)).await });
        connected.await.unwrap_or_else(|join| {
            Err(Error::unavailable("the thread of this handle has ended: retry").caused_by(join))
        })
    }

    async fn connect_here(self, uri: &str, thread: Option<Arc<DedicatedThread>>) -> Result<Mongoseal> {
        // Boxed, because a future is as large as the largest that it awaits.
        // A text that is no connection string gets the error of a store that this build has.
        if is_redis(uri) || (cfg!(not(feature = "mongodb")) && !uri.starts_with("mongodb")) {
            Box::pin(self.connect_redis(uri, thread)).await
        } else {
            Box::pin(self.connect_mongodb(uri, thread)).await
        }
    }

    #[cfg(not(feature = "mongodb"))]
    #[allow(clippy::unused_async, reason = "as with the feature")]
    async fn connect_mongodb(self, _uri: &str, _thread: Option<Arc<DedicatedThread>>) -> Result<Mongoseal> {
        Err(missing_store("MongoDB", "mongodb"))
    }

    #[cfg(not(feature = "redis"))]
    #[allow(clippy::unused_async, reason = "as with the feature")]
    async fn connect_redis(self, _uri: &str, _thread: Option<Arc<DedicatedThread>>) -> Result<Mongoseal> {
        Err(missing_store("Redis", "redis"))
    }
}

/// Whether a connection string has a scheme of Redis or of Valkey.
#[cfg(any(feature = "mongodb", feature = "redis"))]
fn is_redis(uri: &str) -> bool {
    let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
    matches!(scheme, Some("redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix"))
}

/// The error of a connection string for a store that this build does not have.
#[cfg(any(all(feature = "mongodb", not(feature = "redis")), all(feature = "redis", not(feature = "mongodb"))))]
fn missing_store(product: &str, feature: &str) -> Error {
    Error::invalid(format!(
        "a connection string of {product} needs the cargo feature `{feature}` of mongoseal, which is off: turn it on and build again, or connect to another store"
    ))
}

/// The store of a sibling on what `store` has opened, in the place that the builder names. `None`: the sibling uses `store`.
#[cfg(any(feature = "mongodb", feature = "redis"))]
fn sibling_store(store: &dyn Store, builder: &Builder, retention: Duration) -> Result<Option<Arc<dyn Store>>> {
    let any: &dyn Any = store;
    #[cfg(feature = "mongodb")]
    if let Some(store) = any.downcast_ref() {
        return mongo::sibling_store(store, builder, retention);
    }
    #[cfg(feature = "redis")]
    if let Some(store) = any.downcast_ref() {
        return redis::sibling_store(store, builder, retention);
    }
    match builder.option_of_a_server() {
        Some(option) => Err(Error::invalid(format!(
            "the handle is not on a server: leave `{option}` out of the settings of its sibling"
        ))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_settings_are_valid() {
        assert!(Mongoseal::builder().settings().is_ok());
    }
}
