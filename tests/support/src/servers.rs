//! Servers and their faults.

mod certificate;
mod clock;
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
mod sent;
mod server;
mod standalone;
mod supervisor;
mod test_database;
mod trials;

pub use etcd::Etcd;
pub use example::built;
pub use fail_point::FailPoint;
pub use postgres::Postgres;
pub use programs::{find_libfaketime, libfaketime};
pub use proxy::{Forwarder, Hits, How, Peer, Proxy, Way};
pub use redis::Redis;
pub use replica_set::{Builder, ReplicaSet, shared};
pub use sent::{Sent, command_name, noting_client};
pub use server::{Server, free_port};
pub use standalone::Standalone;
pub use test_database::TestDatabase;
pub use trials::{Turn, plain_trial, run_trials, trial};
