//! The store on Redis.
//!
//! Purpose: leases where Redis runs and MongoDB does not.
//!
//! Mechanism: [`CompareAndSwap`] runs the protocol. [`RedisBackend`] loads a value and the server's clock in one
//! transaction, and swaps it by a script that compares both. The script publishes to the waiters. If replicas must
//! acknowledge the write, the store publishes after that.
//!
//! Invariants: the server runs a script as one step, so no other client changes the key between comparison and write. Each
//! read also deletes a key that never exists. A replica refuses that, so nothing is read from a primary that has become a
//! replica and knows it.

use std::{
    collections::HashMap,
    fmt, mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_core::Stream;
use mongoseal::{
    Error, Key, Result,
    store::{
        Backend, BoxFuture, Capabilities, CompareAndSwap, Connector, Deadline, HandleId, Loaded, LoadedKeys, Store,
        StoreOptions, Swap,
    },
};
use redis::{Client, Value, aio::PubSubStream};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    connections::Connections,
    millis,
    preflight::Server,
    script::{self, Scripts, name},
};

/// How many keys a step of a list visits.
const SCAN_COUNT: usize = 1_000;

/// How often a listener checks that its connection still answers, and how long it waits for that.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A store on Redis, for [`Builder::on_store`](mongoseal::Builder::on_store).
///
/// # Examples
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
///
/// use mongoseal::Mongoseal;
/// use mongoseal_redis::{RedisBackend, RedisStore};
///
/// # async fn open() -> mongoseal::Result<()> {
/// let backend = RedisBackend::new("redis://localhost:6379")?.with_collection("leases")?.with_replicas(1);
/// let store = RedisStore::new(backend, Duration::from_secs(24 * 3600));
/// let seal = Mongoseal::builder().on_store(Arc::new(store))?;
/// # seal.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub type RedisStore = CompareAndSwap<RedisBackend>;

/// A Redis server without cluster mode: what a handle [connects to](mongoseal::Builder::connect_to), and the backend of a
/// [`RedisStore`]. A clone shares its connections.
///
/// A handle that connects to it opens connections of its own, which its thread reads.
///
/// A [sibling](mongoseal::Builder::sibling_of) has the replicas of the other handle. For a handle with other replicas, connect
/// to a clone.
///
/// # Examples
///
/// ```no_run
/// use mongoseal::Mongoseal;
/// use mongoseal_redis::RedisBackend;
///
/// # async fn open() -> mongoseal::Result<()> {
/// let redis = RedisBackend::new("redis://redis0:6379")?.with_replicas(1);
/// let seal = Mongoseal::builder().owner("reporter-3").collection("reports").connect_to(redis).await?;
/// let tenant = Mongoseal::builder().collection("tenant-7").sibling_of(&seal)?;
/// # tenant.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Without async, with the feature `blocking` of `mongoseal`:
///
/// ```no_run
/// use mongoseal::blocking::Mongoseal;
/// use mongoseal_redis::RedisBackend;
///
/// # fn open() -> mongoseal::Result<()> {
/// let seal = Mongoseal::builder().connect_to(RedisBackend::new("redis://redis0:6379")?)?;
/// let lease = seal.acquire("reports/nightly").run()?;
/// # Ok(())
/// # }
/// ```
///
/// # Capabilities
///
/// It cannot do all that MongoDB can, and declares it as its capabilities:
///
/// - `durable_answers` is `false`: Redis replicates after it has answered. If the primary fails, its last writes can be lost.
///   [`with_replicas`](Self::with_replicas) makes that rare.
/// - `linearizable_reads` is `false`: a primary that was replaced, and does not know it yet, answers reads.
/// - `change_streams` is `false` for each store of this kind.
/// - `notifications` is `true`: a change publishes to the handle of the waiter.
///
/// The page `redis` of the guide has what follows from that.
///
/// # Cancel safety
///
/// Dropping the future of a request abandons its answer. The request may still arrive. The connection stays in order,
/// because a task of the driver owns it. If replicas must acknowledge a dropped write, its messages may not be sent, and
/// waiters poll.
#[derive(Clone)]
pub struct RedisBackend {
    connections: Connections,
    scripts: Arc<Scripts>,
    prefix: String,
    replicas: u32,
    /// Whether the log has the warnings about the server.
    has_warned: Arc<AtomicBool>,
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, prefix, replicas, .. } = self;
        let mut fields = f.debug_struct("RedisBackend");
        fields
            .field("connections", connections)
            .field("prefix", prefix)
            .field("replicas", replicas)
            .finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// The first version of Redis that a handle accepts: the major and the minor number.
    pub const MIN_VERSION: (u32, u32) = (6, 2);

    /// The prefix, unless one is named.
    const DEFAULT_PREFIX: &str = "mongoseal";

    /// Makes a backend on the server of a connection string, such as `redis://user:password@host:port/database`. With the
    /// feature `rustls`, the scheme may be `rediss`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the connection string cannot be used.
    pub fn new(uri: impl AsRef<str>) -> Result<Self> {
        let uri = uri.as_ref().trim();
        if !cfg!(feature = "rustls") && (uri.starts_with("rediss:") || uri.starts_with("valkeys:")) {
            return Err(Error::invalid(
                "the Redis connection string needs the cargo feature `rustls` of mongoseal-redis, which is off: turn it on and build again, or use the scheme `redis`",
            ));
        }
        // The driver's error can quote the password.
        let client = Client::open(uri).map_err(|_unusable| {
            Error::invalid(
                "the Redis connection string cannot be used: write it as redis://user:password@host:port/database, with each `:`, `/`, `?`, `#`, `[`, `]`, `@` and `%` of user and password as a percent sign and two digits",
            )
        })?;
        Ok(Self {
            connections: Connections::new(client),
            scripts: Arc::new(Scripts::new()),
            prefix: Self::DEFAULT_PREFIX.to_owned(),
            replicas: 0,
            has_warned: Arc::default(),
        })
    }

    /// Sets the collection: the prefix of its keys and channels, which a colon follows. Default: `mongoseal`.
    /// [`Builder::collection`](mongoseal::Builder::collection) precedes it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is empty, or has a colon, a brace, a quote, a space or a control character.
    pub fn with_collection(mut self, name: impl Into<String>) -> Result<Self> {
        self.prefix = name.into();
        if self.prefix.is_empty()
            || self.prefix.contains(|at: char| ":{}\"'".contains(at) || at.is_whitespace() || at.is_control())
        {
            return Err(Error::invalid(format!(
                "{:?} cannot be a collection on Redis, where it is the prefix of the keys: use letters, digits, `.`, `-` and `_`",
                self.prefix
            )));
        }
        Ok(self)
    }

    /// Sets how many replicas must acknowledge each write, by `WAIT`. Default: none. If fewer do so in time, the request
    /// is not confirmed, and it is retried.
    #[must_use]
    pub fn with_replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// The values of these keys at the server. A key without a text is left out.
    async fn load_values(&self, names: Vec<Vec<u8>>, deadline: Deadline) -> Result<Vec<(String, Vec<u8>)>> {
        let get = names.clone();
        let found: Vec<Option<Vec<u8>>> = self
            .connections
            .send(None, deadline, |mut connection| async move {
                redis::cmd("MGET").arg(get).query_async(&mut connection).await
            })
            .await?;
        let key = |name| String::from_utf8(name).ok()?.strip_prefix(&self.prefix)?.strip_prefix(':').map(str::to_owned);
        Ok(names.into_iter().zip(found).filter_map(|(name, value)| Some((key(name)?, value?))).collect())
    }
}

impl Connector for RedisBackend {
    fn connect(mut self, options: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>> {
        Box::pin(async move {
            if let Some(backend) = self.sibling(&options)? {
                self = backend;
            }
            self.connections = self.connections.others();
            let store: Arc<dyn Store> = Arc::new(RedisStore::new(self, options.retention));
            Ok(store)
        })
    }
}

impl Backend for RedisBackend {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        let backend = self.clone();
        Box::pin(async move {
            let server = backend.connections.send(None, deadline, Server::query).await?;
            server.ensure_fit()?;
            if !backend.has_warned.swap(true, Ordering::Relaxed) {
                server.warn_of_losses();
            }
            Ok(())
        })
    }

    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        let (backend, key) = (self.clone(), key.clone());
        Box::pin(async move {
            let (name, no_key) = (name(&backend.prefix, &key), name(&backend.prefix, ""));
            // The clock stands still within a transaction.
            let request = |mut connection| async move {
                let mut load = redis::pipe();
                load.atomic().cmd("GET").arg(name).cmd("TIME").cmd("DEL").arg(no_key).ignore();
                load.query_async(&mut connection).await
            };
            let (bytes, now): (Option<Vec<u8>>, _) = backend.connections.send(Some(&key), deadline, request).await?;
            Ok(Loaded { bytes, now: time(now) })
        })
    }

    fn swap(&self, mut swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let backend = self.clone();
        Box::pin(async move {
            let (key, scripts, replicas) = (swap.key.clone(), Arc::clone(&backend.scripts), backend.replicas);
            let prefix = backend.prefix;
            if replicas == 0 {
                let swapped = backend.connections.send(Some(&key), deadline, |mut connection| async move {
                    scripts.swap(&prefix, swap).invoke_async(&mut connection).await
                });
                return swapped.await;
            }
            // A waiter acts on a grant as soon as it has the message.
            let publish = script::messages(&prefix, mem::take(&mut swap.publish));
            let swapped = backend.connections.send_alone(&key, deadline, |mut connection| async move {
                let is_done = scripts.swap(&prefix, swap).invoke_async::<bool>(&mut connection).await?;
                if !is_done {
                    return Ok(None);
                }
                // So that its answer arrives before the deadline. Zero is no limit.
                let timeout = deadline.remaining().mul_f64(0.9).max(Duration::from_millis(1));
                let mut wait = redis::cmd("WAIT");
                wait.arg(replicas).arg(millis(timeout));
                wait.query_async::<u32>(&mut connection).await.map(Some)
            });
            match swapped.await? {
                None => Ok(false),
                Some(acknowledged) if acknowledged >= replicas => {
                    if !publish.is_empty() {
                        let request = |mut connection| async move { publish.exec_async(&mut connection).await };
                        // A waiter without its message polls.
                        drop(backend.connections.send(None, deadline, request).await);
                    }
                    Ok(true)
                }
                Some(acknowledged) => Err(Error::unavailable(format!(
                    "the number of replicas of the Redis server that acknowledged the write in time is {acknowledged}, and must be {replicas}: check the replicas, and retry"
                ))),
            }
        })
    }

    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        let backend = self.clone();
        Box::pin(async move {
            let pattern = format!("{}:*", escape(&backend.prefix));
            // A scan can return a key twice.
            let (mut values, mut cursor) = (HashMap::new(), 0);
            loop {
                let pattern = pattern.clone();
                let request = |mut connection| async move {
                    let mut scan = redis::cmd("SCAN");
                    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
                    scan.query_async::<(u64, Vec<Vec<u8>>)>(&mut connection).await
                };
                let (next, names) = backend.connections.send(None, deadline, request).await?;
                if !names.is_empty() {
                    values.extend(backend.load_values(names, deadline).await?);
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
            let now = backend.now(deadline).await?;
            Ok(LoadedKeys { values: values.into_iter().collect(), now })
        })
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<Duration>> {
        let backend = self.clone();
        Box::pin(async move {
            let no_key = name(&backend.prefix, "");
            let request = |mut connection| async move {
                let mut read = redis::pipe();
                read.atomic().cmd("TIME").cmd("DEL").arg(no_key).ignore().query_async(&mut connection).await
            };
            let (now,) = backend.connections.send(None, deadline, request).await?;
            Ok(time(now))
        })
    }

    fn listen(&self, handle: HandleId, messages: UnboundedSender<Vec<u8>>) -> BoxFuture<Result<()>> {
        let backend = self.clone();
        Box::pin(async move {
            let subscribed = backend.connections.subscribe(&name(&backend.prefix, handle)).await?;
            let (mut sink, mut stream) = subscribed.split();
            let ended = || Error::unavailable("the connection for Redis messages ended: it is opened again");
            drop(messages.send(Vec::new()));
            loop {
                tokio::select! {
                    biased;
                    () = messages.closed() => return Ok(()),
                    message = next(&mut stream) => drop(messages.send(message.ok_or_else(ended)?)),
                    () = tokio::time::sleep(PING_INTERVAL) => {
                        let answer = tokio::time::timeout(PING_INTERVAL, sink.ping::<Value>()).await;
                        let is_alive = answer.is_ok_and(|answer| answer.is_ok());
                        if !is_alive {
                            return Err(ended());
                        }
                    }
                }
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::ALL;
        (capabilities.linearizable_reads, capabilities.durable_answers) = (false, false);
        capabilities
    }

    fn sibling(&self, options: &StoreOptions) -> Result<Option<Self>> {
        if options.database.is_some() {
            return Err(Error::invalid(
                "`database` is an option of MongoDB: leave it out, and put the number of a Redis database into the connection string",
            ));
        }
        match &options.collection {
            Some(prefix) if *prefix != self.prefix => self.clone().with_collection(prefix).map(Some),
            _ => Ok(None),
        }
    }

    fn close(&self, _deadline: Deadline) -> BoxFuture<()> {
        self.connections.close();
        Box::pin(async {})
    }
}

/// The next message.
async fn next(stream: &mut PubSubStream) -> Option<Vec<u8>> {
    let message = std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await?;
    Some(message.get_payload_bytes().to_vec())
}

/// The server's time: seconds since the Unix epoch, and microseconds.
fn time((seconds, micros): (u64, u32)) -> Duration {
    Duration::new(seconds, micros.saturating_mul(1_000))
}

/// A text as part of a pattern that means the text itself.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if r"\*?[]^-".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_means_itself_in_a_pattern_and_is_one_part_of_a_key() {
        assert_eq!(escape(r"a*b?c[d]\e"), r"a\*b\?c\[d\]\\e");
        let backend = RedisBackend::new("redis://host").unwrap();
        for bad in ["", "a:b", "{a}", "a\n"] {
            assert!(matches!(backend.clone().with_collection(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
        assert_eq!(backend.with_collection("a*b").unwrap().prefix, "a*b");
    }

    #[cfg(not(feature = "rustls"))]
    #[test]
    fn a_connection_string_with_tls_names_the_feature_that_is_off() {
        let error = RedisBackend::new("rediss://:hunter2@host").unwrap_err().to_string();
        assert!(error.contains("cargo feature `rustls` of mongoseal-redis") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn no_error_and_no_debug_text_has_the_password() {
        let backend = RedisBackend::new("redis://alice:hunter2@host:1").unwrap();
        let shown = format!("{backend:?}");
        assert!(shown.contains("host:1") && !shown.contains("hunter2"), "{shown}");
        for bad in [
            "redis://alice:hunter2@",
            "redis://:hunter2@host:port",
            "hunter2",
            "redis://h/hunter2",
            "redis://a:hunter2%@h",
        ] {
            match RedisBackend::new(bad) {
                Err(error) => assert!(!format!("{error:?}").contains("hunter2"), "{error:?}"),
                Ok(backend) => assert!(!format!("{backend:?}").contains("hunter2"), "{bad}"),
            }
        }
    }
}
