//! `mongoseal demo`: a holder that is paused past its ttl, and what a fence is for.
//!
//! Two workers use leases of the memory store and write to one storage, once with a fence and once without. The paused
//! worker runs on a thread that sleeps. Each line is printed when its event happens.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use mongoseal::{
    Error, FenceGate, FencingToken, Lease, Mongoseal,
    store::{Clock, Instant, MemoryStore},
};

use crate::{
    exit_status::{Failure, Status},
    time,
    ui::output,
};

const KEY: &str = "accounts/ada";
const TTL: Duration = Duration::from_secs(2);
/// The longest pause of the first worker, which ends when the second has written; also the longest wait for the lease.
const PAUSE: Duration = Duration::from_secs(10);
const BEFORE: i64 = 100;
const FIRST: i64 = 10;
const SECOND: i64 = 50;

pub(crate) async fn perform() -> Result<Status, Failure> {
    output::line(&format!(
        "Two workers add to Ada's balance of {BEFORE}: Alice {FIRST}, Bob {SECOND}. Each reads it, adds,\n\
         and writes the sum, under a lease on {KEY:?} with a ttl of {}.\n\
         Alice is paused between her read and her write, as garbage collection or a\n\
         suspended machine pauses a program.",
        time::brief(TTL)
    ))?;
    output::line("\n1. Without a fence")?;
    let without = story(Storage::new(None)).await?;
    output::line("\n2. With a fence: the storage refuses a token smaller than one it has seen")?;
    let with = story(Storage::new(Some(FenceGate::new()))).await?;
    let right = BEFORE + FIRST + SECOND;
    output::line(&format!(
        "\nThe balance must be {right}. Without a fence it is {without}, with a fence {with}. No lease\n\
         can stop Alice in time, because she is paused. The token can, because the\n\
         storage checks it with each write."
    ))?;
    Ok(if with == right { Status::DONE } else { Status::NO })
}

/// The storage: a balance, with or without a gate.
struct Storage {
    gate: Option<FenceGate>,
    balance: Mutex<i64>,
}

impl Storage {
    fn new(gate: Option<FenceGate>) -> Self {
        Self { gate, balance: Mutex::new(BEFORE) }
    }

    fn read(&self) -> i64 {
        *self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, balance: i64, token: FencingToken) -> mongoseal::Result<()> {
        let mut now = self.balance.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = &self.gate {
            gate.admit(KEY, token)?; // check and write are under one lock
        }
        *now = balance;
        Ok(())
    }
}

/// Runs both workers, the first with a pause. Returns the final balance.
async fn story(storage: Storage) -> Result<i64, Failure> {
    let (store, storage, began) = (MemoryStore::default(), Arc::new(storage), Clock::Boot.now());
    let seal = Mongoseal::in_memory_on(&store);
    let alice = Worker { name: "Alice", seal: seal.clone(), storage: Arc::clone(&storage), began };
    let bob = Worker { name: "Bob", ..alice.clone() };
    let (paused, has_paused) = tokio::sync::oneshot::channel();
    let (wake, woken) = mpsc::channel();
    // Alice has a thread and a runtime of her own, so that during the pause nothing of hers runs, not even a refresh.
    let thread = thread::spawn(move || alice.add_and_be_paused(&store, paused, &woken));
    // If Alice fails before her pause, `join` returns her error.
    if has_paused.await.is_ok() {
        bob.add(SECOND).await?;
    }
    // Fails only if Alice has ended already.
    wake.send(()).ok();
    let alice = thread.join().map_err(|_panicked| Failure::invalid("Alice panicked"))?;
    if let Some(alice) = alice? {
        alice.add(FIRST).await?;
    }
    seal.shutdown().await;
    Ok(storage.read())
}

#[derive(Clone)]
struct Worker {
    name: &'static str,
    seal: Mongoseal,
    storage: Arc<Storage>,
    began: Instant,
}

impl Worker {
    /// Prints what the worker does, with the time since the beginning.
    fn print(&self, action: &str) -> Result<(), Failure> {
        let since = Clock::Boot.now().since(self.began).as_secs_f64();
        Ok(output::line(&format!("  {since:>4.1} s  {:<5}  {action}", self.name))?)
    }

    async fn acquire(&self) -> Result<Lease, Failure> {
        Ok(self.seal.acquire(KEY).ttl(TTL).wait(PAUSE).await?)
    }

    async fn add(&self, more: i64) -> Result<(), Failure> {
        self.print("waits for the lease")?;
        let lease = self.acquire().await?;
        self.print(&format!("gets it, with token {}", lease.token()))?;
        let balance = self.storage.read();
        self.storage.write(balance + more, lease.token())?;
        self.print(&format!("reads {balance} and writes {}", balance + more))?;
        lease.release().await?;
        Ok(())
    }

    /// Reads, pauses until it is woken, and writes. If the write was refused, returns the worker for another attempt.
    fn add_and_be_paused(
        self,
        store: &MemoryStore,
        paused: tokio::sync::oneshot::Sender<()>,
        woken: &mpsc::Receiver<()>,
    ) -> Result<Option<Self>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // What keeps a lease in memory runs on the runtime in which its handle was made.
        let own = Self { seal: runtime.block_on(async { Mongoseal::in_memory_on(store) }), ..self.clone() };
        let lease = runtime.block_on(own.acquire())?;
        self.print(&format!("gets the lease, with token {}", lease.token()))?;
        let balance = self.storage.read();
        self.print(&format!("reads {balance}; is her lease valid? {}", yes_or_no(lease.is_valid())))?;
        self.print("is paused")?;
        paused.send(()).ok();
        woken.recv_timeout(PAUSE).ok();
        self.print(&format!("wakes up, has noticed nothing, and writes {}", balance + FIRST))?;
        let written = self.storage.write(balance + FIRST, lease.token());
        let again = match written {
            Ok(()) => {
                self.print(&format!(
                    "is not refused: the balance is {}, and Bob's {SECOND} are lost",
                    self.storage.read()
                ))?;
                None
            }
            Err(Error::Fenced { newer }) => {
                self.print(&format!("is refused: the storage has seen token {newer}"))?;
                Some(self.clone())
            }
            Err(other) => return Err(other.into()),
        };
        self.print(&format!("checks again: is her lease valid? {}", yes_or_no(lease.is_valid())))?;
        lease.orphan();
        Ok(again)
    }
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
