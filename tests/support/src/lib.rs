//! Support for the tests of mongoseal: real servers and their faults. `basics/` has what needs no server.
//!
//! - [`ReplicaSet`] starts a set on loopback ports, kills, pauses and restarts its members, moves the primary, and arms
//!   fail points. [`shared`] returns one set per process, for tests without faults. [`TestDatabase`] is a test's own
//!   database in it.
//! - [`Proxy`] is in front of each member of a [`proxied`](Builder::proxied) set: it makes partitions, drops replies,
//!   delays requests.
//! - [`Forwarder`] is a port in front of any other server, with the same faults of the network.
//! - [`Standalone`] is one server without a replica set.
//! - [`Postgres`] and [`Redis`] are other storages that a lease can protect, if they are installed.
//! - [`Etcd`] is a cluster with locks to compare with, if it is installed.
//! - [`built`] finds an example that was built, and [`free_port`] a port for it.
//! - [`Walk`] calls each verb on a store that can confirm none, and fails if the verb returns a confirmation.
//! - [`libfaketime`] finds or fetches a library for clocks that a test can shift.
//!
//! All functions fail by a panic that names what was expected and what was found, because the caller is a test.
//!
//! # Guarantees
//!
//! - No server outlives the process that started it, however that process ends. See [`ReplicaSet`].
//! - Every method works from any tokio runtime, and what it starts survives that runtime. Each test has a runtime of
//!   its own, and tests share sets, so the work runs on a runtime of this crate. Dropping a future of this crate does
//!   not stop its work.
//! - Every wait has a deadline.

mod servers;
mod walk;

pub use mongoseal_test_basics::{by_length, eventually, is_long, millis, secs};
pub use servers::*;
pub use walk::Walk;
