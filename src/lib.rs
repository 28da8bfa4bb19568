#![doc = include_str!("../README.md")]
//!
//! The documents that this refers to are here as [`guide::guarantees`], [`guide::protocol`], [`guide::fencing`] and
//! [`guide::comparison`]; how long work is done: [`guide::jobs`]; the program `mongoseal`: [`guide::cli`]. Where to begin: [`Mongoseal`], then [`Acquire`] and [`Lease`].
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
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, and that is right"))]

mod action;
mod builder;
#[cfg(feature = "test-util")]
pub mod conformance;
mod connect;
mod election;
mod engine;
pub mod fence;
pub mod guide;
mod handle;
mod lease;
pub mod record;
pub mod store;
mod types;

pub use action::{
    acquire::Acquire,
    acquire_all::{AcquireAll, LeaseSet},
    group::{RefreshGroup, ReleaseGroup},
    list::{LeaseStream, Leases},
    purge::Purged,
    revoke::{Revoke, Revoked},
    watch::EventStream,
};
pub use builder::Builder;
pub use election::{Campaign, Elector, Leader, LeaderInfo, LeaderStream, Readiness};
pub use engine::{
    end_action::ReleaseOutcome,
    lease_state::LeaseState,
    retry_policy::{Attempt, Retry},
};
pub use fence::FenceGate;
#[cfg(feature = "mongodb")]
pub use fence::{Fence, Fenced, FencedWriter};
pub use handle::Mongoseal;
pub use lease::{Lease, state_stream::StateStream, watchdog::Watchdog};
#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use mongodb;
pub use record::{Event, EventKind, HolderInfo, Inspection, ListedLease, PastRevocation, StoreTime, WaiterInfo};
#[cfg(all(fuzzing, feature = "mongodb"))]
#[doc(hidden)]
pub use store::mongo::fuzzing;
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
pub use types::{
    acquire_id::{AcquireId, HandleId},
    clock::Clock,
    deadline::Deadline,
    error::{Error, LossCause, Result, Source},
    group::Group,
    into_name::IntoName,
    key::Key,
    lease_id::LeaseId,
    metadata::Metadata,
    owner::Owner,
    token::{FencingToken, HybridTime},
    ttl::Ttl,
};
