//! Leases with fencing tokens on MongoDB.
//!
//! A process acquires a *key* and gets a [`Lease`]: the right to act on that key for a while. The lease carries a
//! [`FencingToken`]. Each later lease on the key has a larger token, so a storage can refuse the writes of an earlier holder.
//!
//! ```
//! use mongoseal::Mongoseal;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> mongoseal::Result<()> {
//! // On a server: Mongoseal::connect("mongodb://db0,db1,db2/app?replicaSet=rs0").await?
//! let seal = Mongoseal::in_memory();
//! seal.scope(async |seal| {
//!     let lease = seal.acquire("reports/nightly").await?;
//!     println!("acting with token {}", lease.token());
//!     Ok(())
//! }) // releases all leases, however the work ends
//! .await
//! # }
//! ```
//!
//! If this process is paused past the end of its lease, only the storage can refuse its late writes. A [`Fence`] is a
//! collection of MongoDB that compares tokens:
//!
//! ```no_run
//! # #[cfg(feature = "mongodb")]
//! # mod fenced {
//! use mongoseal::{Fence, Lease, mongodb::{Collection, bson::{Document, doc}}};
//!
//! async fn pack(lease: &Lease, orders: &Collection<Document>) -> mongoseal::Result<()> {
//!     let orders = orders.fenced(lease);
//!     // From here on, the storage refuses earlier holders.
//!     let order = orders.claim(doc! { "_id": 4711 }).await?;
//!     println!("packs {order:?}");
//!     orders.update_one(doc! { "_id": 4711 }, doc! { "$set": { "state": "packed" } }).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The [tutorial](guide::tutorial) goes from here to a clean shutdown, and the [guide] has the tasks.
//!
//! # Contents
//!
//! | to | see |
//! |---|---|
//! | open a handle, and shut it down | [`Mongoseal::connect`], [`Mongoseal::on_shared_client`], [`Builder`]; [`Mongoseal::scope`], [`Mongoseal::shutdown`] |
//! | test code that acquires leases | [`Mongoseal::in_memory_on`] and [`store::MemoryStore`]; faults and a clock in the module `testing` of the feature `test-util`; [its page](guide::testing) |
//! | acquire one key | [`Mongoseal::acquire`], [`Acquire`](action::Acquire), [`Retry`], [`Acquire::with`](action::Acquire::with) |
//! | acquire the first free key of several | [`Mongoseal::acquire_any`], [`AcquireAny`](action::AcquireAny) |
//! | acquire several keys, or none | [`Mongoseal::acquire_all`], [`LeaseSet`] |
//! | keep a checkpoint with the key, for the next holder | [`Lease::put_value`], [`Lease::value`], [`Lease::release_with_value`], [`Json`] |
//! | run work once for each tick of a schedule | [`Mongoseal::once`], [`RunOnce`](action::RunOnce), [`Tick`], [`Mongoseal::rewind_tick`] |
//! | keep, check and end a lease | [`Lease`], [`LeaseState`], [`CancellationToken`], [`Watchdog`] |
//! | go on with a lease of an earlier process | [`Mongoseal::resume`], [`Lease::orphan`], [`Lease::transfer`] |
//! | refuse the writes of earlier holders | [`Fence`], [`Lease::transaction`], [`FenceGate`], [`fence`] |
//! | elect a leader | [`Mongoseal::campaign`], [`Elector`](election::Elector), [`Mongoseal::leader`], [`Mongoseal::observe`] |
//! | know whether this process leads, and which one does | [`Elector::leadership`](election::Elector::leadership), [`LeadershipWatch`](election::LeadershipWatch), [`LeadershipState`](election::LeadershipState), [`Elector::health`](election::Elector::health) |
//! | refresh or release leases of several keys and processes by one call | [`Mongoseal::refresh_group`], [`Mongoseal::release_group`] |
//! | look and intervene | [`Mongoseal::now`], [`Mongoseal::inspect`], [`Mongoseal::leases`], [`Mongoseal::watch`], [`Mongoseal::watch_prefix`], [`Mongoseal::revoke`], [`Mongoseal::raise_token_floor`], [`Mongoseal::purge`] |
//! | observe acquires, refreshes and losses | [`Observer`](observe::Observer), [`HandleEvent`](observe::HandleEvent), [`Builder::observer`] |
//! | publish metrics | the module `metrics` of the feature `metrics`, and [its page](guide::metrics) |
//! | use leases without async | the module `blocking` of the feature `blocking` |
//! | handle an error | [`Error`] has one variant for each reaction; the [runbook](guide::runbook) has the messages |
//! | write a store of your own | `store::CompareAndSwap` of the feature `compare-and-swap`, or [`store::Store`] and the module `record` of the feature `unstable-store`; [`store::Connector`] opens it; the package `mongoseal-conformance` tests it |
//! | choose a ttl, a wait and a pool | [the page on settings](guide::settings) |
//! | read what is promised | [`guide::guarantees`], [`guide::failure_modes`], [`guide::record`] |
//!
//! # Choosing
//!
//! **How to open a handle.** [`Mongoseal::connect`] takes a connection string and owns its client, so that slow queries
//! cannot delay a refresh: prefer it. [`Mongoseal::on_shared_client`] uses a database of a client of yours. [`Mongoseal::in_memory`] needs
//! no server: it is for tests, examples and a single process. [`Builder::connect_to`] opens a store of another package.
//! [`Builder`] has the settings. A program without async opens a handle of the module `blocking`.
//!
//! **Which store.** On MongoDB each promise holds over the loss of a member. On Redis, by the package `mongoseal-redis`, a
//! failover can lose a lease, and two holders can believe for a while. Use it if Redis is there, MongoDB is not, and the work tolerates a
//! second holder or checks the token: see [Redis](guide::redis).
//!
//! **What to do if the key is held.** One attempt, the default, fails at once with [`Error::Held`].
//! [`wait`](action::Acquire::wait) queues at the store: waiters of all processes are served in order, and each hand-over is one
//! write. [`retry`](action::Acquire::retry) attempts again with delays and takes no place in the queue, so a retrying acquire is not
//! granted while any waiter is queued. Prefer `wait`; use `retry` for work that may as well be skipped.
//!
//! **How often work runs.** A lease excludes two runs at the same time, not a second run after the first. For work of a
//! schedule, [`once`](Mongoseal::once) also stores which tick is completed: see [scheduled jobs](guide::schedules).
//!
//! **How many hold the key.** By default one lease holds it. [`shared_up_to`](action::Acquire::shared_up_to) is a semaphore, and
//! [`shared`](action::Acquire::shared) has no limit; an exclusive lease excludes both. Its holders are alike: for slots that differ, such
//! as GPUs, [`acquire_any`](Mongoseal::acquire_any) grants one key of several, with tokens that fence. A [`LeaseSet`] is several
//! keys that one caller acquires and releases together. A [group](action::Acquire::group) is a name for leases of any processes, to refresh or release
//! by one call.
//!
//! **How long the ttl is.** A dead holder's key is free after the ttl and the [grace](Builder::grace). The default of 30
//! seconds outlasts an election of MongoDB. The lease is refreshed, so the work may take hours.
//! [`max_hold`](action::Acquire::max_hold) bounds that.
//!
//! # One handle per process
//!
//! Open one [`Mongoseal`] and clone it. A handle refreshes its leases in batches, and its waiters share one change stream.
//! Several handles send more commands and keep more connections. If you need handles with different settings, make them
//! with [`Builder::sibling_of`].
//!
//! # Tasks and lifetimes
//!
//! A handle that [connects](Mongoseal::connect) has a thread of its own, and all its tasks run there. So work that blocks all
//! threads of its own runtime keeps its leases; [`stalled_after`](action::Acquire::stalled_after) and [`max_hold`](action::Acquire::max_hold)
//! bound a holder that hangs. The tasks of a handle in memory, on a store or on a client of yours run on the tokio runtime in
//! which the handle was made, or that of its first call if it was made outside of one: that runtime must outlive the handle.
//! A closure of a [`Retry`] policy and an [observer](Builder::observer) run there, too, and must return at once. Those of a handle of the
//! module `blocking` run on its threads, or on that of the call.
//!
//! | task | begins with | ends with |
//! |---|---|---|
//! | of a lease | the acquire | the release, the loss, or the end of a take-back of a dropped acquire |
//! | of the refresh schedule | the first lease that is held for a second | the last such lease |
//! | of the notifier, which reads the change stream | the first waiter, or the first lease that is held for a second | 10 to 20 seconds after the last of these |
//! | of an [`EventStream`](inspect::EventStream) | [`Mongoseal::watch`], [`Mongoseal::watch_prefix`] | its drop |
//! | of the driver | the client | the client |
//!
//! Dropping a [`Lease`] releases it in the background. Dropping the future of a verb never drops a request half-way: the page
//! of each verb has a section *Cancel safety*. [`Mongoseal::shutdown`] releases all leases and waits for all tasks except
//! one; its documentation names it. [`Mongoseal::scope`] calls it when its work has ended. Without it, leases end by their ttl.
//!
//! # Tracing
//!
//! The library emits [`tracing`](https://docs.rs/tracing) spans and events, and prints nothing. The [page on
//! tracing](guide::tracing) has a table of the spans, their fields and the levels.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `mongodb` | yes | the MongoDB store; needs `rustls` or `openssl`, and `bson-2` or `bson-3` |
//! | `rustls`, `openssl` | `rustls` | TLS of the driver |
//! | `dns-resolver` | yes | connection strings with `mongodb+srv://` |
//! | `zstd-compression`, `zlib-compression`, `snappy-compression` | no | `compressors=` in the connection string |
//! | `aws-auth`, `gssapi-auth`, `azure-oidc`, `gcp-oidc` | no | these values of `authMechanism` and its properties; `gssapi-auth` needs Kerberos libraries |
//! | `socks5-proxy` | no | `proxyHost=` |
//! | `cert-key-password` | no | `tlsCertificateKeyFilePassword=` |
//! | `bson-2`, `bson-3` | `bson-2` | the version of the `bson` crate in the driver's types; with both it is 3 |
//! | `compare-and-swap` | no | `store::CompareAndSwap`: a store on any place that can compare and swap bytes |
//! | `unstable-store` | no | what it takes to implement [`store::Store`]: the module `record`, the answers of stores, `HybridTime`. It may change in any release |
//! | `metrics` | no | the module `metrics`: [metrics](guide::metrics) through the crate of that name |
//! | `blocking` | no | the module `blocking`: the API for callers without async |
//! | `test-util` | no | the module `testing`: faults, a clock and a fenced table for [tests of your code](guide::testing) |
//!
//! # Versions
//!
//! The crate follows [semantic versioning](https://semver.org). The driver is part of the public API: [`mongodb`] is
//! re-exported, and a new major version of the driver is a new major version of this crate. The stored format has a version
//! of its own, which [the page on the record](guide::record#the-format-version) explains: processes with different versions of this
//! crate share a collection. The minimum supported Rust version is 1.88. A minor version may raise it to a release that is at
//! least six months old.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Here and not in the manifest, because tests and examples may panic, print and compute freely.
#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
#![cfg_attr(
    not(feature = "unstable-store"),
    allow(
        dead_code,
        unused_imports,
        unnameable_types,
        unreachable_pub,
        rustdoc::private_intra_doc_links,
        reason = "the record and the answers of stores have no public names"
    )
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, and that is right"))]

/// Compiles the code of README with that of the documentation.
#[cfg(all(doctest, feature = "mongodb"))]
#[doc = include_str!("../README.md")]
struct Readme;

// In the order in which the documentation has the methods of a handle and of a lease.
mod connect;
mod handle;
mod lease;

pub mod action;
pub mod election;

#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod engine;
pub mod fence;
pub mod guide;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "unstable-store"))]
mod record;
#[cfg(feature = "unstable-store")]
pub mod record;
mod spans;
pub mod store;
#[cfg(feature = "test-util")]
pub mod testing;
mod types;

/// What a store tells about keys: their holders, their queues, their runs, and the events of their records.
///
/// [`Mongoseal::inspect`], [`Mongoseal::leases`], [`Mongoseal::runs`] and [`Mongoseal::watch`] return these types.
pub mod inspect {
    pub use crate::{
        action::{
            list::LeaseStream,
            watch::{EventStream, WatchItem},
        },
        record::{
            CompletedTick, Event, EventKind, HolderInfo, Inspection, ListedLease, PastRevocation, PastRun, StoreTime,
            WaiterInfo,
        },
    };
}

/// What the leases of a handle report to an [`Observer`](observe::Observer), which [`Builder::observer`] sets.
pub mod observe {
    pub use crate::engine::observer::{AcquireMode, AcquireOutcome, HandleEvent, Observer, RefreshOutcome};
}

#[doc(inline)]
pub use action::{
    acquire_all::LeaseSet,
    once::{BeginOutcome, OnceOutcome, Skipped, Tick, TickLease},
};
pub use builder::Builder;
pub use engine::{
    lease_state::{LeaseState, ReleaseOutcome},
    retry_policy::{Attempt, Retry},
};
#[doc(inline)]
pub use fence::FenceGate;
#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use fence::{Fence, Fenced};
pub use handle::Mongoseal;
pub use lease::{Lease, state_stream::StateStream, watchdog::Watchdog};
#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use mongodb;
#[doc(inline)]
pub use record::KeyValue;
#[cfg(all(fuzzing, feature = "mongodb"))]
#[doc(hidden)]
pub use store::mongo::fuzzing;
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
pub use types::{
    error::{EndReason, Error, LossCause, Result},
    group::Group,
    into_name::IntoName,
    json::Json,
    key::Key,
    lease_id::LeaseId,
    metadata::Metadata,
    owner::Owner,
    parse_error::ParseError,
    sharing::Sharing,
    token::FencingToken,
};
