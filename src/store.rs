//! The contract of a store, the place where records are kept.
//!
//! # Why this shape
//!
//! A store does one thing: it applies a [`Request`] to the record of a key, atomically and on its own clock, as
//! [`record::apply`](crate::record::apply) does. Deadlines, retries, refreshes and waiting are the engine's, and the
//! same for every store.
//!
//! The trait is object-safe, so a handle has no type parameter. Its futures are `'static`, so a caller can drop a
//! future and the store goes on.
//!
//! To implement the trait needs the feature `unstable-store`: without it, the types of its methods have no names. What is
//! behind that feature may change in any release. The package `mongoseal-conformance` tests a store.
//!
//! To write one, begin with `CompareAndSwap`, of the feature `compare-and-swap`: it makes a store of any place that can
//! compare and swap bytes. The package `mongoseal-redis` is a store of this kind. A [`Connector`] opens it for
//! [`Builder::connect_to`](crate::Builder::connect_to).
//!
//! # What a store promises
//!
//! [`Capabilities`] names the promises that a store may leave out. It must keep all others.
//!
//! 1. `apply` is atomic, and an answer means that the request is durable: no failure of a part of the store undoes it.
//!    If the answer is `Err(Unavailable)`, the request may have been applied or not.
//! 2. These answers may come without a change of the record, and may be stale: [`Outcome::Refused`], [`Outcome::Full`],
//!    [`Outcome::Absent`], and [`Outcome::Revoked`] or [`Outcome::Pruned`] without holders. [`Outcome::Raised`] may
//!    come without a change, because a version is never lowered. [`Outcome::Completed`], [`Outcome::ValuePut`] and
//!    [`Outcome::Reset`] may come without a change, too: what was sent twice, and a reset that had nothing to lower. After an
//!    answer that proves nothing, the engine reads the record, unless it was a refusal or a prune. Each other answer comes from a write
//!    that changed the record.
//! 3. Times are the store's: no request has the present time in it.
//! 4. The hybrid clock never goes back, for no key and over no failure, and every write moves it on. So tokens grow
//!    even if a record was deleted.
//! 5. An idle record is kept for at least the longest ttl after its `expires_at`.
//! 6. `read` is linearizable: it returns the effect of each write that was answered before the call. `now` reads the clock
//!    that ends leases, at some time between the call and its answer.
//! 7. `apply_batch` applies a request to many leases, by keys: to all named leases of a key, or to none, as
//!    [`record::apply_batch`](crate::record::apply_batch) does. It returns whether it was applied to all. `true` comes from
//!    writes that changed each record. An answer means that it is durable. One key does not share the fate of another: a
//!    record that cannot be read is an error only if the request names no other key. If a record cannot be written before
//!    the [limit of the work](Deadline::work_limit), the answer is `false` or `Unavailable`.
//! 8. `list` returns, of the holders at the time of the call, those that [`Filter::admits`], in the order of keys and
//!    then of tokens. Each is as it was at some time between the call and its answer.
//! 9. What `follow` sends is durable, in the order in which it happened, and complete. If a change may have been left
//!    out, `follow` fails.
//! 10. Each call answers before its deadline, which is on the store's [`clock`](Store::clock). Dropping a future
//!     abandons the answer, and not necessarily the request.
//!
//! [`Outcome::Absent`]: crate::record::Outcome::Absent
//! [`Outcome::Completed`]: crate::record::Outcome::Completed
//! [`Outcome::Full`]: crate::record::Outcome::Full
//! [`Outcome::Pruned`]: crate::record::Outcome::Pruned
//! [`Outcome::Raised`]: crate::record::Outcome::Raised
//! [`Outcome::Refused`]: crate::record::Outcome::Refused
//! [`Outcome::Reset`]: crate::record::Outcome::Reset
//! [`Outcome::Revoked`]: crate::record::Outcome::Revoked
//! [`Outcome::ValuePut`]: crate::record::Outcome::ValuePut

pub(crate) mod answers;

#[cfg(any(feature = "compare-and-swap", feature = "mongodb"))]
mod coalesce;
#[cfg(feature = "compare-and-swap")]
mod compare_and_swap;
mod connector;
mod memory;
#[cfg(feature = "mongodb")]
pub(crate) mod mongo;
mod pages;
pub(crate) mod pool;
pub(crate) mod runtime;

use std::{any::Any, fmt, pin::Pin, sync::Arc, time::Duration};

#[cfg(feature = "unstable-store")]
pub use answers::{Applied, FollowedState, Notification, Page, RecordState, Snapshot};
#[cfg(not(feature = "unstable-store"))]
use answers::{Applied, FollowedState, Notification, Page, Snapshot};
#[cfg(feature = "compare-and-swap")]
pub use compare_and_swap::{Backend, CompareAndSwap, Loaded, LoadedKeys, Swap};
pub use connector::{Connector, StoreOptions};
pub use memory::MemoryStore;
#[cfg(feature = "mongodb")]
pub use mongo::MongoStore;
use tokio::sync::mpsc::{Sender, UnboundedSender};

#[cfg(feature = "unstable-store")]
pub use crate::types::token::HybridTime;
#[cfg(not(feature = "unstable-store"))]
use crate::types::token::HybridTime;
pub use crate::types::{
    acquire_id::{AcquireId, HandleId},
    clock::Clock,
    deadline::Deadline,
    error::Source,
    instant::Instant,
    ttl::Ttl,
};

use crate::{
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Position, Request, StoreTime},
    types::{
        error::{Error, Result},
        key::Key,
    },
};

/// A boxed future that owns all its data.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The place where records are kept. The [module](self) says what an implementation promises.
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// What the store can do. A call that needs more is refused, before anything is sent. Default: everything.
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    /// Checks that the store can keep its promises, and makes it ready. The engine calls this before the first request,
    /// and again after a failure.
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>>;

    /// Applies a request to the record of a key.
    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>>;

    /// Applies a request to many leases. If the answer is `false` or an error, it may have been applied to some keys.
    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>>;

    /// Reads the record of a key, linearizably.
    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>>;

    /// Reads the record of a key as [`read`](Self::read) does, to verify a lease or to confirm what an answer said. A
    /// store that bounds its requests lets it pass the reads that wait.
    fn read_held(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        self.read(key, deadline)
    }

    /// Reads the store's clock, which ends leases, at some time between the call and its answer.
    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>>;

    /// Lists the wanted leases that come after a position. A store reads no more of them than `page_size`; if it can only
    /// load all records, it returns all.
    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>>;

    /// Returns the id of a new handle, which no other handle has. A store may count its handles by it: see
    /// [`close`](Self::close).
    fn handle_id(&self) -> HandleId {
        HandleId::random()
    }

    /// Streams the grants and revocations of a handle until the receiver is dropped or the stream fails.
    ///
    /// [`Notification::Started`] comes first, and then what happens after its hybrid time. A store without notifications
    /// returns `Invalid`; then waiters poll, which is slower and never wrong.
    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>>;

    /// Streams the states of the records whose keys match, until the receiver is dropped or the stream fails.
    ///
    /// The states at one time come first, and [`FollowedState::Complete`] ends them: that of a key, whether it has a record
    /// or not; of a prefix, those of the records that have holders, and those of the `known` keys, whether they have a
    /// record or not. Then comes the state after each change, in order. Of a prefix, a change of a record that has no
    /// holders before and after it may be left out.
    ///
    /// A document that is not a record ends the stream of its key with `Corrupt`. Of a prefix, it is sent as if there was no
    /// record.
    ///
    /// A store keeps its place over an interruption, for as long as it has the changes. `Unavailable` means that it may have
    /// left out changes: the handle reports that, and follows again with the keys that it knows. If the receiver is slow,
    /// the store waits for it, or returns `Unavailable`. No other receiver waits for a slow one.
    ///
    /// A store that cannot follow returns `Invalid`, which is the default; then the handle polls.
    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, states: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        drop((filter.clone(), known, states));
        Box::pin(async { Err(Error::invalid("this store has no stream of changes: poll")) })
    }

    /// Opens the store of a [sibling](crate::Builder::sibling_of) on what this store has opened, with these options.
    /// `None`: the sibling uses this store.
    ///
    /// Default: `None`, and `Invalid` if the options name a database or a collection.
    ///
    /// # Errors
    ///
    /// `Invalid` if an option does not fit the store.
    fn sibling(&self, options: &StoreOptions) -> Result<Option<Arc<dyn Store>>> {
        options.refuse_place().map(|()| None)
    }

    /// Closes a handle and its siblings. With the last of the handles that have called [`handle_id`](Self::handle_id),
    /// the store closes what it has opened itself.
    fn close(&self, deadline: Deadline) -> BoxFuture<()>;

    /// The clock of the holders' deadlines.
    fn clock(&self) -> Clock;

    /// How long idle records are kept at least. No ttl may be longer.
    fn retention(&self) -> Duration;

    /// How many connections to a server the requests of this store share. A handle sends refreshes over a quarter of them,
    /// at least 3 and at most 16. Default: 64.
    fn connections(&self) -> u32 {
        pool::DEFAULT_POOL
    }

    /// How many leases to refresh by one [`apply_batch`](Self::apply_batch) while all is well, if their ttl is 16 s or more.
    /// After a part of more than 64 that was not confirmed, a handle sends parts of 64 for a while. It sends no fewer. Default:
    /// 64, for a store that sends a request for each key.
    fn part_size(&self) -> usize {
        pool::PART
    }
}

/// What a store can do beside the rest of its contract. Take [`ALL`](Self::ALL) and set what it cannot do to `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent")]
#[non_exhaustive]
pub struct Capabilities {
    /// A read returns the effect of each write that was answered before, over failures, too. Without it, a read can be
    /// outdated after a failure. A handle then refuses [`Lease::verify`](crate::Lease::verify) and
    /// [`once`](crate::Mongoseal::once). [`inspect`](crate::Mongoseal::inspect), [`leader`](crate::Mongoseal::leader) and
    /// lists can be outdated.
    pub linearizable_reads: bool,
    /// An answer means that no failure of a part of the store undoes the write. Without it, a token can be issued twice
    /// after a failure. [`Mongoseal::capabilities`](crate::Mongoseal::capabilities) tells a caller that needs it.
    pub durable_answers: bool,
    /// The store notifies handles of grants and revocations. Without it, waiters poll.
    pub notifications: bool,
    /// The store streams the changes of records. Without it, a handle polls them for [`watch`](crate::Mongoseal::watch) and
    /// [`observe`](crate::Mongoseal::observe).
    pub change_streams: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self =
        Self { linearizable_reads: true, durable_answers: true, notifications: true, change_streams: true };
}
