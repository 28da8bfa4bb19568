//! How handles are made on a store: in memory, on MongoDB, and as siblings.
//!
//! This is the only module that knows both the engine and a particular store.

use std::sync::Arc;

use crate::{Builder, Error, Mongoseal, Result, engine::settings::Settings, store::MemoryStore};

impl Mongoseal {
    /// Makes a handle on records in this process, on tokio's clock: for tests, examples and programs of one process. It
    /// behaves like a handle on MongoDB.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with_defaults(Builder::in_memory)
    }

    /// A test proves that the default settings are valid, so this cannot fail.
    fn with_defaults(build: impl FnOnce(Builder) -> Result<Self>) -> Self {
        match build(Self::builder()) {
            Ok(seal) => seal,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }
}

impl Builder {
    /// Makes a handle on records in this process.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other.
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
    /// or `maxPoolSize` less 48. If none is left, a sibling polls and logs a warning.
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
        let settings = self.settings()?;
        #[cfg(feature = "mongodb")]
        if let Some(store) = mongo::sibling_store(&*other.shared.context.store, &self, settings.retention)? {
            return Ok(Mongoseal { shared: other.shared.sibling_on(Arc::new(store), settings)? });
        }
        let settings = Settings { retention: other.shared.context.store.retention(), ..settings };
        Ok(Mongoseal { shared: other.shared.sibling(settings)? })
    }
}

#[cfg(feature = "mongodb")]
mod mongo {
    use std::{any::Any, time::Duration};

    use mongodb::{Client, Database, error::ErrorKind, options::ClientOptions};

    use super::{Arc, Builder, Mongoseal, Result};
    use crate::{
        Clock, Deadline, Error,
        engine::{dedicated_thread::DedicatedThread, shared::Shared},
        store::{
            MongoStore, Store,
            mongo::{error::missing_feature, set_name},
        },
    };

    /// How many connections to a server our client may open at least. Each request is a command of its own, and a
    /// request that waits for a locked record keeps its connection, as does each change stream. With the driver's
    /// default of 10, a refresh can wait until its lease is lost.
    const POOL_SIZE: u32 = 64;

    /// How many of the connections are left to requests. Change streams may keep the others.
    const REQUEST_CONNECTIONS: u32 = 48;

    /// The collection of the records, unless one is named.
    const DEFAULT_COLLECTION: &str = "mongoseal";

    impl Mongoseal {
        /// Connects to a MongoDB replica set with the default settings, and checks it.
        ///
        /// The database is that of the connection string, or `mongoseal`. The collection is `mongoseal`. The client
        /// belongs to the handle, and [`shutdown`](Self::shutdown) closes it. Concerns, read preference and retries of
        /// the connection string have no effect: each command sets what the guarantees need. The client opens up to 64
        /// connections to a server as requests need them, or `maxPoolSize` of the connection string if that is more. If
        /// `serverSelectionTimeoutMS` is longer than an attempt, it is shortened, so that the error says why no server
        /// could be reached.
        ///
        /// Some options of a connection string need a feature of this crate, and the error names the one that is off:
        /// `compressors` needs `zstd-compression`, `zlib-compression` or `snappy-compression`, `authMechanism` `aws-auth`,
        /// `gssapi-auth`, `azure-oidc` or `gcp-oidc`, `proxyHost` `socks5-proxy`, `tlsCertificateKeyFilePassword`
        /// `cert-key-password`, and `mongodb+srv` `dns-resolver`, which is on by default.
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

        /// Makes a handle on the collection `mongoseal` of a database, with the default settings. The client stays the
        /// caller's and is never closed. The deployment is checked with the first acquire, or by
        /// [`prepare`](Self::prepare).
        ///
        /// If the client's `serverSelectionTimeoutMS` is longer than the operation timeout, as it is by default, errors
        /// cannot say why no server could be reached.
        ///
        /// A handle that waits, or has held a lease for a second, keeps one connection of the client's pool, of 10 by
        /// default, for its change stream. So make many such handles [siblings](Builder::sibling_of) of one, which
        /// share a stream, or give the client a larger `maxPoolSize`.
        #[must_use]
        pub fn new(database: &Database) -> Self {
            Self::with_defaults(|builder| builder.on(database))
        }
    }

    impl Builder {
        /// Sets the database to connect to. Default: that of the connection string, or `mongoseal`.
        pub fn database(mut self, name: impl Into<String>) -> Self {
            self.database = Some(name.into());
            self
        }

        /// Sets the collection of the records, which should hold nothing else. Default: `mongoseal`.
        pub fn collection(mut self, name: impl Into<String>) -> Self {
            self.collection = Some(name.into());
            self
        }

        /// Accepts a sharded cluster. Default: a sharded cluster is refused with [`Error::Invalid`].
        ///
        /// On a sharded cluster only expiry is guaranteed: see [guarantees](crate::guide::guarantees#sharded-clusters).
        /// Set it on the handle that connects; its siblings follow it.
        pub fn allow_sharded(mut self) -> Self {
            self.allow_sharded = true;
            self
        }

        /// Connects to a MongoDB replica set and checks it. See [`Mongoseal::connect`].
        ///
        /// # Errors
        ///
        /// As [`Mongoseal::connect`], and [`Error::Invalid`] if the settings contradict each other.
        ///
        /// # Cancel safety
        ///
        /// As [`Mongoseal::connect`].
        pub async fn connect(self, uri: impl AsRef<str>) -> Result<Mongoseal> {
            crate::engine::context::ensure_runtime()?;
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
            let settings = self.settings()?;
            let mut options = parse(uri, settings.operation_timeout).await?;
            // Shorter than an attempt, even than the second one, so that the driver's error says what is wrong.
            let longest = settings.attempt.min(Duration::from_secs(2)).mul_f64(0.8);
            let selection = options.server_selection_timeout.get_or_insert(longest);
            *selection = longest.min(*selection);
            options.app_name.get_or_insert_with(|| "mongoseal".into());
            let connections = options.max_pool_size.get_or_insert(POOL_SIZE);
            // Zero is no limit.
            if *connections > 0 {
                *connections = POOL_SIZE.max(*connections);
            }
            let connections = *connections;
            let name = self.database.or_else(|| options.default_database.clone());
            let client = Client::with_options(options.clone()).map_err(unusable)?;
            let database = client.database(name.as_deref().unwrap_or("mongoseal"));
            // Without a limit this is zero.
            let streams = connections
                .checked_sub(REQUEST_CONNECTIONS)
                .map_or(usize::MAX, |streams| usize::try_from(streams).unwrap_or(usize::MAX));
            let collection = collection(self.collection)?;
            let (allow_sharded, attempt) = (self.allow_sharded, settings.attempt);
            let store = MongoStore::with_streams(&database, collection, settings.retention, streams);
            let store = Arc::new(store.with_sharded(allow_sharded));
            let seal = Mongoseal { shared: Shared::new(store, settings, thread)? };
            match seal.prepare().await {
                Ok(()) => Ok(seal),
                Err(error) => {
                    let deadline = Deadline::after(Clock::Boot, attempt);
                    Err(set_name::explain(error, options, allow_sharded, deadline).await)
                }
            }
        }

        /// Makes a handle on a collection of a database. The client stays the caller's and is never closed. The
        /// deployment is checked with the first acquire, or by [`Mongoseal::prepare`].
        ///
        /// # Errors
        ///
        /// [`Error::Invalid`] if the settings contradict each other.
        pub fn on(self, database: &Database) -> Result<Mongoseal> {
            if self.database.as_ref().is_some_and(|name| name != database.name()) {
                return Err(Error::invalid(
                    "two databases are named, one in the settings and one in the call: leave out the one in the settings",
                ));
            }
            if self.dedicated_thread {
                return Err(Error::invalid(
                    "a handle on a client of yours cannot have a thread of its own, because that client reads its connections on your runtime: use `connect`",
                ));
            }
            let settings = self.settings()?;
            let store = MongoStore::new(database, collection(self.collection)?, settings.retention)
                .with_sharded(self.allow_sharded);
            Ok(Mongoseal { shared: Shared::new(Arc::new(store), settings, None)? })
        }
    }

    /// Reads a connection string. For `mongodb+srv://` this queries a name server.
    async fn parse(uri: &str, within: Duration) -> Result<ClientOptions> {
        let unanswered = || {
            Error::unavailable(
                "the host name in the MongoDB connection string could not be resolved: check the name and the name server, and retry",
            )
        };
        // The driver panics on some strings with such characters.
        if !uri.is_ascii() {
            return Err(Error::invalid(
                "the MongoDB connection string has a character that is not ASCII: write each of its bytes as a percent sign and two digits",
            ));
        }
        match tokio::time::timeout(within, ClientOptions::parse(uri)).await {
            Ok(Ok(options)) => Ok(options),
            Ok(Err(error)) if matches!(*error.kind, ErrorKind::DnsResolve { .. } | ErrorKind::Io(_)) => {
                Err(unanswered().caused_by(error))
            }
            Ok(Err(error)) => Err(misread(uri, error, within).await),
            Err(elapsed) => Err(unanswered().caused_by(elapsed)),
        }
    }

    /// Returns what is wrong with a connection string, without any part that may be a password: the driver quotes what
    /// it took for a host.
    async fn misread(uri: &str, error: mongodb::error::Error, within: Duration) -> Error {
        let Some((scheme, rest)) = uri.split_once("://") else { return unusable(error) };
        if let Some((_user_and_password, rest)) = rest.rsplit_once('@') {
            let bare = format!("{scheme}://{rest}");
            return match tokio::time::timeout(within, ClientOptions::parse(bare)).await {
                Ok(Err(error)) => unusable(error),
                Ok(Ok(_)) | Err(_) => Error::invalid(
                    "the user or the password in the MongoDB connection string cannot be read: write each `:`, `/`, `?`, `#`, `[`, `]`, `@` and `%` in them as a percent sign and two digits",
                ),
            };
        }
        let hosts = rest.split(['/', '?']).next().unwrap_or(rest);
        if hosts.split(':').skip(1).any(|port| port.contains(|letter: char| letter.is_ascii_alphabetic())) {
            return Error::invalid(
                "the MongoDB connection string has no host, or its port is not a number: write it as mongodb://user:password@host:port",
            );
        }
        unusable(error)
    }

    fn unusable(error: mongodb::error::Error) -> Error {
        missing_feature(&error)
            .unwrap_or_else(|| Error::invalid("the MongoDB connection string cannot be used: correct it"))
            .caused_by(error)
    }

    /// The collection to use.
    fn collection(name: Option<String>) -> Result<String> {
        checked(name.unwrap_or_else(|| DEFAULT_COLLECTION.into()))
    }

    fn checked(name: String) -> Result<String> {
        if name.is_empty() || name.contains(['$', '\0']) || name.starts_with("system.") {
            return Err(Error::invalid(format!(
                "{name:?} cannot name a collection: use letters, digits, `.`, `-` and `_`"
            )));
        }
        Ok(name)
    }

    /// The store of a sibling on the client of `store`, in the named database and collection. `None`: the sibling uses
    /// `store`.
    pub(super) fn sibling_store(
        store: &dyn Store,
        builder: &Builder,
        retention: Duration,
    ) -> Result<Option<MongoStore>> {
        let Builder { database, collection, .. } = builder;
        if database.is_none() && collection.is_none() {
            return Ok(None);
        }
        let store: &dyn Any = store;
        let Some(store) = store.downcast_ref::<MongoStore>() else {
            return Err(Error::invalid(
                "the handle's store has no databases and collections: leave them out of the settings of its sibling",
            ));
        };
        let collection = collection.clone().map(checked).transpose()?;
        Ok(store.sibling(database.as_deref(), collection.as_deref(), retention))
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
