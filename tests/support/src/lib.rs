//! What the tests of mongoseal have in common.
//!
//! - [`secs`], [`millis`] and [`eventually`] are words of most tests.
//! - [`harness`] runs tests that are known only when they run.
//!
//! With the feature `servers`, which is on by default, real servers, and the faults to put them through:
//!
//! - [`ReplicaSet`] starts a set on loopback ports, kills, pauses and restarts its members, moves
//!   the primary, and arms fail points. [`shared`] is one per process for tests that do it no harm, and
//!   [`TestDatabase`] a test's own part of it.
//! - [`Proxy`] stands in front of each member of a [`proxied`](Builder::proxied) set: partitions,
//!   swallowed replies, late requests.
//! - [`Standalone`] is one server without a replica set.
//! - [`Postgres`] and [`Redis`] are other storages that a lease may protect, where they are installed.
//! - [`Etcd`] has locks of its own, to compare with, where it is installed.
//! - [`built`] finds an example that was built.
//! - [`mongod()`] and [`libfaketime`] find, or fetch, the programs these need.
//!
//! Everything here fails by panicking with a sentence about what was expected and what was found:
//! the caller is a test, and a test has nothing better to do with such an error.
//!
//! # Guarantees
//!
//! - No server outlives the process that started it, however that process ends. See
//!   [`ReplicaSet`].
//! - Every method works from any tokio runtime, and what it started survives that runtime: tests
//!   have a runtime each, sets are shared among them. Work runs on a runtime of this crate.
//!   Dropping a future of this crate does not stop the work it waited for.
//! - No wait is without a deadline.

pub mod harness;
#[cfg(feature = "servers")]
mod servers;
mod times;

#[cfg(feature = "servers")]
pub use servers::*;
pub use times::{eventually, millis, secs};
