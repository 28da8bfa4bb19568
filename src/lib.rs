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

mod acquire;
mod ask;
mod caller;
mod clock;
#[cfg(feature = "test-util")]
pub mod conformance;
mod contention;
mod dedicated;
mod election;
mod error;
mod farewell;
pub mod fence;
mod group;
mod groups;
pub mod guide;
mod hold;
mod in_flight;
mod in_use;
mod inspect;
mod key;
mod lease;
mod lease_id;
mod lease_task;
mod leases;
mod metadata;
mod open;
mod owner;
mod purge;
mod raise;
pub mod record;
mod refresh;
mod releases;
mod retry;
mod revoke;
mod schedule;
mod scope;
mod seal;
mod several;
mod shared;
mod shutdown_releases;
mod state_stream;
pub mod store;
mod text;
mod together;
mod token;
mod ttl;
mod wait;
mod watch;
mod watchdog;
mod wishes;

pub use acquire::Acquire;
pub use caller::{Caller, HandleId};
pub use clock::Clock;
pub use contention::{Attempt, Retry};
pub use election::{Campaign, Elector, Incumbent, Leader, LeaderStream, Readiness};
pub use error::{Error, LossCause, Result, Source};
pub use fence::FenceGate;
#[cfg(feature = "mongodb")]
pub use fence::{Bearer, Fence, Fenced};
pub use group::Group;
pub use groups::{RefreshGroup, ReleaseGroup};
pub use hold::LeaseState;
pub use key::Key;
pub use lease::{Lease, Released};
pub use lease_id::LeaseId;
pub use leases::{LeaseStream, Leases};
pub use metadata::Metadata;
pub use owner::Owner;
pub use purge::Purged;
pub use record::{Event, EventKind, Holding, Inspection, ListedLease, PastRevocation, StoreTime, Waiting};
pub use revoke::{Revoke, Revoked};
pub use seal::{Builder, Mongoseal};
pub use several::{AcquireAll, LeaseSet};
pub use state_stream::StateStream;
pub use token::{FencingToken, Tick};
pub use ttl::Ttl;
pub use watch::EventStream;
pub use watchdog::Watchdog;

#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use mongodb;
#[cfg(all(fuzzing, feature = "mongodb"))]
#[doc(hidden)]
pub use store::mongo::fuzzing;
