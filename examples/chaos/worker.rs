//! A process that asks for keys, holds them and writes, and tells all of it on its standard output.

pub(crate) mod client;
pub(crate) mod holder;
pub(crate) mod observed;
mod writer;

use std::{
    io::{BufRead, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::{Client, Collection, bson::Document};
use mongoseal::{Mongoseal, store::MongoStore};
use nix::sys::{prctl::set_pdeathsig, signal::Signal};
use serde::{Deserialize, Serialize};

use crate::{
    sabotage::Sabotage,
    words::{Event, Micros, now},
};
use observed::{Notes, Observed};

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
/// How many may share a key of a pool.
pub(crate) const POOL: u32 = 3;
const COLD_KEYS: usize = 150;
/// How many ask at once in a process. The last one, who writes documents, leads and revokes, sits out
/// where something else is broken on purpose.
const CLIENTS: usize = 10;

/// What a worker is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) uri: String,
    pub(crate) database: String,
    /// Unique among all processes of the run.
    pub(crate) worker: u32,
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<String>,
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
    seal: Mongoseal,
    /// Another handle, of which nobody takes notes: transactions need it, and what is handed on goes to it.
    plain: Mongoseal,
    documents: Collection<Document>,
    notes: Arc<Notes>,
    ending: AtomicBool,
    leases: AtomicU64,
}

pub(crate) fn main(spec: Spec) {
    // A worker that is stopped when the runner dies does not see its standard input end.
    set_pdeathsig(Signal::SIGKILL).expect("the kernel tells us of the runner's end");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
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
            if to - last > 100_000 {
                say(&Event::Stall { worker, from: last, to });
            }
            last = to;
        }
    });
}

async fn work(spec: Spec) {
    let client = Client::with_uri_str(&spec.uri).await.expect("the runner's connection string is valid");
    let database = client.database(&spec.database);
    let store = MongoStore::new(&database, "mongoseal", RETENTION);
    let notes = Arc::new(Notes::default());
    let sabotage = spec.sabotage.as_deref().and_then(|name| Sabotage::parse(name).ok());
    let observed = Observed { store, worker: spec.worker, sabotage, notes: Arc::clone(&notes) };
    let builder = || {
        let owner = format!("slot-{}/{}", spec.slot, spec.worker);
        Mongoseal::builder().owner(owner).ttl(Duration::from_secs(2)).operation_timeout(OPERATION_TIMEOUT)
    };
    let seal = builder().on_store(Arc::new(observed)).expect("the settings are valid");
    let plain = builder().retention(RETENTION).on(&database).expect("the settings are valid");
    let documents = database.collection(DOCUMENTS);
    let (ending, leases) = (AtomicBool::new(false), AtomicU64::new(0));
    let worker = Arc::new(Worker { spec, seal, plain, documents, notes, ending, leases });
    say(&Event::Ready { worker: worker.spec.worker, slot: worker.spec.slot });
    listen(&worker);
    let clients = CLIENTS - usize::from(sabotage.is_some_and(|sabotage| sabotage != Sabotage::NoFence));
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let worker = Arc::clone(&worker);
            tokio::spawn(async move { client::run(&worker, client).await })
        })
        .collect();
    for client in clients {
        client.await.expect("a client does not panic");
    }
    worker.seal.shutdown().await;
    worker.plain.shutdown().await;
    say(&Event::Done { worker: worker.spec.worker, at: now() });
}

/// Ends the process orderly at the first line on the standard input, and at once where that ends.
fn listen(worker: &Arc<Worker>) {
    let worker = Arc::clone(worker);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {
            worker.ending.store(true, Ordering::Relaxed);
        }
        std::process::exit(0);
    });
}

impl Worker {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn next_lease(&self) -> u64 {
        self.leases.fetch_add(1, Ordering::Relaxed)
    }

    fn id(&self) -> Micros {
        u64::from(self.spec.worker)
    }
}
