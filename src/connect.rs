//! The front door: the one place that knows both the engine and the stores.

use std::sync::Arc;

use crate::{Builder, Error, Mongoseal, Result, engine::settings::Settings, store::MemoryStore};

impl Mongoseal {
    /// A handle on records in this process, on tokio's clock, for tests, examples and programs that
    /// are alone. It behaves as one on MongoDB does.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with_defaults(Builder::in_memory)
    }

    /// The default settings are valid, which a test holds; so this is where the `Result` ends.
    fn with_defaults(build: impl FnOnce(Builder) -> Result<Self>) -> Self {
        match build(Self::builder()) {
            Ok(seal) => seal,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }
}

impl Builder {
    /// On records in this process.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) where the settings contradict each other.
    pub fn in_memory(self) -> Result<Mongoseal> {
        let store = MemoryStore::new(self.settings()?.retention);
        self.on_store(Arc::new(store))
    }
}

impl Builder {
    /// Makes a sibling of another handle: a handle with settings of its own, on the client of the other. So a process can
    /// have a handle for each of many tenants. Each is shut down by itself; the last one closes the client.
    ///
    /// Siblings on the same collection share their records and one change stream for all their waiters and holders. If a
    /// database or a collection is named, the sibling keeps its records there, and shares the client with the other handle,
    /// but no record. A client that [`connect`](Self::connect) opened has at most 16 change streams, or `maxPoolSize` less 48:
    /// a sibling that finds none left polls, and warns of it.
    ///
    /// Siblings also share the [thread](Self::dedicated_thread), if the other handle has one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other, or if the other handle and all its
    /// siblings were shut down.
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
                "a sibling runs on the threads of the handle that it is made of: set `dedicated_thread` for that one",
            ));
        }
        #[cfg(feature = "mongodb")]
        if self.allow_sharded {
            return Err(Error::invalid(
                "a sibling is on the deployment of the handle that it is made of: set `allow_sharded` for that one",
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

    /// How many connections to a server a client of ours may open at least. Each request is a command of its own, and one
    /// that waits for a locked record keeps its connection; so does each change stream. With the driver's default of 10
    /// they can keep a refresh waiting until its lease is lost.
    const POOL_SIZE: u32 = 64;

    /// How many of them are left to requests: the others may be kept by change streams.
    const REQUESTS: u32 = 48;

    /// The collection of the records where none is named.
    const COLLECTION: &str = "mongoseal";

    impl Mongoseal {
        /// Connects to a MongoDB replica set and checks it, with the default settings.
        ///
        /// The database is the one in the connection string, or `mongoseal`; the collection is
        /// `mongoseal`. The client belongs to the handle, which closes it at
        /// [`shutdown`](Self::shutdown). Concerns, read preference and retries in the connection
        /// string do not count: what the promise needs is set in every command. The client opens up to 64
        /// connections to a server, as requests need them, or `maxPoolSize` of the connection string if that is more. A
        /// `serverSelectionTimeoutMS` that is longer than an attempt is cut short, so that the error says
        /// why no server could be reached.
        ///
        /// Some options of a connection string need a feature of this crate, and the error names the one that is off:
        /// `compressors` needs `zstd-compression`, `zlib-compression` or `snappy-compression`, `authMechanism` `aws-auth`,
        /// `gssapi-auth`, `azure-oidc` or `gcp-oidc`, `proxyHost` `socks5-proxy`, `tlsCertificateKeyFilePassword`
        /// `cert-key-password`, and `mongodb+srv` `dns-resolver`, which is on by default.
        ///
        /// # Errors
        ///
        /// [`Error::Invalid`] where the connection string or the deployment must be changed,
        /// [`Error::Unavailable`] where nobody answered within the operation timeout.
        ///
        /// # Cancel safety
        ///
        /// Dropping it closes the client. The check under way may go on and does no harm.
        pub async fn connect(uri: impl AsRef<str>) -> Result<Self> {
            Self::builder().connect(uri).await
        }

        /// A handle on the collection `mongoseal` of a database, with the default settings, on the
        /// caller's client, which is never closed. The deployment is checked with the first
        /// acquire, or by [`prepare`](Self::prepare).
        ///
        /// A client whose `serverSelectionTimeoutMS` is longer than the operation timeout, as it is
        /// by default, does not come to say why no server could be reached. And a handle that waits, or
        /// has held a lease for a second, keeps one connection of the client's pool for its change
        /// stream, of 10 by default: make many such handles
        /// [siblings](Builder::sibling_of) of one, which share one stream, or give the client a larger `maxPoolSize`.
        #[must_use]
        pub fn new(database: &Database) -> Self {
            Self::with_defaults(|builder| builder.on(database))
        }
    }

    impl Builder {
        /// The database to connect to. Default: the one in the connection string, or `mongoseal`.
        pub fn database(mut self, name: impl Into<String>) -> Self {
            self.database = Some(name.into());
            self
        }

        /// The collection of the records, which should hold nothing else. Default: `mongoseal`.
        pub fn collection(mut self, name: impl Into<String>) -> Self {
            self.collection = Some(name.into());
            self
        }

        /// Accepts a sharded cluster. Default: a sharded cluster is refused with [`Error::Invalid`].
        ///
        /// On a sharded cluster nothing but expiry is promised: see [guarantees](crate::guide::guarantees#sharded-clusters).
        /// It is set for the handle that connects; its siblings follow it.
        pub fn allow_sharded(mut self) -> Self {
            self.allow_sharded = true;
            self
        }

        /// Connects to a MongoDB replica set and checks it. See [`Mongoseal::connect`].
        ///
        /// # Errors
        ///
        /// As [`Mongoseal::connect`], and [`Error::Invalid`] where the settings contradict each
        /// other.
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
            // The client reads its connections where it is made.
            let connected = runtime.spawn(async move { self.connect_here(&uri, Some(thread)).await });
            connected.await.unwrap_or_else(|join| {
                Err(Error::unavailable("the thread of this handle has ended: retry").caused_by(join))
            })
        }

        async fn connect_here(self, uri: &str, thread: Option<Arc<DedicatedThread>>) -> Result<Mongoseal> {
            let settings = self.settings()?;
            let mut options = parse(uri, settings.operation_timeout).await?;
            // Sooner than an attempt gives up, the second at the latest, so that it is the driver who says
            // what is wrong.
            let longest = settings.attempt.min(Duration::from_secs(2)).mul_f64(0.8);
            let selection = options.server_selection_timeout.get_or_insert(longest);
            *selection = longest.min(*selection);
            options.app_name.get_or_insert_with(|| "mongoseal".into());
            let connections = options.max_pool_size.get_or_insert(POOL_SIZE);
            // Zero is no bound.
            if *connections > 0 {
                *connections = POOL_SIZE.max(*connections);
            }
            let connections = *connections;
            let name = self.database.or_else(|| options.default_database.clone());
            let client = Client::with_options(options.clone()).map_err(unusable)?;
            let database = client.database(name.as_deref().unwrap_or("mongoseal"));
            // No bound is zero.
            let streams = connections
                .checked_sub(REQUESTS)
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

        /// On a collection of a database of the caller's client, which is never closed. The
        /// deployment is checked with the first acquire, or by [`Mongoseal::prepare`].
        ///
        /// # Errors
        ///
        /// [`Error::Invalid`] where the settings contradict each other.
        pub fn on(self, database: &Database) -> Result<Mongoseal> {
            if self.database.as_ref().is_some_and(|name| name != database.name()) {
                return Err(Error::invalid(
                    "two databases are lease_refs, one in the settings and one in the call: leave out the one in the settings",
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

    /// Reads a connection string; for `mongodb+srv://` that means to ask a name server.
    async fn parse(uri: &str, within: Duration) -> Result<ClientOptions> {
        let unanswered = || {
            Error::unavailable(
                "the host name in the MongoDB connection string could not be resolved: check the name and the name server, and retry",
            )
        };
        // The driver panics at some that are cut within a letter.
        if !uri.is_ascii() {
            return Err(Error::invalid(
                "the MongoDB connection string has a letter that is not ASCII: write it with a percent sign and two digits for each of its bytes",
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

    /// What is wrong with a connection string, without a word of what may be a password: the driver quotes what it
    /// took for a host.
    async fn misread(uri: &str, error: mongodb::error::Error, within: Duration) -> Error {
        let Some((scheme, rest)) = uri.split_once("://") else { return unusable(error) };
        if let Some((_user_and_password, rest)) = rest.rsplit_once('@') {
            let bare = format!("{scheme}://{rest}");
            return match tokio::time::timeout(within, ClientOptions::parse(bare)).await {
                Ok(Err(error)) => unusable(error),
                Ok(Ok(_)) | Err(_) => Error::invalid(
                    "the user or the password in the MongoDB connection string cannot be read: write `:`, `/`, `?`, `#`, `[`, `]`, `@` and `%` in them with a percent sign and two digits",
                ),
            };
        }
        let hosts = rest.split(['/', '?']).next().unwrap_or(rest);
        if hosts.split(':').skip(1).any(|port| port.contains(|letter: char| letter.is_ascii_alphabetic())) {
            return Error::invalid(
                "the MongoDB connection string has no host, or a port that is no number: it is mongodb://user:password@host:port",
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
        checked(name.unwrap_or_else(|| COLLECTION.into()))
    }

    fn checked(name: String) -> Result<String> {
        if name.is_empty() || name.contains(['$', '\0']) || name.starts_with("system.") {
            return Err(Error::invalid(format!(
                "{name:?} cannot name a collection: use letters, digits, `.`, `-` and `_`"
            )));
        }
        Ok(name)
    }

    /// The store of a sibling on the client of `store`, in the named collection of the named database. `None`: it is `store`.
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
                "the handle has a store without databases and collections: leave them out of the settings of its sibling",
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
