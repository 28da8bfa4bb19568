//! Real servers for the tests, MongoDB's first of all, and the faults to put them through.
//!
//! - [`ReplicaSet`] starts a set on loopback ports, kills, pauses and restarts its members, moves
//!   the primary, and arms fail points. [`shared`] is one per process for tests that do it no harm.
//! - [`Proxy`] stands in front of each member of a [`proxied`](Builder::proxied) set: partitions,
//!   swallowed replies, late requests.
//! - [`Standalone`] is one server without a replica set.
//! - [`Postgres`] and [`Redis`] are other storages that a lease may protect, where they are installed.
//! - [`Etcd`] has locks of its own, to compare with, where it is installed.
//! - [`built`] builds an example.
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

mod certificate;
mod etcd;
mod example;
mod fail_point;
mod fetch;
mod mongod;
mod postgres;
mod programs;
mod proxy;
mod redis;
mod replica_set;
mod runtime;
mod server;
mod standalone;
mod supervisor;

pub use etcd::Etcd;
pub use example::built;
pub use fail_point::FailPoint;
pub use postgres::Postgres;
pub use programs::{find_libfaketime, libfaketime, mongod};
pub use proxy::{Hits, How, Peer, Proxy, Way};
pub use redis::Redis;
pub use replica_set::{Builder, ReplicaSet, shared};
pub use standalone::Standalone;
