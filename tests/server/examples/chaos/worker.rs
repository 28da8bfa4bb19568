//! A worker process: acquires keys, holds them, writes, and reports each step on its standard output.

pub(crate) mod client;
pub(crate) mod holder;
pub(crate) mod observed;
pub(crate) mod ticker;
mod writer;

use std::{
    io::{BufRead, Write},
    iter,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use client::Plan;
use fastrand::Rng;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::{
    Builder, Error, Mongoseal,
    store::{MongoStore, Store},
};
use nix::sys::{prctl::set_pdeathsig, signal::Signal};
use observed::{Notes, Observed};
use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    sabotage::Sabotage,
    words::{Event, Micros, micros, now},
};

/// The variable of the environment with the [`Spec`] of a worker.
pub(crate) const SPEC: &str = "MONGOSEAL_CHAOS_WORKER";
/// How long idle records are kept.
pub(crate) const RETENTION: Duration = Duration::from_secs(4);
/// How long a call may take.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(3);
/// Of keys that many ask for. Those of which three may hold are the last two.
pub(crate) const HOT_KEYS: [&str; 5] = ["hot/0", "hot/1", "hot/2", "pool/0", "pool/1"];
/// Of keys that have a document each: the first two are fenced, the others written in transactions.
pub(crate) const WRITTEN_KEYS: [&str; 4] = ["doc/0", "doc/1", "ledger/0", "ledger/1"];
/// The collection of those documents.
pub(crate) const DOCUMENTS: &str = "documents";
/// What is led.
pub(crate) const LEADERSHIP: &str = "lead/0";
/// The key that four of each process wait for all the time.
pub(crate) const CROWDED_KEY: &str = "crowd/0";
/// The key that is waited for longer than an outage lasts, and for how long if outages last a few seconds.
pub(crate) const PATIENT_KEY: &str = "patient/0";
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// What keys begin with that are kept by a handle with a thread of its own.
pub(crate) const OF_THREAD: &str = "thread/";
/// The order to block all threads of the runtime, before a number of milliseconds.
pub(crate) const BLOCK: &str = "block";
/// How many threads the runtime of a process has.
const THREADS: usize = 2;
/// How many clients of a process run schedules.
const TICKERS: u64 = 2;
/// How many of the handles of a process take no notes.
const PLAIN: usize = 12;
/// How long a runtime needs at most, after it was blocked, to do what was due.
const SETTLING: Duration = Duration::from_millis(300);
/// The key for which all waits end at the same moments, and how far these are apart.
pub(crate) const ENDING_KEY: &str = "ending/0";
pub(crate) const ENDS_EVERY: Duration = Duration::from_secs(2);
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
/// From how long on a process that does not run says so.
pub(crate) const STALL: Micros = 50_000;
/// From how long on a write is slow, and how often one is made to see that.
const SLOW: Duration = Duration::from_millis(50);
const WRITE_EVERY: Duration = Duration::from_millis(200);
const COLD_KEYS: usize = 150;
/// Keys that are asked for in bursts.
const BUSY_KEYS: usize = 60;
/// How often there is a burst.
const BURST_EVERY: Duration = Duration::from_secs(3);

/// The clients of a process: what each asks for, and by which handle. The first two handles share one
/// `mongodb::Client`.
const CLIENTS: [(Role, By, usize); 17] = [
    (Role::Waiting, By::Observed, 1),
    (Role::Trying, By::Observed, 1),
    (Role::SharingFilter, By::Observed, 1),
    (Role::Cold, By::Observed, 2),
    (Role::Crowding, By::Observed, 4),
    (Role::Patient, By::Observed, 2),
    (Role::Ending, By::Plain, 4),
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
    /// A key, by a wait that ends together with the others'.
    Ending,
    /// Documents, a leadership, and revocations. It sits out if something else is broken on purpose.
    Writing,
    /// A key of its own, held for long.
    LeaseProbe,
    /// A key that it holds until the lease expires.
    Outstaying,
    /// Some key, at the same moment as the others of its kind in the process.
    Bursting,
    /// A key of its own, as soon as it has dropped its lease.
    Again,
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

/// Whether it is a key for which few ask, some of them for a group.
pub(crate) fn is_cold(key: &str) -> bool {
    key.starts_with("cold/")
}

/// What a worker is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) uri: String,
    /// The same set, for clients under another name.
    pub(crate) control_uri: String,
    pub(crate) database: String,
    /// Unique among all processes of the run.
    pub(crate) worker: u32,
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<String>,
    /// The smallest grace of its leases.
    pub(crate) least_grace: Micros,
    /// How long it waits for the key that is waited for through outages.
    pub(crate) patience: Micros,
}

impl Spec {
    /// Of this process, if it was started as a worker.
    pub(crate) fn of_this_process() -> Option<Self> {
        let spec = std::env::var(SPEC).ok()?;
        Some(serde_json::from_str(&spec).expect("the runner writes what a worker reads"))
    }

    fn least_grace(&self) -> Duration {
        Duration::from_micros(self.least_grace)
    }
}

/// What the clients of a process share.
struct Worker {
    spec: Spec,
    seal: Mongoseal,
    /// Siblings on the same client, and handles of one store. Their stores take no notes. Transactions need that, transferred
    /// leases go to one of them, and some clients acquire by them.
    plain: Vec<Mongoseal>,
    /// A handle with a client and a thread of its own.
    threaded: Mongoseal,
    documents: Collection<Document>,
    notes: Arc<Notes>,
    ending: AtomicBool,
    leases: AtomicU64,
}

pub(crate) fn main(spec: Spec) {
    // A worker that is stopped when the runner dies does not see its standard input end.
    set_pdeathsig(Signal::SIGKILL).expect("the kernel tells us of the runner's end");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    watch_for_stalls(spec.worker);
    runtime.block_on(work(spec));
}

/// Tells an event, in one write: a worker may be stopped or killed anywhere.
fn say(event: &Event) {
    let line = serde_json::to_string(event).expect("events are JSON") + "\n";
    let mut out = std::io::stdout().lock();
    // Without a runner there is nothing to go on for.
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Tells when the process did not run, because it was stopped or because the machine was busy.
fn watch_for_stalls(worker: u32) {
    std::thread::spawn(move || {
        let mut last = now();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let to = now();
            if to - last > STALL {
                say(&Event::Stall { worker, from: last, to });
            }
            last = to;
        }
    });
}

/// Writes all the while, and tells when that took long.
async fn watch_for_slowness(spec: Spec) {
    let client = Client::with_uri_str(&spec.control_uri).await.expect("the runner's connection string is valid");
    let control = client.database(&spec.database).collection::<Document>("control");
    let (filter, update) = (doc! { "_id": spec.slot }, doc! { "$inc": { "count": 1_i64 } });
    loop {
        let from = now();
        let write = control.update_one(filter.clone(), update.clone()).upsert(true);
        let written = write.write_concern(WriteConcern::majority()).await;
        let to = now();
        if written.is_err() || to - from > micros(SLOW) {
            say(&Event::Slow { worker: spec.worker, from, to });
        }
        sleep(WRITE_EVERY).await;
    }
}

async fn work(spec: Spec) {
    let watching = tokio::spawn(watch_for_slowness(spec.clone()));
    let sabotage = spec.sabotage.as_deref().and_then(|name| Sabotage::parse(name).ok());
    let client = Client::with_uri_str(&spec.uri).await.expect("the runner's connection string is valid");
    let database = client.database(&spec.database);
    let store = MongoStore::new(&database, "mongoseal", RETENTION);
    let notes = Arc::new(Notes::default());
    let (notes_of, spread) = (Arc::clone(&notes), spec.least_grace);
    let observed = Observed { store, worker: spec.worker, sabotage, spread, notes: notes_of };
    let builder = || {
        let owner = format!("slot-{}/{}", spec.slot, spec.worker);
        let builder = Mongoseal::builder().owner(owner).ttl(Duration::from_secs(2)).grace(spec.least_grace());
        builder.operation_timeout(OPERATION_TIMEOUT)
    };
    let seal = builder().on_store(Arc::new(observed)).expect("the settings are valid");
    let has_own_streams = sabotage == Some(Sabotage::OwnStreams);
    let independent = || builder().retention(RETENTION).on(&database).expect("the settings are valid");
    let first = independent();
    let shared: Arc<dyn Store> = Arc::new(MongoStore::new(&database, "mongoseal", RETENTION));
    let handle = |number: usize| match number % 2 {
        _ if has_own_streams => independent(),
        0 => builder().sibling_of(&first).expect("the settings are valid"),
        _ => builder().on_store(Arc::clone(&shared)).expect("the settings are valid"),
    };
    let mut plain: Vec<_> = (1..PLAIN).map(handle).collect();
    plain.push(first);
    let listening = tokio::spawn(client::listen_all_the_time(spec.worker, plain.clone()));
    let threaded = threaded(&spec, builder, sabotage).await;
    let documents = database.collection(DOCUMENTS);
    let (ending, leases) = (AtomicBool::new(false), AtomicU64::new(0));
    let worker = Arc::new(Worker { spec, seal, plain, threaded, documents, notes, ending, leases });
    say(&Event::Ready { worker: worker.spec.worker, slot: worker.spec.slot });
    listen(&worker);
    // A sabotage shows sooner with fewer clients beside those that meet it.
    let sits_out = |role: Role| match role {
        Role::Writing => sabotage.is_some_and(|sabotage| sabotage != Sabotage::NoFence),
        Role::Patient => sabotage.is_some_and(|sabotage| sabotage != Sabotage::Impatient),
        Role::Ending => sabotage.is_some(),
        _ => false,
    };
    let clients = CLIENTS.into_iter().flat_map(|(role, by, count)| iter::repeat_n((role, by), count));
    let mut clients: Vec<_> = clients
        .enumerate()
        .filter(|(_, (role, _))| !sits_out(*role))
        .map(|(number, (role, by))| {
            let worker = Arc::clone(&worker);
            tokio::spawn(async move { client::run(&worker, number, role, by).await })
        })
        .collect();
    if sabotage.is_none_or(|sabotage| sabotage == Sabotage::OnceUnchecked) {
        clients.extend((0..TICKERS).map(|number| {
            let worker = Arc::clone(&worker);
            tokio::spawn(async move { ticker::run(&worker, number).await })
        }));
    }
    for client in clients {
        client.await.expect("a client does not panic");
    }
    listening.abort();
    for seal in [&worker.seal, &worker.threaded].into_iter().chain(&worker.plain) {
        let begin = now();
        seal.shutdown().await;
        say(&Event::Shutdown { worker: worker.spec.worker, begin, end: now() });
    }
    watching.abort();
    say(&Event::Done { worker: worker.spec.worker, at: now() });
}

/// A handle with a client and a thread of its own. It waits for servers that do not answer now.
async fn threaded(spec: &Spec, builder: impl Fn() -> Builder, sabotage: Option<Sabotage>) -> Mongoseal {
    loop {
        let mut builder = builder().retention(RETENTION).database(&spec.database);
        if sabotage != Some(Sabotage::NoThread) {
            builder = builder.dedicated_thread();
        }
        match builder.connect(&spec.uri).await {
            Ok(threaded) => return threaded,
            Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("a worker can connect: {error}"),
        }
    }
}

/// Does what the runner orders by a line on the standard input: blocks the runtime, or ends the process orderly. Ends it at
/// once where the standard input ends.
fn listen(worker: &Arc<Worker>) {
    let (worker, runtime) = (Arc::clone(worker), Handle::current());
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let millis = line.strip_prefix(BLOCK).and_then(|millis| millis.trim().parse().ok());
            match millis.map(Duration::from_millis) {
                Some(length) => block(&runtime, worker.spec.worker, length),
                None => worker.ending.store(true, Ordering::Relaxed),
            }
        }
        std::process::exit(0);
    });
}

/// Blocks all threads of the runtime. For its callers that is as if the process did not run.
fn block(runtime: &Handle, worker: u32, length: Duration) {
    let from = now();
    let together = Arc::new(Barrier::new(THREADS));
    for _ in 0..THREADS {
        let together = Arc::clone(&together);
        runtime.spawn(async move {
            together.wait();
            std::thread::sleep(length);
            together.wait();
        });
    }
    std::thread::spawn(move || {
        std::thread::sleep(length + SETTLING);
        say(&Event::Stall { worker, from, to: now() });
    });
}

impl Worker {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn next_lease(&self) -> u64 {
        self.leases.fetch_add(1, Ordering::Relaxed)
    }

    /// A plan with a grace that the run needs.
    fn with_grace(&self, plan: Plan) -> Plan {
        let grace =
            if self.is_sabotaged(Sabotage::NoGrace) { Duration::ZERO } else { plan.grace.max(self.spec.least_grace()) };
        Plan { grace, ..plan }
    }

    fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.spec.sabotage.as_deref() == Some(sabotage.name())
    }

    fn id(&self) -> Micros {
        u64::from(self.spec.worker)
    }
}
