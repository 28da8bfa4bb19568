//! What the requests of a store share, and how a command is sent.
//!
//! Purpose: the files that implement one method of the contract each use the same collection, client and state.
//!
//! Mechanism: [`MongoContext`] owns that state. Each of those files adds its methods to it. A request runs on a task, and waits
//! there for its permit, too: a caller that is not polled any more would keep a permit that it is given.
//!
//! Invariants: a request whose caller gives up while it waits for a permit is never sent.
//!
//! Each command goes to the primary, and the driver adds no concern. If the client was opened by this crate,
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
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use mongodb::{
    Client, Database,
    bson::{Bson, Document, Timestamp, doc},
    change_stream::{ChangeStream, event::ResumeToken},
    error::{Error as DriverError, Result as DriverResult},
    options::{ChangeStreamOptions, ReadConcern, ReadPreference, SelectionCriteria},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};
use tokio_util::task::TaskTracker;

use super::{
    error,
    limits::ensure_remaining,
    state::{
        admission::{Admission, Class, ServerDeadline},
        client::ClientShare,
        index::IndexState,
        known_keys::KnownKeys,
        subscribers::Subscribers,
    },
    stream_error::StreamEnd,
    task,
};
use crate::{
    record::Request,
    store::{
        BoxFuture,
        coalesce::{Coalescer, min_remaining},
        runtime::{self, Home},
    },
    types::{
        deadline::Deadline,
        error::{Error, Result},
    },
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
    pub(super) subscribers: Subscribers,
    /// The requests that wait for a command of their key.
    pub(super) coalescer: Coalescer<Request>,
    pub(super) known_keys: KnownKeys,
    pub(super) index: IndexState,
    /// The bound of the checks before the first request, each of which takes several commands: two at a time, so that one on a
    /// dead connection does not hold up the others.
    pub(super) preflight: Admission,
    /// Whether a check has passed.
    pub(super) is_checked: AtomicBool,
    /// The requests that are under way, without change streams.
    pub(super) requests: TaskTracker,
}

impl MongoContext {
    /// The runtime of its tasks.
    pub(crate) fn runtime(&self) -> &Handle {
        self.home.runtime()
    }

    /// The client of the collection.
    pub(crate) fn client(&self) -> Client {
        self.database.client().clone()
    }

    /// Runs `work` on a task of its own as soon as a request of this class may be under way, and waits for it until the
    /// deadline. [`Store::close`](crate::store::Store::close) waits for its end.
    pub(super) fn run<T, W>(
        self: &Arc<Self>,
        class: Class,
        deadline: Deadline,
        work: impl FnOnce(Arc<Self>, ServerDeadline) -> W + Send + 'static,
    ) -> BoxFuture<Result<T>>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut reply, answer) = oneshot::channel();
        let (context, store, least) = (Arc::clone(self), Arc::clone(self), min_remaining(deadline));
        let task = self.requests.track_future(async move {
            let admitted = tokio::select! {
                biased;
                () = reply.closed() => return,
                admitted = store.client.limits.requests.admit(class, deadline) => admitted,
            };
            let done = async {
                let admitted = admitted?;
                ensure_remaining(deadline, least)?;
                admitted.run(deadline, |limited| work(Arc::clone(&store), limited)).await
            };
            drop(reply.send(done.await));
        });
        Box::pin(async move {
            let task = task::spawn(context.runtime(), task);
            match timeout(deadline.remaining(), answer).await {
                Ok(Ok(done)) => done,
                Ok(Err(closed)) => Err(task.await.err().map_or_else(|| runtime::ended(closed), runtime::ended)),
                Err(_elapsed) => Err(task::silence(deadline)),
            }
        })
    }

    /// Sends a command, for which the user needs these actions.
    pub(super) async fn command(&self, command: Document, needs: &str) -> Result<Document> {
        self.raw_command(command).await.map_err(|error| self.translate(error, needs))
    }

    pub(super) async fn raw_command(&self, command: Document) -> DriverResult<Document> {
        self.database.run_command(command).selection_criteria(PRIMARY).await
    }

    /// Opens a change stream of the collection, from a time on or behind a position. The server holds a request for changes this
    /// long if there is none.
    pub(super) async fn open_stream(
        &self,
        stages: [Document; 2],
        (from, behind): (Option<Timestamp>, Option<ResumeToken>),
        wait: Duration,
    ) -> Result<ChangeStream<Document>, StreamEnd> {
        let options = ChangeStreamOptions::builder()
            .start_at_operation_time(from)
            .resume_after(behind)
            .max_await_time(wait)
            .read_concern(ReadConcern::majority())
            .selection_criteria(PRIMARY)
            .build();
        let collection = self.database.collection::<Document>(&self.collection);
        let opened = collection.watch().pipeline(stages).with_options(options).await;
        Ok(opened.map_err(StreamEnd::NotOpened)?.with_type())
    }

    /// The time of the last operation that the primary has applied.
    pub(super) async fn operation_time(&self) -> DriverResult<Timestamp> {
        let reply = self.raw_command(doc! { "ping": 1 }).await?;
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
