//! A worker process: waits for a key and holds it, as commanded on its standard input.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{Error, Lease, Mongoseal};
use nix::sys::{prctl::set_pdeathsig, signal::Signal};
use tokio::{sync::Notify, time::sleep};

use crate::{
    millis, ticker,
    words::{Ask, Order, Word, now},
};

/// Where the replica set is; which database; who to be; and the grace, in milliseconds.
pub(crate) const URI: &str = "MONGOSEAL_TEST_WORKER_URI";
pub(crate) const DATABASE: &str = "MONGOSEAL_TEST_WORKER_DATABASE";
pub(crate) const OWNER: &str = "MONGOSEAL_TEST_WORKER_OWNER";
pub(crate) const GRACE: &str = "MONGOSEAL_TEST_WORKER_GRACE";
/// The key that all ask for.
pub(crate) const KEY: &str = "k";

/// Whether this process was started as a worker.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(URI).is_some()
}

pub(crate) fn main() {
    // A worker that is stopped when its test dies does not see its standard input end.
    set_pdeathsig(Signal::SIGKILL).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let orders = orders();
    runtime.block_on(work(orders));
}

pub(crate) fn say(word: &Word) {
    let mut out = std::io::stdout().lock();
    // One write each: a worker may be stopped or killed anywhere.
    let line = serde_json::to_string(word).unwrap() + "\n";
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// What is read on the standard input. Where that ends, so does the process, without a good-bye.
fn orders() -> tokio::sync::mpsc::UnboundedReceiver<Order> {
    let (give, orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = serde_json::from_str(&line.unwrap()).unwrap();
            if give.send(order).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    orders
}

/// What the waiters of this process share.
struct Worker {
    seal: Mongoseal,
    finishing: AtomicBool,
    /// By waiter.
    releases: Mutex<HashMap<u32, Arc<Notify>>>,
}

async fn work(mut orders: tokio::sync::mpsc::UnboundedReceiver<Order>) {
    let of = |name| std::env::var(name).unwrap();
    let grace = millis(of(GRACE).parse().unwrap());
    let settings = Mongoseal::builder().database(of(DATABASE)).owner(of(OWNER)).grace(grace);
    let seal = settings.connect(of(URI)).await.unwrap();
    let worker = Arc::new(Worker { seal, finishing: AtomicBool::new(false), releases: Mutex::default() });
    say(&Word::Ready);
    while let Some(order) = orders.recv().await {
        match order {
            Order::Ask(ask) => {
                let worker = Arc::clone(&worker);
                tokio::spawn(async move { worker.take_turns(&ask).await });
            }
            Order::Schedule(schedule) => {
                let seal = worker.seal.clone();
                tokio::spawn(async move { ticker::run(&seal, &schedule).await });
            }
            Order::Release { waiter } => worker.release(waiter).notify_one(),
            Order::Finish => worker.finishing.store(true, Ordering::Relaxed),
            Order::ShutDown => {
                worker.seal.shutdown().await;
                say(&Word::ShutDown);
            }
        }
    }
}

impl Worker {
    fn release(&self, waiter: u32) -> Arc<Notify> {
        Arc::clone(self.releases.lock().unwrap().entry(waiter).or_default())
    }

    async fn take_turns(&self, ask: &Ask) {
        let waiter = ask.waiter;
        for _ in 0..ask.turns {
            if self.finishing.load(Ordering::Relaxed) {
                break;
            }
            say(&Word::Asks { waiter, at: now() });
            let asked = self.seal.acquire(KEY).ttl(ask.ttl).wait(ask.wait).into_future();
            let answer = match ask.drop_after {
                None => Some(asked.await),
                Some(after) => tokio::time::timeout(after, asked).await.ok(),
            };
            match answer {
                Some(Ok(lease)) => self.hold(ask, lease).await,
                Some(Err(Error::Held { .. })) => say(&Word::Held { waiter }),
                Some(Err(error)) => say(&Word::Failed { waiter, error: format!("{error:?}") }),
                None => say(&Word::Dropped { waiter }),
            }
        }
        say(&Word::Done { waiter });
    }

    /// Holds the lease for as long as it was told to, looking all the time whether it does.
    async fn hold(&self, ask: &Ask, lease: Lease) {
        let (waiter, token, id) = (ask.waiter, lease.token(), lease.id().expose());
        // Looked at after the clock: what is valid then was valid at that time, too.
        let believed = || {
            let at = now();
            lease.is_valid().then_some(at)
        };
        let Some(began) = believed() else { return say(&Word::Stale { waiter, token }) };
        say(&Word::Granted { waiter, token, lease: id, at: began });
        let release = self.release(waiter);
        let told = async {
            match ask.hold {
                Some(hold) => sleep(hold).await,
                None => release.notified().await,
            }
        };
        tokio::pin!(told);
        let mut last = began;
        loop {
            match believed() {
                Some(at) => last = at,
                None => return say(&Word::Lost { waiter, token, last }),
            }
            tokio::select! {
                biased;
                () = &mut told => break,
                () = sleep(Duration::from_millis(1)) => {}
            }
        }
        let Some(last) = believed() else { return say(&Word::Lost { waiter, token, last }) };
        say(&Word::Releases { waiter, token, last });
        let answer = lease.release().await;
        say(&Word::Released { waiter, answer: format!("{answer:?}") });
    }
}
