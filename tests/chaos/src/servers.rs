//! The servers of a run: a replica set of MongoDB, or a primary of Redis and its replicas.

pub(crate) mod redis;
mod replica_set;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use mongoseal::{Builder, Mongoseal};
use mongoseal_test_support::eventually;

use crate::{
    clocks::Clocks,
    faults::{Chaos, Kind},
    history::History,
    options::Options,
    sabotage::Sabotage,
    words::{Fault, Micros},
    worker::Backing,
};

/// How many servers there are.
pub(crate) const MEMBERS: usize = 3;

/// Servers of one kind, and what the runner does with them.
pub(crate) trait Servers: Sized + Send + Sync + 'static {
    /// Starts them, each with a clock of its own if that is needed.
    fn start(options: &Options, kinds: &[Kind], own_clocks: bool) -> impl Future<Output = Self> + Send;

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

    /// Sets the clock of a server, in the language of libfaketime.
    fn set_clock(&self, server: usize, shift: &str);

    /// The time on the clock of a server, if it answers.
    fn time(&self, server: usize) -> impl Future<Output = Option<SystemTime>> + Send;

    /// Does harm of this kind and heals it. Returns what it was.
    fn inflict(chaos: &Chaos<Self>, kind: Kind, rng: &mut Rng) -> impl Future<Output = Fault> + Send;

    /// A handle that no fault of the network and no sabotage concerns.
    fn seal(&self, builder: Builder) -> impl Future<Output = Mongoseal> + Send;

    /// Makes what the workers need beside records.
    fn prepare(&self) -> impl Future<Output = ()> + Send;

    /// Notes until then what the workers have open at the servers, once a second.
    fn count(self: Arc<Self>, history: History, until: Micros) -> impl Future<Output = ()> + Send;

    /// Notes at the end what the workers wrote beside records.
    fn read(&self, history: &History) -> impl Future<Output = ()> + Send;
}

/// Sets the clock of each server ahead, and waits until its answers say so.
pub(crate) async fn set_clocks(servers: &impl Servers, clocks: &Clocks) {
    for (server, offset) in (0..).zip(clocks.offsets.into_iter().flatten()) {
        servers.set_clock(server, &clocks.shift(server));
        let margin = Duration::from_millis(1);
        eventually(Duration::from_secs(10), "a server has the clock that was set", async || {
            let asked = SystemTime::now();
            let told = servers.time(server).await;
            told.is_some_and(|told| (asked + offset - margin..=SystemTime::now() + offset + margin).contains(&told))
        })
        .await;
    }
}
