//! What the requests of a store share, and how a command is sent.
//!
//! Purpose: the files that implement one method of the contract each use the same collection, client and state.
//!
//! Mechanism: [`MongoContext`] owns that state. Each of those files adds its methods to it.
//!
//! Invariant: each command goes to the primary, and the driver adds no concern. If the client was opened by this crate,
//! the driver sends each command once. A client of the caller's resends a command by itself if the server says that it
//! is overloaded, or if a connection cannot be opened, unless its `max_adaptive_retries` is zero. No option of a single
//! command turns that off.
//!
//! From 8.0 on, a majority confirms a write when it has the write in its oplog, before a secondary applies it ([release
//! notes](https://www.mongodb.com/docs/manual/release-notes/8.0/)). Nothing here depends on that: no read goes to a secondary.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client, Database,
    bson::{Bson, Document, Timestamp, doc},
    error::{Error as DriverError, Result as DriverResult},
    options::{ReadPreference, SelectionCriteria},
};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::{
    error,
    state::{
        admission::Preflight, client::ClientShare, index::IndexState, known_keys::KnownKeys, subscribers::Subscribers,
    },
};
use crate::{
    record::Request,
    store::{coalesce::Coalescer, runtime::Home},
    types::error::{Error, Result},
};

/// The member to which commands and change streams go.
pub(super) const PRIMARY: SelectionCriteria = SelectionCriteria::ReadPreference(ReadPreference::Primary);

/// What the requests of a store share.
pub(crate) struct MongoContext {
    pub(super) database: Database,
    pub(super) collection: String,
    pub(super) retention: Duration,
    pub(super) allow_sharded: AtomicBool,
    /// The runtime of its tasks.
    pub(super) home: Arc<Home>,
    pub(super) client: ClientShare,
    /// How many handles of this store are open.
    pub(super) open_handles: AtomicUsize,
    pub(super) subscribers: Arc<Subscribers>,
    /// The requests that wait for a command of their key.
    pub(super) coalescer: Coalescer<Request>,
    pub(super) known_keys: KnownKeys,
    pub(super) index: IndexState,
    pub(super) preflight: Preflight,
    /// The requests that are under way, without change streams.
    pub(super) requests: TaskTracker,
}

impl MongoContext {
    pub(super) fn new(
        database: Database,
        collection: String,
        retention: Duration,
        home: Arc<Home>,
        client: ClientShare,
    ) -> Self {
        Self {
            database,
            collection,
            retention,
            allow_sharded: AtomicBool::new(false),
            home,
            client,
            open_handles: AtomicUsize::new(0),
            subscribers: Arc::default(),
            coalescer: Coalescer::default(),
            known_keys: KnownKeys::default(),
            index: IndexState::default(),
            preflight: Preflight::default(),
            requests: TaskTracker::new(),
        }
    }

    pub(super) fn is_sharded_allowed(&self) -> bool {
        self.allow_sharded.load(Ordering::Acquire)
    }

    /// The runtime of its tasks.
    pub(crate) fn runtime(&self) -> &Handle {
        self.home.runtime()
    }

    /// The client of the collection.
    pub(crate) fn client(&self) -> Client {
        self.database.client().clone()
    }

    /// Sends a command, for which the user needs these actions.
    pub(super) async fn command(&self, command: Document, needs: &str) -> Result<Document> {
        self.raw_command(&self.database, command).await.map_err(|error| self.translate(error, needs))
    }

    pub(super) async fn raw_command(&self, database: &Database, command: Document) -> DriverResult<Document> {
        database.run_command(command).selection_criteria(PRIMARY).await
    }

    /// The time of the last operation that the primary has applied.
    pub(super) async fn operation_time(&self) -> DriverResult<Timestamp> {
        let reply = self.raw_command(&self.database, doc! { "ping": 1 }).await?;
        reply.get_timestamp("operationTime").map_err(|error| DriverError::custom(error.to_string()))
    }

    /// Translates an error of the driver from a command on the collection.
    pub(crate) fn translate(&self, error: DriverError, needs: &str) -> Error {
        error::translate(error, self.database.name(), &self.collection, needs)
    }
}

/// The documents in the reply of a command that opens a cursor.
pub(super) fn first_batch(mut reply: Document) -> Result<Vec<Document>> {
    let cursor = reply.get_document_mut("cursor").map_err(error::unreadable)?;
    let batch = mem::take(cursor.get_array_mut("firstBatch").map_err(error::unreadable)?);
    Ok(batch
        .into_iter()
        .filter_map(|found| if let Bson::Document(found) = found { Some(found) } else { None })
        .collect())
}

/// Leaves out the client, whose options have secrets.
impl fmt::Debug for MongoContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database.name(), self.collection)
    }
}
