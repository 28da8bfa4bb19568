//! `mongoseal demo`: a holder that is paused past its ttl, and what a fence is for.
//!
//! Nothing here is told that does not happen: two workers with a lease each, one of them on a thread that
//! sleeps, a storage, and a gate in front of it or none.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use mongoseal::{Clock, Error, FenceGate, FencingToken, Lease, Mongoseal};

use crate::{
    exit_status::{Failure, Status},
    output, time,
};

const KEY: &str = "accounts/ada";
const TTL: Duration = Duration::from_secs(2);
/// For how long the first worker is paused, at most: until the second has written.
const PAUSE: Duration = Duration::from_secs(10);
const BEFORE: i64 = 100;
const FIRST: i64 = 10;
const SECOND: i64 = 50;

pub(crate) async fn perform() -> Result<Status, Failure> {
    output::line(&format!(
        "Two workers add to Ada's balance of {BEFORE}: Alice {FIRST}, Bob {SECOND}. Each reads it, adds,\n\
         and writes it back, under a lease on {KEY:?} of {}. Alice is paused\n\
         between her read and her write, as a program is by a garbage collector or a\n\
         suspended machine.",
        time::brief(TTL)
    ))?;
    output::line("\n1. Without a fence")?;
    let without = story(Storage::new(None)).await?;
    output::line("\n2. With a fence: the storage refuses tokens smaller than one it has seen")?;
    let with = story(Storage::new(Some(FenceGate::new()))).await?;
    let right = BEFORE + FIRST + SECOND;
    output::line(&format!(
        "\nThe balance must be {right}. Without a fence it is {without}, with one it is {with}. No lease\n\
         could have told Alice in time: she was paused. The token can, because it is\n\
         looked at where she writes."
    ))?;
    Ok(if with == right { Status::DONE } else { Status::NO })
}

/// What is written to: a balance, behind a gate or without.
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
            gate.admit(KEY, token)?; // under the lock that the write is under
        }
        *now = balance;
        Ok(())
    }
}

/// Who says what, and when.
#[derive(Clone, Copy)]
struct Narrator {
    clock: Clock,
    began: Duration,
}

impl Narrator {
    fn begin() -> Self {
        let clock = Clock::Boot;
        Self { clock, began: clock.now() }
    }

    fn says(self, who: &str, what: &str) -> Result<(), Failure> {
        let since = self.clock.now().saturating_sub(self.began).as_secs_f64();
        Ok(output::line(&format!("  {since:>4.1} s  {who:<5}  {what}"))?)
    }
}

/// Both add, the first is paused. Gives the balance at the end.
async fn story(storage: Storage) -> Result<i64, Failure> {
    let (seal, storage, narrator) = (Mongoseal::in_memory(), Arc::new(storage), Narrator::begin());
    let alice = Worker { name: "Alice", seal: seal.clone(), storage: Arc::clone(&storage), narrator };
    let bob = Worker { name: "Bob", ..alice.clone() };
    let (paused, has_paused) = tokio::sync::oneshot::channel();
    let (wake, woken) = mpsc::channel();
    // On a thread of her own, which sleeps: nothing that belongs to her runs meanwhile.
    let thread = thread::spawn(move || alice.add_and_be_paused(paused, &woken));
    // She says why, where she ends sooner.
    if has_paused.await.is_ok() {
        bob.add(SECOND).await?;
    }
    // Where she is gone already there is nobody to wake.
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
    narrator: Narrator,
}

impl Worker {
    fn says(&self, what: &str) -> Result<(), Failure> {
        self.narrator.says(self.name, what)
    }

    async fn acquire(&self) -> Result<Lease, Failure> {
        Ok(self.seal.acquire(KEY).ttl(TTL).wait(PAUSE).await?)
    }

    async fn add(&self, more: i64) -> Result<(), Failure> {
        self.says("waits for the lease")?;
        let lease = self.acquire().await?;
        self.says(&format!("has it, with token {}", lease.token()))?;
        let balance = self.storage.read();
        self.storage.write(balance + more, lease.token())?;
        self.says(&format!("reads {balance} and writes {}", balance + more))?;
        lease.release().await?;
        Ok(())
    }

    /// Reads, is paused until it is woken, and writes. Gives itself back where that was refused, and it must
    /// be done again.
    fn add_and_be_paused(
        self,
        paused: tokio::sync::oneshot::Sender<()>,
        woken: &mpsc::Receiver<()>,
    ) -> Result<Option<Self>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
        let lease = runtime.block_on(self.acquire())?;
        self.says(&format!("has the lease, with token {}", lease.token()))?;
        let balance = self.storage.read();
        self.says(&format!("reads {balance}; does she hold it? {}", yes_or_no(lease.is_valid())))?;
        self.says("is paused")?;
        paused.send(()).ok();
        woken.recv_timeout(PAUSE).ok();
        self.says(&format!("wakes up, knows of nothing, and writes {}", balance + FIRST))?;
        let written = self.storage.write(balance + FIRST, lease.token());
        let again = match written {
            Ok(()) => {
                self.says(&format!(
                    "is not stopped: the balance is {}, and Bob's {SECOND} are gone",
                    self.storage.read()
                ))?;
                None
            }
            Err(Error::Fenced { newer }) => {
                self.says(&format!("is refused: the storage has seen token {newer}"))?;
                Some(self.clone())
            }
            Err(other) => return Err(other.into()),
        };
        self.says(&format!("looks again: does she hold it? {}", yes_or_no(lease.is_valid())))?;
        lease.orphan();
        Ok(again)
    }
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
