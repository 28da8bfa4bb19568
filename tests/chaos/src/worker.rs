//! A worker process: acquires keys, holds them, writes, and reports each step on its standard output.

pub(crate) mod client;
mod closing;
mod handles;
pub(crate) mod holder;
pub(crate) mod observed;
mod opener;
pub(crate) mod process;
mod tampered;
pub(crate) mod ticker;
mod watcher;

use std::{
    io::Write,
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use client::Plan;
use fastrand::Rng;
use handles::Handles;
use nix::sys::{prctl::set_pdeathsig, signal::Signal};
use observed::Notes;
use serde::{Deserialize, Serialize};

use crate::{
    sabotage::Sabotage,
    words::{Event, Micros, now},
};

/// The variable of the environment with the [`Spec`] of a worker.
pub(crate) const SPEC: &str = "MONGOSEAL_CHAOS_WORKER";
/// How long idle records are kept, and how long a store that compares and swaps keeps them at least.
pub(crate) const RETENTION: Duration = Duration::from_secs(4);
pub(crate) const REDIS_RETENTION: Duration = Duration::from_secs(11);
/// How long a call may take.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(3);
/// Keys that many clients acquire. Those of which three may hold are the last two.
pub(crate) const HOT_KEYS: [&str; 5] = ["hot/0", "hot/1", "hot/2", "pool/0", "pool/1"];
/// What the keys begin with that are watched.
pub(crate) const HOT_PREFIX: &str = "hot/";
/// Of keys that have a document each: the first two are fenced, the others written in transactions.
pub(crate) const WRITTEN_KEYS: [&str; 4] = ["doc/0", "doc/1", "ledger/0", "ledger/1"];
/// The collection of those documents.
pub(crate) const DOCUMENTS: &str = "documents";
/// A collection on which no handle may be opened, because it has a collation.
pub(crate) const COLLATED: &str = "collated";
/// The key that four of each process wait for all the time.
pub(crate) const CROWDED_KEY: &str = "crowd/0";
/// The key that is waited for longer than an outage lasts, and for how long.
const PATIENT_KEY: &str = "patient/0";
const PATIENCE: Duration = Duration::from_secs(15);
/// What keys begin with that are kept by a handle with a thread of its own.
pub(crate) const OF_THREAD: &str = "thread/";
/// The order to block all threads of the runtime, before a number of milliseconds.
pub(crate) const BLOCK: &str = "block";
/// How many threads the runtime of a process has.
const THREADS: usize = 2;
/// What the key of each process begins with whose leases have a minimum hold.
pub(crate) const LEAST: &str = "least/";
/// What keys begin with whose only client drops the lease and asks for it again at once.
pub(crate) const OWN: &str = "own/";
/// Keys whose holders keep them until they expire.
pub(crate) const OUTSTAYED_KEYS: [&str; 3] = ["outstayed/0", "outstayed/1", "outstayed/2"];
/// How many may share a key of a pool.
pub(crate) const POOL: u32 = 3;
/// The smallest ttl of a lease of a worker.
pub(crate) const SMALLEST_TTL: Duration = Duration::from_millis(1500);
/// The smallest grace of a lease of a worker, if the clocks of the members differ.
pub(crate) const SMALLEST_GRACE: Duration = Duration::from_millis(400);
/// How many leases one of the processes holds all the time, so that its batches have several parts.
pub(crate) const FLEET: usize = 150;
/// What their keys begin with.
pub(crate) const FLEET_KEY: &str = "fleet/";
/// The slot of that process.
const FLEET_SLOT: u32 = 0;
/// The slots of the processes with minimum holds, and of those that shut handles down. A small machine has no time for more,
/// least of all in the process of the fleet.
const LEAST_SLOTS: [u32; 2] = [1, 2];
const CLOSING_SLOTS: [u32; 3] = [1, 2, 3];
/// The slot of the process that watches keys.
const WATCH_SLOT: u32 = 1;
/// The most by which a client waits longer because the machine is slow. In an outage no write is confirmed for long.
const LONGEST_RELIEF: Duration = Duration::from_secs(3);
const COLD_KEYS: usize = 150;
/// Keys that are asked for in bursts, and what they begin with.
pub(crate) const BUSY_KEYS: usize = 60;
pub(crate) const BUSY_KEY: &str = "busy/";
/// How often there is a burst.
const BURST_EVERY: Duration = Duration::from_secs(3);

/// The clients of a process: what each asks for, and by which handle. The first two handles share one
/// `mongodb::Client`.
const CLIENTS: [(Role, By, usize); 22] = [
    (Role::Waiting, By::Observed, 1),
    (Role::Trying, By::Observed, 1),
    (Role::SharingFilter, By::Observed, 1),
    (Role::Cold, By::Observed, 2),
    (Role::Crowding, By::Observed, 4),
    (Role::Patient, By::Observed, 2),
    (Role::Least, By::Observed, 2),
    (Role::Least, By::Plain, 1),
    (Role::Writing, By::Observed, 1),
    (Role::Waiting, By::Plain, 1),
    (Role::Trying, By::Plain, 1),
    (Role::Cold, By::Plain, 1),
    (Role::LeaseProbe, By::Observed, 3),
    (Role::LeaseProbe, By::Plain, 2),
    (Role::LeaseProbe, By::Threaded, 2),
    (Role::Outstaying, By::Observed, 2),
    (Role::Bursting, By::Observed, 20),
    (Role::Again, By::Observed, 1),
    (Role::Fleet, By::Observed, FLEET),
    (Role::Ticking, By::Observed, 2),
    (Role::Opening, By::Plain, 1),
    (Role::Closing, By::Plain, 1),
];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Waiting,
    Trying,
    SharingFilter,
    Cold,
    Crowding,
    /// A key that it waits for through an outage.
    Patient,
    /// A key of its process, with a minimum hold.
    Least,
    /// A key with a document. It sits out if something else is broken on purpose.
    Writing,
    /// A key of its own, held for long.
    LeaseProbe,
    /// A key that it holds until the lease expires.
    Outstaying,
    /// Some key, at the same moment as the others of its kind in the process.
    Bursting,
    /// A key of its own, as soon as it has dropped its lease.
    Again,
    /// A key of its own, held all the time, in one process only.
    Fleet,
    /// Ticks of schedules.
    Ticking,
    /// A handle on a collection that must be refused.
    Opening,
    /// A key, until it shuts its handle down under work.
    Closing,
}

/// The handle by which a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// [`Worker::seal`].
    Observed,
    /// One of [`Worker::plain`].
    Plain,
    /// [`Worker::threaded`].
    Threaded,
}

/// A key for which few ask.
pub(crate) fn cold_key(rng: &mut Rng) -> String {
    format!("cold/{}", rng.usize(..COLD_KEYS))
}

/// A key that is asked for in bursts.
pub(crate) fn busy_key(number: usize) -> String {
    format!("{BUSY_KEY}{number}")
}

/// The key of a client of the fleet, in order.
pub(crate) fn fleet_key(number: usize) -> String {
    format!("{FLEET_KEY}{number:03}")
}

/// The servers on which the workers keep their leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Backing {
    MongoDb,
    Redis {
        /// How many replicas must acknowledge each write.
        replicas: u32,
    },
}

impl Backing {
    /// How long a store of the workers keeps idle records.
    pub(crate) fn retention(self) -> Duration {
        if self == Self::MongoDb { RETENTION } else { REDIS_RETENTION }
    }
}

/// What a worker is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) backing: Backing,
    pub(crate) uri: String,
    /// The same servers, for clients under another name.
    pub(crate) control_uri: String,
    /// Unique among all processes of the run.
    pub(crate) worker: u32,
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether the clients that ask for many keys at once sit out.
    pub(crate) few_clients: bool,
    /// The smallest grace of its leases.
    pub(crate) least_grace: Duration,
}

impl Spec {
    /// Of this process, if it was started as a worker.
    pub(crate) fn of_this_process() -> Option<Self> {
        let spec = std::env::var(SPEC).ok()?;
        Some(serde_json::from_str(&spec).expect("the runner writes what a worker reads"))
    }
}

/// What the clients of a process share.
struct Worker {
    spec: Spec,
    handles: Handles,
    notes: Arc<Notes>,
    ending: AtomicBool,
    leases: AtomicU64,
    /// How long the last write beside all leases took, in microseconds.
    last_write: Arc<AtomicU64>,
}

pub(crate) fn main(spec: Spec) {
    // A worker that is stopped when the runner dies does not see its standard input end.
    set_pdeathsig(Signal::SIGKILL).expect("the kernel tells us of the runner's end");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    process::watch_for_stalls(spec.worker, |stall| say(&stall));
    runtime.block_on(work(spec));
}

/// Reports an event, in one write: a worker may be stopped or killed anywhere.
fn say(event: &Event) {
    let line = serde_json::to_string(event).expect("events are JSON") + "\n";
    let mut out = std::io::stdout().lock();
    // Without a runner there is nothing to go on for.
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

async fn work(spec: Spec) {
    let last_write = Arc::new(AtomicU64::new(0));
    let watching = tokio::spawn(process::watch_for_slowness(spec.clone(), Arc::clone(&last_write)));
    let (sabotage, notes) = (spec.sabotage, Arc::new(Notes::default()));
    let handles = Handles::open(&spec, &notes).await;
    let listening = tokio::spawn(client::listen_all_the_time(spec.worker, handles.plain.clone()));
    let (ending, leases) = (AtomicBool::new(false), AtomicU64::new(1));
    let worker = Arc::new(Worker { spec, handles, notes, ending, leases, last_write });
    say(&Event::Ready { worker: worker.spec.worker, slot: worker.spec.slot });
    process::listen(&worker);
    // A sabotage shows sooner with fewer clients beside those that meet it.
    let is_for = |those: &[Sabotage]| sabotage.is_none_or(|sabotage| those.contains(&sabotage));
    let (slot, on_mongodb, has_many) = (worker.spec.slot, worker.has_documents(), !worker.spec.few_clients);
    let takes_part = |role: &Role| match role {
        Role::Writing => on_mongodb && is_for(&[Sabotage::NoFence, Sabotage::TransactionLeft]),
        Role::Patient => is_for(&[Sabotage::Impatient]),
        Role::Least => LEAST_SLOTS.contains(&slot) && is_for(&[Sabotage::UntoldHold]),
        Role::Fleet => on_mongodb && has_many && slot == FLEET_SLOT && is_for(&[Sabotage::SharedRefreshes]),
        // These clients slow down the worker, and the rule that judges minimum holds (I22) allows for a slow worker.
        Role::Crowding | Role::Outstaying => sabotage != Some(Sabotage::UntoldHold),
        Role::Bursting => has_many && sabotage != Some(Sabotage::UntoldHold),
        Role::Ticking => on_mongodb && is_for(&[Sabotage::OnceUnchecked]),
        Role::Opening => on_mongodb && is_for(&[Sabotage::ChecksSkipped]),
        Role::Closing => CLOSING_SLOTS.contains(&slot) && is_for(&[Sabotage::UnknownWork]),
        _ => true,
    };
    let clients = CLIENTS.into_iter().flat_map(|(role, by, count)| iter::repeat_n((role, by), count));
    let clients = clients.enumerate().filter(|(_, (role, _))| takes_part(role)).map(|(number, (role, by))| {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move { client::run(&worker, number, role, by).await })
    });
    // A store without change streams leaves out events between two polls.
    let watches = [false, true].into_iter().filter(|_| on_mongodb && slot == WATCH_SLOT).map(|of_prefix| {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move { watcher::run(&worker, of_prefix).await })
    });
    let besides: Vec<_> = watches.chain([listening]).collect();
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client does not panic");
    }
    besides.iter().for_each(tokio::task::JoinHandle::abort);
    let Handles { seal, plain, threaded, .. } = &worker.handles;
    for seal in [seal, threaded].into_iter().chain(plain) {
        let begin = now();
        seal.shutdown().await;
        say(&Event::Shutdown { worker: worker.spec.worker, begin, end: now() });
    }
    watching.abort();
}

impl Worker {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn next_lease(&self) -> u64 {
        self.leases.fetch_add(1, Ordering::Relaxed)
    }

    /// How much longer a client waits before its next acquire: twenty times as long as the last write beside all leases took.
    /// If the clients keep all processors busy, requests wait for a processor, and no rule about times holds.
    fn relief(&self) -> Duration {
        Duration::from_micros(self.last_write.load(Ordering::Relaxed)).saturating_mul(20).min(LONGEST_RELIEF)
    }

    /// A plan with a grace that the run needs.
    fn with_grace(&self, plan: Plan) -> Plan {
        let grace =
            if self.is_sabotaged(Sabotage::NoGrace) { Duration::ZERO } else { plan.grace.max(self.spec.least_grace) };
        Plan { grace, ..plan }
    }

    /// Whether the store can do all that there is: keep documents beside its records, and verify leases.
    fn has_documents(&self) -> bool {
        self.spec.backing == Backing::MongoDb
    }

    fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.spec.sabotage == Some(sabotage)
    }

    fn id(&self) -> Micros {
        u64::from(self.spec.worker)
    }
}
