//! Records in a MongoDB collection: one command for every request, on the server's clock.
//!
//! | file | says |
//! |---|---|
//! | `mongo.rs` | which commands are sent, with which concerns, and how their replies are read |
//! | `pipeline.rs` | the state machine as an update pipeline |
//! | `verb.rs` | what is written alike, and what differs from one request to the next |
//! | `joint.rs` | what is done to many leases at once |
//! | `coalesce.rs` | which acquires of a key travel in one command |
//! | `refusal.rs` | how who asks again for a key that was held is refused by less |
//! | `template.rs` | commands whose larger part is encoded once |
//! | `document.rs` | how a record looks as a document |
//! | `token.rs` | how a token looks as a number |
//! | `list.rs` | how leases of many keys are listed |
//! | `purge.rs` | how what is over is found, and idle records are deleted |
//! | `events.rs` | how a handle hears of what it is handed |
//! | `follow.rs` | how it is told what becomes of a record |
//! | `delta.rs` | what a change stream says of an update |
//! | `preflight.rs` | what is checked before the first request |
//! | `touch.rs` | how a transaction makes sure of its lease |
//! | `fault.rs` | what each error of the driver means |

mod coalesce;
mod delta;
mod document;
mod events;
pub(crate) mod fault;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gate;
mod joint;
mod list;
mod pipeline;
mod preflight;
mod purge;
mod refusal;
mod template;
mod token;
mod touch;
mod verb;

use std::{fmt, slice, sync::Arc, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, Document, RawDocumentBuf, doc},
    options::{ReadPreference, SelectionCriteria},
};

use tokio::sync::mpsc::{Sender, UnboundedSender};

use self::{coalesce::Coalescer, document::Seen, fault::needs, gate::Gates, refusal::Held};
use super::{Applied, Backlog, BoxFuture, Page, Sighting, State, Store, Told};
use crate::{
    Clock, Error, FencingToken, HandleId, Key, Result, Tick,
    record::{Joint, Named, Outcome, Position, Request, Selection, StoreTime},
};

/// How much time a request must have left to be sent: what arrives when its caller has just given up would
/// hold a key for nobody.
const LEAST: Duration = Duration::from_millis(20);

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
    owns_client: bool,
    gates: Gates,
    coalescer: Coalescer,
    held: Held,
}

impl MongoStore {
    /// Records in this collection of this database. Idle ones are kept for `retention`, which is
    /// rounded up to whole seconds.
    ///
    /// The client is the caller's and is never closed.
    #[must_use]
    pub fn new(database: &Database, collection: impl Into<String>, retention: Duration) -> Self {
        Self::build(database, collection.into(), retention, false)
    }

    /// The same on a client that belongs to the store, which closes it at the end.
    #[must_use]
    pub fn owning(database: &Database, collection: impl Into<String>, retention: Duration) -> Self {
        Self::build(database, collection.into(), retention, true)
    }

    fn build(database: &Database, collection: String, retention: Duration, owns_client: bool) -> Self {
        let (gates, coalescer, held) = (Gates::default(), Coalescer::default(), Held::default());
        let inner = Inner { database: database.clone(), collection, retention, owns_client, gates, coalescer, held };
        Self { inner: Arc::new(inner) }
    }

    /// Runs `work`, which says itself what came of it and ends with the time of those who wait for that.
    fn run_unwatched(work: impl Future<Output = ()> + Send + 'static) {
        #[allow(clippy::disallowed_methods, reason = "owned by those who wait for what it says")]
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
                    "the task that asked MongoDB was ended early: ask again on a running runtime",
                )
                .caused_by(join)),
                Err(_elapsed) => Err(Error::unavailable(format!(
                    "MongoDB did not answer within {} ms: check that a primary can be reached and ask again",
                    within.as_millis()
                ))),
            }
        })
    }
}

impl Store for MongoStore {
    fn prepare(&self, within: Duration) -> BoxFuture<Result<()>> {
        let inner = Arc::clone(&self.inner);
        Self::run(within, async move { preflight::run(&inner, within).await })
    }

    fn apply(&self, key: &Key, request: Request, within: Duration) -> BoxFuture<Result<Applied>> {
        Box::pin(coalesce::apply(Arc::clone(&self.inner), key.clone(), request, within))
    }

    fn apply_jointly(&self, leases: &Named, joint: &Joint, within: Duration) -> BoxFuture<Result<bool>> {
        let (inner, leases, joint) = (Arc::clone(&self.inner), leases.clone(), joint.clone());
        Self::run(within, async move { inner.apply_jointly(&leases, &joint, within).await })
    }

    fn read(&self, key: &Key, within: Duration) -> BoxFuture<Result<Sighting>> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        Self::run(within, async move { inner.read(&key, within).await })
    }

    fn list(
        &self,
        selection: &Selection,
        after: Option<Position>,
        most: u32,
        within: Duration,
    ) -> BoxFuture<Result<Page>> {
        let (inner, selection) = (Arc::clone(&self.inner), selection.clone());
        Self::run(within, async move { inner.list(&selection, after.as_ref(), most, within).await })
    }

    fn overdue(&self, after: Option<String>, most: u32, within: Duration) -> BoxFuture<Result<Backlog>> {
        let inner = Arc::clone(&self.inner);
        Self::run(within, async move { inner.overdue(after.as_deref(), most, within).await })
    }

    fn forget(&self, key: &Key, version: FencingToken, within: Duration) -> BoxFuture<Result<bool>> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        Self::run(within, async move { inner.forget(&key, version, within).await })
    }

    fn watch(&self, handle: HandleId, since: Tick, tell: UnboundedSender<Told>) -> BoxFuture<Result<()>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            #[allow(clippy::disallowed_methods, reason = "owned by the call; ends soon after nobody listens any more")]
            let task = tokio::spawn(async move { events::watch(&inner, handle, since, &tell).await });
            task.await
                .unwrap_or_else(|join| Err(Error::unavailable("the task that watched was ended early").caused_by(join)))
        })
    }

    fn follow(&self, key: &Key, tell: Sender<State>) -> BoxFuture<Result<()>> {
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        Box::pin(async move {
            #[allow(clippy::disallowed_methods, reason = "owned by the call; ends soon after nobody listens any more")]
            let task = tokio::spawn(async move { follow::follow(&inner, &key, &tell).await });
            task.await.unwrap_or_else(|join| {
                Err(Error::unavailable("the task that followed was ended early").caused_by(join))
            })
        })
    }

    fn close(&self, within: Duration) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        let closed = Self::run(within, async move {
            if inner.owns_client {
                // Not waiting for handles: a call that nobody waits for any more may be stuck.
                inner.database.client().clone().shutdown().immediate(true).await;
            }
            Ok(())
        });
        // The driver says good-bye to its servers; where they do not answer it is not waited for.
        Box::pin(async move { drop(closed.await) })
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    fn retention(&self) -> Duration {
        self.inner.retention
    }
}

/// Without the client, whose options hold secrets.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database.name(), self.collection)
    }
}

impl Inner {
    async fn apply(&self, key: &Key, request: &Request, within: Duration) -> Result<Applied> {
        let until = Clock::Boot.now().saturating_add(within);
        if let Some(refused) = self.refusal(key, request, within.mul_f64(0.5)).await? {
            return Ok(refused);
        }
        let left = worthwhile(until, within)?;
        let command = template::command(self.head(key, left), request)?;
        let mut applied = self.update(key, command, slice::from_ref(request), left).await?;
        applied.pop().ok_or_else(|| Error::invalid("a request was sent for nobody: this is a mistake of mongoseal's"))
    }

    /// What the command begins with that applies something to the record of a key.
    fn head(&self, key: &Key, within: Duration) -> Document {
        doc! {
            "findAndModify": &self.collection,
            "query": document::of(key),
            "writeConcern": write_concern(within),
            "maxTimeMS": server_limit(within),
        }
    }

    /// Sends such a command; gives what came of these requests, which it applies.
    async fn update(
        &self,
        key: &Key,
        command: RawDocumentBuf,
        requests: &[Request],
        within: Duration,
    ) -> Result<Vec<Applied>> {
        let asks = requests.iter().any(|request| matches!(request, Request::Acquire(_)));
        let reply = self
            .database
            .run_raw_command(command)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                // A document that is not ours can make the update fail, which then wrote nothing. An upsert fails with
                // a duplicate key where the query does not match the document of the key. If the read finds a record
                // that can be read, or none, another first insert came before this one, and a retry meets its record.
                let is_taken = fault::code(&error) == Some(fault::DUPLICATE_KEY);
                let is_refused = fault::is_refusal(&error) && fault::code(&error) != Some(fault::UNAUTHORIZED);
                if is_taken || is_refused {
                    self.read(key, within).await?;
                }
                return Err(self.meaning(error, if asks { needs::HOLD } else { needs::CHANGE }));
            }
        };
        if let Some(error) = reply.get("writeConcernError") {
            return Err(fault::unconfirmed(error));
        }
        // There was no record of this format, so nothing was done and no time was told. The engine reads what is there
        // before it tells that to anybody.
        let Some(Bson::Document(value)) = reply.get("value") else {
            let nothing = |request: &Request| request.outcome(None, StoreTime::default());
            return Ok(requests
                .iter()
                .map(|request| Applied { outcome: nothing(request), at: None, sent: None })
                .collect());
        };
        let Seen { mut view, places, at, written } = document::decode_view(key, value)?;
        let mut applied = Vec::new();
        for (asker, request) in requests.iter().enumerate() {
            view.position = places.get(asker).copied().flatten();
            let outcome = request.outcome(Some(&view), at.now);
            if !is_plausible(request, &outcome, written, at.now) {
                // What was not looked at in the view makes it a document that is not ours.
                self.read(key, within).await?;
                return Err(Error::unavailable("MongoDB answered without having written what it says: ask again"));
            }
            applied.push(Applied { outcome, at: Some(at), sent: None });
        }
        if asks {
            let is_held = |Applied { outcome, .. }: &Applied| {
                matches!(outcome, Outcome::Refused { .. } | Outcome::Queued { .. } | Outcome::Full { .. })
            };
            self.held.note(key, applied.iter().any(is_held));
        }
        Ok(applied)
    }

    async fn read(&self, key: &Key, within: Duration) -> Result<Sighting> {
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": key.as_str() },
            "projection": document::all(),
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "linearizable" },
            "maxTimeMS": server_limit(within),
        };
        let reply = self.command(find, needs::READ).await?;
        let found = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .map_err(fault::unreadable)?
            .first();
        let Some(Bson::Document(found)) = found else {
            return Ok(Sighting::Nothing);
        };
        let (record, at) = document::decode(key, found)?;
        Ok(Sighting::Seen { record: Box::new(record), at })
    }

    /// Sends a command to the primary, for which the user needs these actions. The driver adds no concern
    /// and no retry of its own.
    async fn command(&self, command: Document, needs: &str) -> Result<Document> {
        self.raw_command(&self.database, command).await.map_err(|error| self.meaning(error, needs))
    }

    fn meaning(&self, error: mongodb::error::Error, needs: &str) -> Error {
        fault::meaning(error, self.database.name(), &self.collection, needs)
    }

    async fn raw_command(&self, database: &Database, command: Document) -> mongodb::error::Result<Document> {
        database
            .run_command(command)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
    }
}

/// What is left of the time that a request was given, where it is worth sending.
fn worthwhile(until: Duration, within: Duration) -> Result<Duration> {
    let left = until.saturating_sub(Clock::Boot.now());
    // A lease of a short ttl is given little time from the beginning.
    if left < LEAST.min(within.mul_f64(0.5)) {
        return Err(Error::unavailable("what had to be sent first took too long: ask again"));
    }
    Ok(left)
}

/// Whether the pipeline can have come to this. It leaves a document as it is that is not ours.
fn is_plausible(request: &Request, outcome: &Outcome, written: bool, now: StoreTime) -> bool {
    let room = match request {
        Request::Acquire(acquire) => acquire.patience.map(|patience| patience.room),
        _ => None,
    };
    let is_full = |length: usize| room.is_none_or(|room| u32::try_from(length).is_ok_and(|length| length >= room));
    match outcome {
        // Who asks for a key that nobody holds is granted it; unless what waited before it was none.
        Outcome::Absent => !matches!(request, Request::Acquire(_)),
        _ if written => true,
        Outcome::Granted { .. } | Outcome::Queued { .. } | Outcome::Refreshed { .. } | Outcome::Transferred { .. } => {
            false
        }
        Outcome::Refused { holder } => holder.expires_at > now,
        Outcome::Full { length } => is_full(*length),
        Outcome::Released | Outcome::Revoked { .. } | Outcome::Pruned { .. } => true,
    }
}

/// The write concern of each write: the journals of a majority have it.
///
/// A majority means its journals by default, and `preflight.rs` refuses a set where it does not. But an operator can
/// change that later, and a user may lack the privilege to see it. So each write says it.
fn write_concern(within: Duration) -> Document {
    doc! { "w": "majority", "j": true, "wtimeout": server_limit(within) }
}

/// How long the server may take, in milliseconds: a little less than we wait, so that it is the
/// server who says what it waited for. At least one, because zero is «for ever» to it.
pub(crate) fn server_limit(within: Duration) -> i64 {
    i64::try_from(within.mul_f64(0.9).as_millis()).unwrap_or(i64::MAX).clamp(1, i32::MAX.into())
}
