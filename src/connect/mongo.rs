//! Handles on MongoDB.

use std::{any::Any, sync::Arc, time::Duration};

use mongodb::{Client, Database, error::ErrorKind, options::ClientOptions};
use tracing::warn;

use super::{of_defaults, on_own_thread};
use crate::{
    builder::Builder,
    engine::handle_inner::HandleInner,
    handle::Mongoseal,
    store::{
        MongoStore,
        mongo::{DRIVER_POOL, check_database, checked_collection, error::missing_feature},
        pool::DEFAULT_POOL,
        runtime::Home,
    },
    types::{
        deadline::Deadline,
        error::{Error, Result},
    },
};

/// How many connections to a server our client opens at a time. The driver has no timeout for a handshake: one that
/// falls silent keeps its place until the pool is cleared, and with the driver's default of 2 two of them stop the growth
/// of the pool. An eighth of the pool lets it grow beside seven of them.
const MAX_CONNECTING: u32 = DEFAULT_POOL.div_euclid(8);

/// How long a connection may be unused before the driver closes it. Networks drop unused connections without an error: the
/// load balancers of Azure by default after 4 minutes, those of AWS after 350 seconds, or 60 if they are set to that. The keepalive of the driver comes after 120 seconds. A burst on forgotten connections waits for replies until it
/// fails. A connection that the pool opens again costs a handshake.
const MAX_IDLE_TIME: Duration = Duration::from_secs(50);

/// How long a `connect` that has failed waits for its last requests, before it closes its client.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(30);

/// The collection of the records, unless one is named.
const DEFAULT_COLLECTION: &str = "mongoseal";

impl Mongoseal {
    /// Connects to a MongoDB replica set with the default settings, and checks it.
    ///
    /// The client belongs to the handle, and [`shutdown`](Self::shutdown) closes it.
    ///
    /// The database is that of the connection string, or `mongoseal`. The collection is `mongoseal`.
    /// Concerns, read preference and retries of the connection string have no effect: each command sets what the
    /// guarantees need. The client opens up to 64 connections to a server as requests need them, or `maxPoolSize` of
    /// the connection string if that is more, and up to 8 at a time, or `maxConnecting` of it. It logs a warning of a smaller
    /// `maxPoolSize`. It closes those that were unused for 50 seconds, or `maxIdleTimeMS` of it: a network can have forgotten them. If
    /// `serverSelectionTimeoutMS` is longer than an attempt, it is shortened, so that the error says why no server
    /// could be reached.
    ///
    /// Some options of a connection string need a feature of this crate, and the error names the one that is off:
    /// `compressors` needs `zstd-compression`, `zlib-compression` or `snappy-compression`, `authMechanism` `aws-auth`,
    /// `gssapi-auth`, `azure-oidc` or `gcp-oidc`, `proxyHost` `socks5-proxy`, `tlsCertificateKeyFilePassword`
    /// `cert-key-password`, and `mongodb+srv` `dns-resolver`, which is on by default.
    ///
    /// A connection string of Redis is refused: the package `mongoseal-redis` connects to it. Redis promises less than
    /// MongoDB: see [the guide](crate::guide::redis).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the connection string or the deployment must be changed. [`Error::Unavailable`] if the
    /// store did not answer within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the client and ends the thread. A check that is in flight may go on and does no harm. A task
    /// of the driver can print a panic then, which ends nothing.
    pub async fn connect(uri: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(uri).await
    }

    /// Makes a handle on a client of the caller's, on the collection `mongoseal` of a database, with the default settings. The
    /// client is never closed. The deployment is checked with the first acquire, or by [`prepare`](Self::prepare).
    ///
    /// Prefer [`connect`](Self::connect), which opens a client and a thread for the leases, and [`client`](Self::client)
    /// returns that client. This handle shares the caller's runtime: work that blocks all its threads stops the refreshes. It
    /// shares the connections, 10 by default: slow queries delay refreshes, and each handle that waits or holds keeps one of
    /// them for its change stream, so make [siblings](Builder::sibling_of), or set a larger `maxPoolSize` and
    /// [`Builder::connections`]. And it shares the options, so set what `connect` sets. `maxAdaptiveRetries=0`: otherwise the
    /// driver resends a command to an overloaded server, and an acquire can be granted after it was taken back.
    /// `maxConnecting=8`: otherwise two connections that hang while they open stop all others. `maxIdleTimeMS=50000` behind a
    /// [load balancer or NAT](crate::guide::services#behind-a-load-balancer-or-nat). `serverSelectionTimeoutMS` below the
    /// operation timeout: otherwise errors cannot say why no server could be reached.
    #[must_use]
    pub fn on_shared_client(database: &Database) -> Self {
        of_defaults(Self::builder().on_shared_client(database))
    }

    /// Returns the MongoDB client of the handle, for collections that belong to its leases: what is written in a
    /// [transaction](crate::Lease::transaction) must be of this client. `None`: the handle is in memory, or on another store.
    ///
    /// If [`connect`](Self::connect) opened the client, [`shutdown`](Self::shutdown) closes it. Without a shutdown it outlives
    /// the handle, and so does the handle's thread, which reads its connections: until the process ends.
    #[must_use]
    pub fn client(&self) -> Option<Client> {
        let store: &dyn Any = &*self.handle.context.store;
        let client = store.downcast_ref::<MongoStore>()?.context.client();
        self.handle.context.home.lend(true);
        Some(client)
    }
}

impl Builder {
    /// Connects to a MongoDB replica set, and checks it. See [`Mongoseal::connect`].
    ///
    /// # Errors
    ///
    /// As [`Mongoseal::connect`], and [`Error::Invalid`] if the settings contradict each other.
    ///
    /// # Cancel safety
    ///
    /// As [`Mongoseal::connect`].
    pub async fn connect(self, uri: impl AsRef<str>) -> Result<Mongoseal> {
        let uri = uri.as_ref().to_owned();
        on_own_thread(|home| self.connect_on(uri, home)).await
    }

    /// Connects with options of the driver, as [`connect`](Self::connect) does with a connection string. It opens a client
    /// of its own, which [`Mongoseal::client`] returns, with the options that `connect` changes.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`Mongoseal::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use mongoseal::{Mongoseal, mongodb::{bson::Document, options::ClientOptions}};
    ///
    /// # async fn connect() -> mongoseal::Result<()> {
    /// let mut options = ClientOptions::parse("mongodb://db0,db1,db2/shop?replicaSet=rs0").await.expect("it is valid");
    /// options.app_name = Some("orders".into());
    /// let seal = Mongoseal::builder().connect_with(options).await?;
    /// // For writes under a fence and transactions under a lease.
    /// let client = seal.client().expect("it is on MongoDB");
    /// let orders = client.database("shop").collection::<Document>("orders");
    /// # drop(orders);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(self, options: ClientOptions) -> Result<Mongoseal> {
        on_own_thread(|home| self.open_on(options, home)).await
    }

    /// Connects, and makes a handle whose tasks run on this home, where the future must run.
    pub(crate) async fn connect_on(self, uri: String, home: Arc<Home>) -> Result<Mongoseal> {
        // The newline at the end of a file would become a part of the last option.
        let uri = uri.trim();
        refuse_redis(uri)?;
        let options = parse(uri, self.settings()?.operation_timeout).await?;
        self.open_on(options, home).await
    }

    /// Opens a client, and makes a handle whose tasks run on this home, where the future must run.
    pub(crate) async fn open_on(self, mut options: ClientOptions, home: Arc<Home>) -> Result<Mongoseal> {
        let settings = self.settings()?;
        self.refuse("with `connect`, whose client has the `maxPoolSize` of the connection string", &["connections"])?;
        let connections = complete(&mut options, settings.attempt);
        let name = self.options.database.or_else(|| options.default_database.clone());
        name.as_deref().map_or(Ok(()), check_database)?;
        let client = Client::with_options(options).map_err(unusable)?;
        let database = client.database(name.as_deref().unwrap_or("mongoseal"));
        let collection = collection(self.options.collection)?;
        let store = MongoStore::owning(&database, collection, settings.retention, connections);
        let store = Arc::new(if self.options.allow_sharded { store.allow_sharded() } else { store });
        let seal = Mongoseal { handle: HandleInner::new(store, settings, home)? };
        if let Err(error) = seal.prepare().await {
            let context = &seal.handle.context;
            context.store.close(Deadline::after(context.clock(), CLOSE_TIMEOUT)).await;
            return Err(error);
        }
        Ok(seal)
    }

    /// Makes a handle on a collection of a database, on a client of the caller's: see [`Mongoseal::on_shared_client`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the settings contradict each other.
    pub fn on_shared_client(self, database: &Database) -> Result<Mongoseal> {
        if self.options.database.as_ref().is_some_and(|name| name != database.name()) {
            return Err(Error::invalid(
                "two databases are named, one in the settings and one in the call: leave out the one in the settings",
            ));
        }
        let (settings, connections) = (self.settings()?, bounded(self.options.connections.unwrap_or(DRIVER_POOL)));
        let collection = collection(self.options.collection)?;
        let home = Home::here();
        let store = MongoStore::of_caller(database, collection, settings.retention, Arc::clone(&home), connections);
        let store = if self.options.allow_sharded { store.allow_sharded() } else { store };
        Ok(Mongoseal { handle: HandleInner::new(Arc::new(store), settings, home)? })
    }
}

impl<M> Builder<M> {
    /// Accepts a sharded cluster. Default: a sharded cluster is refused with [`Error::Invalid`].
    ///
    /// On a sharded cluster only expiry is guaranteed: see [sharded clusters](crate::guide::sharded).
    /// Set it on the handle that connects; its siblings follow it.
    pub fn allow_sharded(mut self) -> Self {
        self.options.allow_sharded = true;
        self
    }

    /// Sets how many connections the caller's client opens to a server at most: its `maxPoolSize`, which a client does
    /// not show. Zero is no limit. Default: 10, as the driver's.
    ///
    /// A quarter of them is for refreshes and releases, or one of fewer than 16. The others are for acquires, reads and change
    /// streams. If the pool is smaller than this, acquires of records that a transaction has locked can cost the handle its
    /// leases. If it is larger, fewer requests are under way than could be.
    ///
    /// Siblings share these connections. Give handles on one client that are no siblings, and requests of yours on that client,
    /// connections of their own: `maxPoolSize` must be the sum.
    ///
    /// For a handle on a client of the caller's: see [`on_shared_client`](Self::on_shared_client). [`connect`](Self::connect) opens its own client
    /// and reads `maxPoolSize` from the connection string.
    pub fn connections(mut self, many: u32) -> Self {
        self.options.connections = Some(many);
        self
    }
}

/// Refuses a connection string with a scheme of Redis or of Valkey.
fn refuse_redis(uri: &str) -> Result<()> {
    let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
    if matches!(scheme, Some("redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix")) {
        return Err(Error::invalid(
            "`connect` is for MongoDB, and the connection string is for Redis: add the package `mongoseal-redis`, and call `mongoseal_redis::connect` or `Builder::connect_to`",
        ));
    }
    Ok(())
}

/// How many connections a pool with this `maxPoolSize` opens at most. Zero is no limit.
fn bounded(max_pool_size: u32) -> u32 {
    if max_pool_size == 0 { u32::MAX } else { max_pool_size }
}

/// Sets what the connection string leaves to us. Returns how many connections the pool opens at most.
fn complete(options: &mut ClientOptions, attempt: Duration) -> u32 {
    // Shorter than an attempt, even than the second one, so that the driver's error says what is wrong.
    let longest = attempt.min(Duration::from_secs(2)).mul_f64(0.8);
    let selection = options.server_selection_timeout.get_or_insert(longest);
    *selection = longest.min(*selection);
    options.app_name.get_or_insert_with(|| "mongoseal".into());
    options.max_connecting.get_or_insert(MAX_CONNECTING);
    options.max_idle_time.get_or_insert(MAX_IDLE_TIME);
    // A command that the driver resends by itself can arrive after the engine has taken its request back.
    options.max_adaptive_retries = Some(0);
    // Each request is a command of its own, and one that waits for a locked record keeps its connection, as does
    // each change stream. The driver's default of 10 leaves little for either.
    let connections = options.max_pool_size.get_or_insert(DEFAULT_POOL);
    // Zero is no limit.
    if (1..DEFAULT_POOL).contains(connections) {
        warn!(
            max_pool_size = *connections,
            "the connection string has a maxPoolSize below 64, so the client opens up to 64 connections to each server: to bound a process to fewer, pass a client of yours to Mongoseal::on_shared_client"
        );
        *connections = DEFAULT_POOL;
    }
    bounded(*connections)
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
        Ok(Err(error)) if is_unfit_answer(&error) => Err(Error::invalid(
            "the name server's answer for the host name of `mongodb+srv` cannot be used: let the servers be in the domain of that name, with the same letter case and without a dot at its end, and correct its TXT record",
        )
        .caused_by(error)),
        Ok(Err(error)) if matches!(*error.kind, ErrorKind::DnsResolve { .. } | ErrorKind::Io(_)) => {
            Err(unanswered().caused_by(error))
        }
        Ok(Err(error)) => Err(misread(uri, error, within).await),
        Err(elapsed) => Err(unanswered().caused_by(elapsed)),
    }
}

/// Whether a name server has answered, and the driver refuses the answer. The driver has one kind of error for all failures of
/// a look-up.
fn is_unfit_answer(error: &mongodb::error::Error) -> bool {
    let ErrorKind::DnsResolve { message, .. } = &*error.kind else { return false };
    message.contains("does not match domain name") || message.starts_with("TXT ")
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
    checked_collection(name.unwrap_or_else(|| DEFAULT_COLLECTION.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn completed(options: &str) -> ClientOptions {
        let mut parsed = parse(&format!("mongodb://db0/?{options}"), Duration::from_secs(10)).await.unwrap();
        complete(&mut parsed, Duration::from_secs(5));
        parsed
    }

    /// The change stream keeps a connection.
    #[tokio::test]
    async fn a_pool_of_the_connection_string_that_is_too_small_is_raised() {
        for size in [1, 63, 64, 100] {
            let used = completed(&format!("maxPoolSize={size}")).await.max_pool_size;
            assert_eq!(used, Some(size.max(64)));
        }
        let mut unlimited = completed("").await;
        unlimited.max_pool_size = Some(0);
        assert_eq!(complete(&mut unlimited, Duration::from_secs(5)), u32::MAX);
        assert_eq!(unlimited.max_pool_size, Some(0), "zero is no limit");
    }

    #[tokio::test]
    async fn connections_that_a_network_may_have_forgotten_are_closed_unless_the_string_says_when() {
        for (options, longest) in [("", 50_000), ("maxIdleTimeMS=1500", 1_500), ("maxIdleTimeMS=0", 0)] {
            assert_eq!(completed(options).await.max_idle_time, Some(Duration::from_millis(longest)), "{options}");
        }
    }
}
