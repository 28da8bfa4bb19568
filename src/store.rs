//! The contract between the engine and the place where records live.
//!
//! # Why this shape
//!
//! A store does one thing: it applies a [`Request`] to the record of a key, atomically and on its
//! own clock, as [`record::apply`](crate::record::apply) says. Everything else (deadlines, retries,
//! refreshing, waiting) is the engine's and the same for every store.
//!
//! The trait is object-safe, so that a handle has no type parameter, and its futures are `'static`,
//! so that a caller can drop one without the store noticing.
//!
//! The module `conformance`, with the feature `test-util`, puts a store to the test.
//!
//! # What a store promises
//!
//! 1. `apply` is atomic, and an answer means that the request is durable: no failure of a part of
//!    the store takes it back. A request whose answer is `Err(Unavailable)` may or may not have
//!    been applied.
//! 2. An answer other than [`Outcome::Refused`], [`Outcome::Absent`] and a [`Outcome::Pruned`] of
//!    nobody comes from a write that changed the record. Those may be stale.
//! 3. Times are the store's: nothing in a request says what time it is.
//! 4. The hybrid clock never goes back, for no key and over no failure, and every write moves it
//!    on. So tokens grow even where a record was deleted.
//! 5. An idle record is kept for at least the longest ttl after its `expires_at`.
//! 6. `read` is linearizable: it sees every write that was answered before it was called. `now` is read from the same clock,
//!    at some time between the call and its answer.
//! 7. An answer of `apply_batch` means that it is durable, like one of `apply`, and `true` comes from
//!    writes that changed each record.
//! 8. `list` gives, in the order of tokens and then of keys, what [`Filter::admits`] of the holders
//!    that were there when it was called, each as it was at some time between the call and its answer.
//! 9. `delete_idle` deletes nothing but a record that nobody holds or waits for and that has been idle for
//!    the retention, looking at it and deleting it in one step.
//! 10. What `follow` tells is durable, in the order in which it happened, and all of it. A listener that is slow may be told
//!     the record as it is in place of the changes that it has not taken.
//! 11. Every call answers before its deadline, which is on the store's [`clock`](Store::clock). Dropping a future abandons the answer, not
//!     necessarily the request.

mod memory;
#[cfg(feature = "mongodb")]
pub(crate) mod mongo;

use std::{any::Any, fmt, pin::Pin, time::Duration};

pub use memory::MemoryStore;
#[cfg(feature = "mongodb")]
pub use mongo::MongoStore;
use tokio::sync::mpsc::{Sender, UnboundedSender};

use crate::{
    AcquireId, Clock, Deadline, FencingToken, HandleId, HybridTime, Key, Result,
    record::{BatchRequest, Filter, LeaseRefs, ListedLease, Outcome, Position, Record, Request, StoreClock, StoreTime},
};

/// A boxed future that owns all it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where records live. See the [module](self) for what an implementation promises.
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// Checks that the store can keep its promises and makes it ready: done before the first
    /// request, and again whenever it failed.
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>>;

    /// Applies one request to the record of a key.
    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>>;

    /// Does the same to many leases at once, as [`record::apply_batch`](crate::record::apply_batch)
    /// says for each key. Gives whether it was done to all of them. Where not, a refresh was done to none
    /// of them; the others, which are done to each key by itself, to those of some keys.
    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>>;

    /// Reads the record of a key, linearizably.
    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>>;

    /// Reads the store's time: it is that of a moment between the call and its answer, on the clock that ends leases.
    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>>;

    /// Lists at most so many of the leases that are wanted, those behind a place in the list.
    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>>;

    /// Looks for at most so many records that can be cleared of something, in order of their keys, behind
    /// this one. A hint: what is found is looked at again when it is cleared.
    fn list_expired(&self, after: Option<String>, most: u32, deadline: Deadline) -> BoxFuture<Result<ExpiredPage>>;

    /// Deletes the record of a key if its version is this one, nobody holds the key or waits for it, and
    /// it has been idle for the [`retention`](Self::retention). Gives whether it did.
    fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> BoxFuture<Result<bool>>;

    /// The id of a new handle, which no other handle has. A store may choose it, so that its handles can share what
    /// [`watch`](Self::watch) needs.
    fn handle_id(&self) -> HandleId {
        HandleId::random()
    }

    /// Tells a handle what its waiters are handed and its holders are robbed of, until nobody listens
    /// any more or telling fails.
    ///
    /// First comes [`Notification::Started`], then whatever happens after the tick it names. A store that
    /// cannot tell answers `Invalid`, and waiters ask instead: slower, never wrong.
    fn watch(&self, handle: HandleId, since: HybridTime, tell: UnboundedSender<Notification>) -> BoxFuture<Result<()>>;

    /// Tells what becomes of the record of a key, until nobody listens any more or telling fails.
    ///
    /// The store sends the record as it is, and then, in order, as each change has made it. If the receiver is slow, the store
    /// waits for it, or goes on with the record as it is then. No other receiver waits for a slow one. A store that has no
    /// notifications answers `Invalid`; its handle then polls the record.
    fn follow(&self, key: &Key, tell: Sender<RecordState>) -> BoxFuture<Result<()>>;

    /// A handle and its siblings need the store no more. With the last of the handles that have asked for a
    /// [`handle_id`](Self::handle_id), it gives up what it opened itself.
    fn close(&self, deadline: Deadline) -> BoxFuture<()>;

    /// The clock on which holders count their deadlines.
    fn clock(&self) -> Clock;

    /// How long idle records are kept at least: no ttl may be longer.
    fn retention(&self) -> Duration;
}

/// A request was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What came of it.
    pub outcome: Outcome,
    /// When, on the store's clocks. `None` where there was no record and nothing to do.
    pub at: Option<StoreClock>,
    /// Whether it changed the record, in which case the outcome is not stale. `false` if that is not known.
    pub changed: bool,
    /// When, on the [`Clock`] of holders, the request left, if it had to wait after the call: deadlines count from then.
    pub sent: Option<Duration>,
}

/// What a handle is told that watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// All that is handed over after this tick is told.
    Started {
        /// The tick.
        since: HybridTime,
    },
    /// An acquire of this handle was handed the key it waited for.
    Granted {
        /// Which of its acquires.
        number: u64,
        /// The lease's token.
        token: FencingToken,
    },
    /// The key was taken from an acquire of this handle that held it.
    Revoked {
        /// Which of its acquires.
        number: u64,
    },
}

impl Notification {
    /// What an entry of [`Record::handover`] tells its handle.
    #[must_use]
    pub fn of(caller: AcquireId, token: Option<FencingToken>) -> Self {
        let number = caller.number;
        token.map_or(Self::Revoked { number }, |token| Self::Granted { number, token })
    }
}

/// A record as a change has made it, or as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The record, if there is one. Its queue may be left out.
    pub record: Option<Box<Record>>,
    /// When: of a change, the time at which it was made. Ticks of one key never go back, as long as it
    /// is followed. Where there is no record, the time may be wrong by a second.
    pub at: StoreClock,
}

/// A record as it was at some time between the call and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The record.
    pub record: Box<Record>,
    /// The store's time when it was read.
    pub at: StoreClock,
}

/// Part of a list of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The leases, in the order of their tokens and then of their keys.
    pub leases: Vec<ListedLease>,
    /// From where the list goes on, if there may be more.
    pub next: Option<Position>,
}

/// Part of what can be cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredPage {
    /// The records.
    pub expired: Vec<Expired>,
    /// Behind which key it goes on, if there may be more.
    pub next: Option<String>,
}

/// Of what a record can be cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expired {
    /// Of holders or waiters whose time is over.
    Lapsed {
        /// The key.
        key: Key,
    },
    /// Of itself: it has been idle for the retention.
    Idle {
        /// The key.
        key: Key,
        /// Its version.
        version: FencingToken,
    },
}
