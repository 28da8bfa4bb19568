//! Records in a MongoDB collection: one command for every request, on the server's clock.
//!
//! | file | says |
//! |---|---|
//! | `mongo.rs` | the store, its tasks and its end |
//! | `client.rs` | the client, which stores may share |
//! | `execute.rs` | how a command is sent, with which concern, and its answer read |
//! | `pipeline.rs` | the state machine as an update pipeline |
//! | `verb.rs` | what is written alike, and what differs from one request to the next |
//! | `joint.rs` | what is done to many leases at once |
//! | `gate.rs` | how requests of a key wait for a transaction of their handle |
//! | `traffic.rs` | what requests of one runtime share |
//! | `coalesce.rs` | which acquires of a key travel in one command |
//! | `refusal.rs` | how who asks again for a key that was held is refused by less |
//! | `template.rs` | commands whose larger part is encoded once |
//! | `document.rs` | how a record looks as a document |
//! | `token.rs` | how a token looks as a number |
//! | `list.rs` | how leases of many keys are listed |
//! | `purge.rs` | how what is over is found, and idle records are deleted |
//! | `hand_over_stream.rs` | how handles hear of what they are handed, by one change stream |
//! | `follow.rs` | how it is told what becomes of a record |
//! | `key_streams.rs` | how `watch_stream.rs` opens and reads change streams of some keys |
//! | `watch_stream.rs` | the one change stream that all watches of a runtime share |
//! | `stream_end.rs` | why a change stream has ended |
//! | `delta.rs` | what a change stream says of an update |
//! | `preflight.rs` | what is checked before the first request |
//! | `index.rs` | the TTL index, and when it is made again |
//! | `touch.rs` | how a transaction makes sure of its lease |
//! | `set_name.rs` | which replica set answers to a wrong name |
//! | `fault.rs` | what each error of the driver means |

mod client;
mod coalesce;
mod delta;
mod document;
mod execute;
pub(crate) mod fault;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gate;
mod hand_over_stream;
mod index;
mod joint;
mod key_streams;
mod list;
mod pipeline;
mod preflight;
mod purge;
mod refusal;
pub(crate) mod set_name;
mod stream_end;
mod template;
mod token;
mod touch;
mod traffic;
mod verb;
mod watch_stream;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Database,
    bson::{Document, Timestamp, doc},
};
use tokio::sync::mpsc::{Sender, UnboundedSender};
use tokio_util::task::TaskTracker;

use self::{client::ClientShare, index::IndexState, refusal::Held, traffic::ByRuntime};
use super::{Applied, BoxFuture, ExpiredPage, Notification, Page, RecordState, Snapshot, Store};
use crate::{
    Clock, Deadline, Error, FencingToken, HandleId, HybridTime, Key, Result,
    record::{BatchRequest, Filter, LeaseRefs, Position, Request},
    types::acquire_id::HandleIds,
};

/// How much time a request must have left to be sent: what arrives when its caller has just given up would
/// hold a key for nobody.
const LEAST: Duration = Duration::from_millis(20);

/// How long [`MongoStore::close`] waits for its client. The client waits for a `getMore` of a change stream, which the server
/// holds for up to two seconds. It is closed by a task of its own in any case.
const CLOSE_CLIENT: Duration = Duration::from_millis(30);

/// Records in a collection of a MongoDB replica set.
///
/// Concerns are set in each command, so those of the caller's client, database and collection do
/// not count: writes are acknowledged by the journals of a majority, reads are linearizable, both go to the
/// primary. None is a retryable write, whatever `retryWrites` says: every request can be sent again,
/// and the engine does.
#[derive(Clone, Debug)]
pub struct MongoStore {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    collection: String,
    retention: Duration,
    allow_sharded: AtomicBool,
    client: ClientShare,
    /// The ids of its handles, and how many of those that were made were not closed.
    handles: HandleIds,
    open_handles: AtomicUsize,
    traffic: ByRuntime,
    held: Held,
    index: IndexState,
    /// What was sent and not answered, change streams excepted.
    requests: TaskTracker,
}

impl MongoStore {
    /// Records in this collection of this database. Idle ones are kept for `retention`, which is
    /// rounded up to whole seconds.
    ///
    /// The client is the caller's and is never closed.
    #[must_use]
    pub fn new(database: &Database, collection: impl Into<String>, retention: Duration) -> Self {
        let client = ClientShare::of_caller(database.client().clone());
        Self::build(database, collection.into(), retention, client)
    }

    /// The same on a client that belongs to the store. The last of its handles that is shut down closes it.
    #[must_use]
    pub fn owning(database: &Database, collection: impl Into<String>, retention: Duration) -> Self {
        Self::with_streams(database, collection, retention, usize::MAX)
    }

    /// Accepts a sharded cluster, which is refused otherwise. See
    /// [`Builder::allow_sharded`](crate::Builder::allow_sharded). It holds for all clones of the store.
    #[must_use]
    pub fn allow_sharded(self) -> Self {
        self.with_sharded(true)
    }

    pub(crate) fn with_sharded(self, allow: bool) -> Self {
        self.inner.allow_sharded.store(allow, Ordering::Release);
        self
    }

    /// The same on a client that may have so many change streams at a time.
    pub(crate) fn with_streams(
        database: &Database,
        collection: impl Into<String>,
        retention: Duration,
        max_streams: usize,
    ) -> Self {
        let client = ClientShare::owned(database.client().clone(), max_streams);
        Self::build(database, collection.into(), retention, client)
    }

    /// Records in another collection or database on the same client. `None`: they are not others.
    pub(crate) fn sibling(
        &self,
        database: Option<&str>,
        collection: Option<&str>,
        retention: Duration,
    ) -> Option<Self> {
        let Inner { database: own, collection: own_collection, client, .. } = &*self.inner;
        let allow_sharded = self.inner.is_sharded_allowed();
        let database = database.map_or_else(|| own.clone(), |name| own.client().database(name));
        let collection = collection.unwrap_or(own_collection);
        let is_own = database.name() == own.name() && collection == own_collection;
        (!is_own).then(|| {
            Self::build(&database, collection.to_owned(), retention, client.join()).with_sharded(allow_sharded)
        })
    }

    fn build(database: &Database, collection: String, retention: Duration, client: ClientShare) -> Self {
        let (traffic, held) = (ByRuntime::default(), Held::default());
        let (database, requests) = (database.clone(), TaskTracker::new());
        let handles = HandleIds::random();
        let inner = Inner {
            database,
            collection,
            retention,
            allow_sharded: AtomicBool::new(false),
            client,
            handles,
            open_handles: AtomicUsize::new(0),
            traffic,
            held,
            index: IndexState::default(),
            requests,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a request as [`run`](Self::run) does. [`Store::close`] waits for its end.
    fn request<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        Self::run(within, self.inner.requests.track_future(work))
    }

    /// Runs `work`, which says itself what came of it and ends with the time of those who wait for that.
    fn run_unwatched(work: impl Future<Output = ()> + Send + 'static) {
        #[allow(clippy::disallowed_methods, reason = "owned by those who wait for what it says, or by the store")]
        let _task = tokio::spawn(work);
    }

    /// Runs `work` on a task of its own and waits for it no longer than `within`.
    ///
    /// The driver warns that a future of it that is dropped half-way can leave a connection in a
    /// bad state; a task runs to its end whatever becomes of who waits for it.
    pub(crate) fn run<T: Send + 'static>(
        within: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        Box::pin(async move {
            #[allow(clippy::disallowed_methods, reason = "owned by the call; ends with the driver's own timeouts")]
            let task = tokio::spawn(work);
            match tokio::time::timeout(within, task).await {
                Ok(Ok(result)) => result,
                Ok(Err(join)) => Err(Error::unavailable(
                    "the task that sent the request to MongoDB ended early: retry on a running runtime",
                )
                .caused_by(join)),
                Err(_elapsed) => Err(Error::unavailable(format!(
                    "MongoDB did not answer within {} ms: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and retry",
                    within.as_millis()
                ))),
            }
        })
    }
}

impl Store for MongoStore {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        let within = deadline.remaining();
        let inner = Arc::clone(&self.inner);
        self.request(within, async move { preflight::run(&inner, within).await })
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let within = deadline.remaining();
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        Box::pin(async move {
            let applied = coalesce::apply(Arc::clone(&inner), key, request, within).await;
            index::renew(&inner);
            applied
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let within = deadline.remaining();
        let (inner, leases, joint) = (Arc::clone(&self.inner), leases.clone(), joint.clone());
        self.request(within, async move {
            let applied = inner.apply_batch(&leases, &joint, within).await;
            index::renew(&inner);
            applied
        })
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let within = deadline.remaining();
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.request(within, async move { inner.read(&key, within).await })
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let within = deadline.remaining();
        let (inner, selection) = (Arc::clone(&self.inner), selection.clone());
        self.request(within, async move { inner.list(&selection, after.as_ref(), most, within).await })
    }

    fn list_expired(&self, after: Option<String>, most: u32, deadline: Deadline) -> BoxFuture<Result<ExpiredPage>> {
        let within = deadline.remaining();
        let inner = Arc::clone(&self.inner);
        self.request(within, async move { inner.list_expired(after.as_deref(), most, within).await })
    }

    fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let within = deadline.remaining();
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.request(within, async move { inner.delete_idle(&key, version, within).await })
    }

    fn handle_id(&self) -> HandleId {
        self.inner.open_handles.fetch_add(1, Ordering::AcqRel);
        self.inner.handles.next()
    }

    fn watch(&self, handle: HandleId, since: HybridTime, tell: UnboundedSender<Notification>) -> BoxFuture<Result<()>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            #[allow(clippy::disallowed_methods, reason = "owned by the call; ends soon after nobody listens any more")]
            let task = tokio::spawn(async move { hand_over_stream::watch(&inner, handle, since, &tell).await });
            task.await
                .unwrap_or_else(|join| Err(Error::unavailable("the task that watched was ended early").caused_by(join)))
        })
    }

    fn follow(&self, key: &Key, tell: Sender<RecordState>) -> BoxFuture<Result<()>> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        Box::pin(async move {
            #[allow(clippy::disallowed_methods, reason = "owned by the call; ends soon after nobody listens any more")]
            let task = tokio::spawn(async move { follow::follow(&inner, &key, &tell).await });
            task.await.unwrap_or_else(|join| {
                Err(Error::unavailable("the task that followed was ended early").caused_by(join))
            })
        })
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        let within = deadline.remaining();
        let inner = Arc::clone(&self.inner);
        // One whose handle did not ask for an id is the last.
        let left = inner.open_handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| open.checked_sub(1));
        let is_last = left.is_err() || left == Ok(1);
        Box::pin(async move {
            if !is_last {
                return;
            }
            inner.requests.close();
            let answered = tokio::time::timeout(within, inner.requests.wait());
            drop(answered.await);
            let Some(client) = inner.client.leave() else { return };
            let closed = Self::run(CLOSE_CLIENT.min(within), async move {
                // Not waiting for handles: a request without a caller may be stuck.
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
        self.inner.retention
    }
}

impl Inner {
    fn is_sharded_allowed(&self) -> bool {
        self.allow_sharded.load(Ordering::Acquire)
    }
}

fn tick(timestamp: Timestamp) -> HybridTime {
    HybridTime { seconds: timestamp.time.into(), ordinal: timestamp.increment.into() }
}

/// Without the client, whose options hold secrets.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database.name(), self.collection)
    }
}

/// The write concern of each write: the journals of a majority have it.
///
/// A majority means its journals by default, and `preflight.rs` refuses a set where it does not. But an operator can
/// change that later, and a user may lack the privilege to see it. So each write says it.
fn write_concern(within: Duration) -> Document {
    doc! { "w": "majority", "j": true, "wtimeout": server_limit(within) }
}

/// How long the server may take, in milliseconds, for each `maxTimeMS` and each `wtimeout`: a little less than we wait,
/// so that it is the server who says what it waited for. At least one, because zero is «for ever» to it. At most
/// `i32::MAX`, which is 24.8 days, because the server refuses more.
pub(crate) fn server_limit(within: Duration) -> i64 {
    i64::try_from(within.mul_f64(0.9).as_millis()).unwrap_or(i64::MAX).clamp(1, i32::MAX.into())
}

/// The same for an option of the driver.
pub(crate) fn server_time(within: Duration) -> Duration {
    Duration::from_millis(u64::try_from(server_limit(within)).unwrap_or_default())
}
