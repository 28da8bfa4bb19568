//! The servers of a run: a replica set of MongoDB, or a primary of Redis and its replicas.

pub(crate) mod redis;
mod replica_set;

use std::sync::Arc;

use fastrand::Rng;
use mongoseal::{Builder, Mongoseal};

use crate::{
    clocks::Clocks,
    faults::{Chaos, Done, Kind},
    history::History,
    options::Options,
    sabotage::Sabotage,
    words::Micros,
    worker::Backing,
};

/// How many servers there are.
pub(crate) const MEMBERS: usize = 3;

/// Servers of one kind, and what the runner does with them.
pub(crate) trait Servers: Sized + Send + Sync + 'static {
    /// Starts them, with these clocks.
    fn start(options: &Options, kinds: &[Kind], clocks: &Clocks) -> impl Future<Output = Self> + Send;

    /// What the workers are on.
    fn backing(&self) -> Backing;

    /// Where the worker in a slot finds them.
    fn uri(&self, slot: u32) -> String;

    /// Where the runner finds them, on a way that no fault of the network concerns.
    fn control_uri(&self) -> String;

    /// Breaks what passes between workers and servers, if the sabotage does that.
    fn tamper(&self, sabotage: Sabotage);

    /// Ends all faults of the network.
    fn heal(&self);

    /// Waits until all servers take part, and agree on the primary.
    fn settled(&self) -> impl Future<Output = ()> + Send;

    /// How often another server has become the primary.
    fn term(&self) -> impl Future<Output = i64> + Send;

    /// Does harm of this kind and heals it. Returns what it was.
    fn inflict(chaos: &Chaos<Self>, kind: Kind, rng: &mut Rng) -> impl Future<Output = Done> + Send;

    /// A handle that no fault of the network and no sabotage concerns.
    fn seal(&self, builder: Builder) -> impl Future<Output = Mongoseal> + Send;

    /// Makes what the workers need beside records.
    fn prepare(&self) -> impl Future<Output = ()> + Send;

    /// Notes until then what the workers have open at the servers, once a second.
    fn count(self: Arc<Self>, history: History, until: Micros) -> impl Future<Output = ()> + Send;

    /// Notes at the end what the workers wrote beside records.
    fn read(&self, history: &History) -> impl Future<Output = ()> + Send;
}
