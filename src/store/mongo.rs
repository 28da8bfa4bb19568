//! Records in a MongoDB collection.
//!
//! Purpose: leases that a majority of a replica set has confirmed, timed by the server's clock.
//!
//! Mechanism: each request is one command, an update with a pipeline that runs the state machine at the server. A
//! request passes through `send.rs`, `execute.rs` and the driver.
//!
//! Invariant: no command depends on the clock of a client, and each can be sent again.
//!
//! A file uses files of lines above its own only:
//!
//! | file | contains |
//! |---|---|
//! | `state/admission.rs` | the bound of the requests that are under way |
//! | `state/client.rs` | the client, which stores may share |
//! | `limits.rs` | time limits of commands |
//! | `task.rs` | tasks that send commands |
//! | `token.rs` | a token as a number of a document |
//! | `document.rs` | the record as a document: projections and decoding |
//! | `expression.rs` | expressions that several pipelines and filters have |
//! | `update_description.rs` | applies the difference in a change event to a document |
//! | `product.rs` | other products that speak MongoDB's protocol |
//! | `operation.rs` | the operations: requests that share a pipeline and a projection |
//! | `pipeline.rs` | the state machine as an update pipeline |
//! | `error.rs` | what each error of the driver means |
//! | `command.rs` | commands whose larger part is encoded once |
//! | `stream_error.rs` | why a change stream has ended |
//! | `state/subscribers.rs` | the subscribers of records |
//! | `state/known_keys.rs` | what the last answers said of keys |
//! | `fast_path/pipeline.rs` | the pipelines of the fast path |
//! | `state/index.rs` | whether the TTL index may be missing |
//! | `context.rs` | what the requests of a store share, and how a command is sent |
//! | `fast_path.rs` | acquires of free keys, and releases of keys without waiters |
//! | `execute.rs` | sending a request and reading its answer |
//! | `send.rs` | how the requests of a key are sent: alone, or several as one command |
//! | `transaction.rs` | writing a lease's record in a transaction of the caller |
//! | `batch.rs` | requests for many leases |
//! | `list.rs` | lists of the leases of many keys |
//! | `index.rs` | the TTL index |
//! | `watch.rs` | notifications of a handle: [`Store::notifications`] |
//! | `follow/streams.rs` | change streams, one after the other, which together leave out no change |
//! | `follow/shared_stream.rs` | the change stream that all subscribers share |
//! | `follow.rs` | the changes of the record of a key, or of the records of a prefix: [`Store::follow`] |
//! | `preflight.rs` | checks of the deployment before the first request |
//! | `mongo.rs` | the store |

mod batch;
mod command;
mod context;
mod document;
pub(crate) mod error;
mod execute;
mod expression;
mod fast_path;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod index;
mod json;
mod limits;
mod list;
mod operation;
mod pipeline;
mod preflight;
mod product;
mod send;
mod state;
mod stream_error;
pub(crate) mod task;
mod token;
pub(crate) mod transaction;
mod update_description;
mod watch;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{Database, bson::Document};
use tokio::sync::mpsc::{Sender, UnboundedSender};
use tokio_util::task::TaskTracker;

pub(crate) use self::limits::{server_limit, server_time};
use self::{
    context::MongoContext,
    state::{
        admission::{Admission, Class},
        client::ClientShare,
        index::IndexState,
        known_keys::KnownKeys,
        subscribers::Subscribers,
    },
};
use super::{
    BoxFuture, Store, StoreOptions,
    answers::{Applied, FollowedState, Notification, Page, Snapshot},
    coalesce::Coalescer,
    pool::LARGE_PART,
    runtime::Home,
};
use crate::{
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Position, Request, StoreTime},
    types::{
        acquire_id::HandleId,
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        string_newtype::refuse_unseen,
        token::HybridTime,
    },
};

/// How long [`MongoStore::close`] waits for its client, which waits for a `getMore` of a change stream. The server
/// holds that for up to two seconds. In any case, a task of its own closes the client.
const CLIENT_CLOSE_TIMEOUT: Duration = Duration::from_millis(30);

/// How many connections a client opens to a server, unless `maxPoolSize` says otherwise.
pub(crate) const DRIVER_POOL: u32 = 10;

/// Returns the name if it can be that of a collection.
pub(crate) fn checked_collection(name: String) -> Result<String> {
    if name.is_empty() || name.contains(['$', '\0']) || name.starts_with("system.") {
        return Err(Error::invalid(format!(
            "{name:?} cannot name a collection: use letters, digits, `.`, `-` and `_`"
        )));
    }
    refuse_unseen(&name, "a collection")?;
    Ok(name)
}

/// Refuses a name that a person would take for that of another database. The server refuses the others.
pub(crate) fn check_database(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("a database must not be empty: name one, or leave it out"));
    }
    Ok(refuse_unseen(name, "a database")?)
}

/// Records in a collection of a MongoDB replica set.
///
/// Each command sets its own concerns, so those of the caller's client, database and collection have no effect. The
/// journals of a majority acknowledge a write, reads are linearizable, and both go to the primary. No command is a
/// retryable write, whatever `retryWrites` says: each request can be resent, and the engine does that. If the server is
/// overloaded, the driver resends commands by itself: see [`Mongoseal::on_shared_client`](crate::Mongoseal::on_shared_client).
#[derive(Clone, Debug)]
pub struct MongoStore {
    pub(crate) context: Arc<MongoContext>,
}

impl MongoStore {
    /// Creates a store of records in this collection. Idle records are kept for `retention`, rounded up to whole
    /// seconds.
    ///
    /// The client is the caller's and is never closed. The store bounds its requests as for a pool of 10 connections,
    /// the driver's default. [`with_connections`](Self::with_connections) makes one for a larger pool. Several stores on
    /// one client, but for siblings, need connections of their own: `maxPoolSize` must be the sum.
    /// [`Mongoseal::on_shared_client`](crate::Mongoseal::on_shared_client) says which options the client should have.
    #[must_use]
    pub fn new(database: &Database, collection: impl Into<String>, retention: Duration) -> Self {
        Self::with_connections(database, collection, retention, DRIVER_POOL)
    }

    /// Creates a store as [`new`](Self::new) does, for this many connections of the client's pool: see
    /// [`Builder::connections`](crate::Builder::connections).
    #[must_use]
    pub fn with_connections(
        database: &Database,
        collection: impl Into<String>,
        retention: Duration,
        connections: u32,
    ) -> Self {
        Self::of_caller(database, collection.into(), retention, Home::here(), connections)
    }

    /// The same, whose tasks run on this home.
    pub(crate) fn of_caller(
        database: &Database,
        collection: String,
        retention: Duration,
        home: Arc<Home>,
        connections: u32,
    ) -> Self {
        Self::build(database, collection, retention, home, ClientShare::new(None, connections))
    }

    /// Creates a store that owns its client, whose pool has this many connections. The shutdown of the last of its handles
    /// closes the client.
    #[must_use]
    pub fn owning(database: &Database, collection: impl Into<String>, retention: Duration, connections: u32) -> Self {
        let client = ClientShare::new(Some(database.client().clone()), connections);
        Self::build(database, collection.into(), retention, Home::here(), client)
    }

    /// Accepts a sharded cluster, which the store refuses otherwise. See
    /// [`Builder::allow_sharded`](crate::Builder::allow_sharded). It holds for all clones of the store.
    #[must_use]
    pub fn allow_sharded(self) -> Self {
        self.context.allow_sharded.store(true, Ordering::Release);
        self
    }

    /// Checks whether a document of the collection is the record of this key, with the decoder of all requests. Sends
    /// nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Corrupt`]: the document is not a record. Requests for the key fail: move the document to another
    ///   collection.
    /// - [`Error::Invalid`]: a newer version of this crate wrote the record: upgrade this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Error, mongodb::bson::doc, store::MongoStore};
    ///
    /// # fn main() -> mongoseal::Result<()> {
    /// let checked = MongoStore::check_document(&"orders/1".parse()?, &doc! { "_id": "orders/1", "total": 7 });
    /// assert!(matches!(checked, Err(Error::Corrupt { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_document(key: &Key, document: &Document) -> Result<()> {
        document::decode_record(key, document).map(drop)
    }

    fn build(
        database: &Database,
        collection: String,
        retention: Duration,
        home: Arc<Home>,
        client: ClientShare,
    ) -> Self {
        let context = MongoContext {
            database: database.clone(),
            collection,
            retention,
            allow_sharded: AtomicBool::new(false),
            home,
            client,
            open_handles: AtomicUsize::new(0),
            subscribers: Subscribers::default(),
            coalescer: Coalescer::default(),
            known_keys: KnownKeys::default(),
            index: IndexState::default(),
            preflight: Admission::new(2, 0),
            is_checked: AtomicBool::new(false),
            requests: TaskTracker::new(),
        };
        Self { context: Arc::new(context) }
    }
}

impl Store for MongoStore {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.context.run(
            Class::Keep,
            deadline,
            |context, deadline| async move { preflight::run(&context, *deadline).await },
        )
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (context, key) = (Arc::clone(&self.context), key.clone());
        Box::pin(async move {
            let applied = send::apply(Arc::clone(&context), key, request, deadline).await;
            index::renew(&context);
            applied
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, request: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (leases, request) = (leases.clone(), request.clone());
        self.context.run(Class::Keep, deadline, |context, deadline| async move {
            let applied = context.apply_batch(&leases, &request, deadline).await;
            index::renew(&context);
            applied
        })
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let key = key.clone();
        self.context.run(Class::Read, deadline, |context, deadline| async move { context.read(&key, deadline).await })
    }

    fn read_held(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let key = key.clone();
        self.context.run(Class::Holder, deadline, |context, deadline| async move { context.read(&key, deadline).await })
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.context.run(Class::Read, deadline, |context, deadline| async move { context.now(deadline).await })
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let filter = filter.clone();
        self.context.run(Class::Read, deadline, move |context, deadline| async move {
            context.list(&filter, after.as_ref(), page_size, deadline).await
        })
    }

    fn handle_id(&self) -> HandleId {
        self.context.open_handles.fetch_add(1, Ordering::AcqRel);
        HandleId::random()
    }

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        let (context, store) = (Arc::clone(&self.context), Arc::clone(&self.context));
        let watch = async move { watch::watch(&store, handle, since, &notifications).await };
        Box::pin(async move { task::run_until_end(context.runtime(), watch).await })
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, states: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        let (context, store, filter) = (Arc::clone(&self.context), Arc::clone(&self.context), filter.clone());
        let follow = async move { follow::follow(&store, &filter, known, &states).await };
        Box::pin(async move { task::run_until_end(context.runtime(), follow).await })
    }

    /// Opens a store of another collection or database on the same client. `None` if both are those of this store.
    fn sibling(&self, options: &StoreOptions) -> Result<Option<Arc<dyn Store>>> {
        let MongoContext { database: own, collection: own_collection, home, client, .. } = &*self.context;
        let database = match &options.database {
            Some(name) => {
                check_database(name)?;
                own.client().database(name)
            }
            None => own.clone(),
        };
        let collection = match &options.collection {
            Some(name) => checked_collection(name.clone())?,
            None => own_collection.clone(),
        };
        if database.name() == own.name() && collection == *own_collection {
            return Ok(None);
        }
        let sibling = Self::build(&database, collection, options.retention, Arc::clone(home), client.join());
        sibling.context.allow_sharded.store(self.context.allow_sharded.load(Ordering::Acquire), Ordering::Release);
        Ok(Some(Arc::new(sibling)))
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        let context = Arc::clone(&self.context);
        // A count, because the contract of a store has no value that a handle owns. A store whose handle has no id has one
        // handle.
        let left = context.open_handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| open.checked_sub(1));
        let is_last = left.is_err() || left == Ok(1);
        Box::pin(async move {
            if !is_last {
                return;
            }
            context.requests.close();
            let answered = tokio::time::timeout(deadline.remaining(), context.requests.wait());
            drop(answered.await);
            let Some(client) = context.client.leave() else { return };
            let closed = task::run(context.runtime(), deadline.or_after(CLIENT_CLOSE_TIMEOUT), async move {
                // Immediate, because an abandoned request may hang and keep handles of the driver.
                client.shutdown().immediate(true).await;
                Ok(())
            });
            drop(closed.await);
        })
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    fn retention(&self) -> Duration {
        self.context.retention
    }

    fn connections(&self) -> u32 {
        self.context.client.limits.connections
    }

    fn part_size(&self) -> usize {
        LARGE_PART
    }
}
