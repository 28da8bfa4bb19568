//! The process of a worker: what it tells of the machine, and the orders that it takes.

use std::{
    io::BufRead,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use tokio::{runtime::Handle, time::sleep};

use super::{BLOCK, Backing, Spec, THREADS, Worker, say};
use crate::{
    crew::DATABASE,
    words::{Event, Micros, micros, now},
};

/// From how long on a process that does not run says so.
const STALL: Micros = 50_000;
/// How long a runtime needs at most, after it was blocked, to do what was due.
const SETTLING: Duration = Duration::from_millis(300);
/// From how long on a write is slow, and how often one is made to see that.
const SLOW: Duration = Duration::from_millis(50);
const WRITE_EVERY: Duration = Duration::from_millis(200);

/// Reports when the process did not run, because it was stopped or because the machine was busy.
pub(crate) fn watch_for_stalls(worker: u32, tell: impl Fn(Event) + Send + 'static) {
    std::thread::spawn(move || {
        let mut last = now();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let to = now();
            if to - last > STALL {
                tell(Event::Stall { worker, from: last, to });
            }
            last = to;
        }
    });
}

/// Where a worker writes beside all leases.
enum Control {
    Collection(Collection<Document>),
    Redis(Box<redis::Client>),
}

impl Control {
    async fn of(spec: &Spec) -> Self {
        match spec.backing {
            Backing::MongoDb => {
                let client = Client::with_uri_str(&spec.control_uri).await;
                let client = client.expect("the runner's connection string is valid");
                Self::Collection(client.database(DATABASE).collection("control"))
            }
            Backing::Redis { .. } => {
                let client = redis::Client::open(spec.control_uri.as_str());
                Self::Redis(Box::new(client.expect("the runner's connection string is valid")))
            }
        }
    }

    /// Counts one more. Returns whether that was confirmed.
    async fn write(&self, slot: u32) -> bool {
        match self {
            Self::Collection(control) => {
                let update = doc! { "$inc": { "count": 1_i64 } };
                let write = control.update_one(doc! { "_id": slot }, update).upsert(true);
                write.write_concern(WriteConcern::majority()).await.is_ok()
            }
            // It connects again each time: the way to the primary changes.
            Self::Redis(client) => {
                let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
                let count = redis::cmd("INCR").arg(format!("control:{slot}")).exec_async(&mut connection).await;
                count.is_ok()
            }
        }
    }
}

/// Writes all the while, notes how long that took, and tells when it was long.
pub(super) async fn watch_for_slowness(spec: Spec, last_write: Arc<AtomicU64>) {
    let control = Control::of(&spec).await;
    loop {
        let from = now();
        let is_confirmed = control.write(spec.slot).await;
        let to = now();
        last_write.store(to - from, Ordering::Relaxed);
        if !is_confirmed || to - from > micros(SLOW) {
            say(&Event::Slow { worker: spec.worker, from, to });
        }
        sleep(WRITE_EVERY).await;
    }
}

/// Does what the runner orders by a line on the standard input: blocks the runtime, or ends the process orderly. Ends it at
/// once where the standard input ends.
pub(super) fn listen(worker: &Arc<Worker>) {
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
    // The process may be killed before it can say more.
    say(&Event::Stall { worker, from, to: from + micros(length + SETTLING) });
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
