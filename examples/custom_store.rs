//! A custom store: leases on any database that can compare and swap a value.
//!
//! ```text
//! cargo run --example custom_store     # two handles on this store
//! cargo test --example custom_store    # the conformance suite on this store
//! ```
//!
//! [`CompareAndSwap`] runs the protocol. It needs four small functions of a [`Backend`]. Here `Table` stands for the
//! database: replace it by your client. This backend has no notifications, so waiters poll.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mongoseal::{
    Error, Key, Mongoseal, Result,
    store::{Backend, BoxFuture, Clock, CompareAndSwap, Deadline, Loaded, LoadedKeys, Store, Swap},
};

/// How long the store keeps an idle record: longer than each ttl.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The time from the Unix epoch to 2025, where the clock of this example begins.
const BEGIN: Duration = Duration::from_secs(1_735_689_600);

/// The database.
#[derive(Debug, Default)]
struct Table(Mutex<HashMap<String, Vec<u8>>>);

impl Table {
    /// One round trip to the database. `query` gets the rows and the database's clock.
    fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut HashMap<String, Vec<u8>>, Duration) -> T,
    ) -> BoxFuture<Result<T>> {
        let answer =
            query(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), BEGIN + Clock::Boot.now().since_origin());
        Box::pin(async { Ok(answer) })
    }
}

impl Backend for Table {
    fn load(&self, key: &Key, _deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        self.query(|rows, now| Loaded { bytes: rows.get(key.as_str()).cloned(), now })
    }

    fn swap(&self, swap: Swap, _deadline: Deadline) -> BoxFuture<Result<bool>> {
        self.query(|rows, now| {
            // A database that expires rows by itself would also get `swap.keep_for`.
            let is_current = rows.get(swap.key.as_str()) == swap.loaded.as_ref() && now <= swap.now + swap.max_age;
            if is_current {
                rows.insert(swap.key.into(), swap.bytes);
            }
            is_current
        })
    }

    fn list(&self, _deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.query(|rows, now| LoadedKeys { values: rows.clone().into_iter().collect(), now })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(CompareAndSwap::new(Table::default(), RETENTION));
    let alice = Mongoseal::builder().owner("alice").on_store(store.clone())?;
    let bob = Mongoseal::builder().owner("bob").on_store(store)?;
    // Shuts both handles down, also if the work fails.
    alice.scope(async |alice| bob.scope(async |bob| work(alice, bob).await).await).await
}

async fn work(alice: &Mongoseal, bob: &Mongoseal) -> Result<()> {
    let lease = alice.acquire("reports/nightly").await?;
    println!("alice acquired {:?} with token {}", lease.key(), lease.token());
    if let Err(Error::Held { owner, .. }) = bob.acquire("reports/nightly").await {
        println!("bob is refused: {owner:?} holds the key");
    }
    let waiting = bob.acquire("reports/nightly").wait(Duration::from_secs(10));
    let (released, lease) = tokio::join!(lease.release(), waiting);
    released?;
    println!("alice released the key, and bob acquired it with token {}", lease?.token());
    Ok(())
}

#[cfg(test)]
#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_every_requirement_that_it_declares() {
    let store: Arc<dyn Store> = Arc::new(CompareAndSwap::new(Table::default(), RETENTION));
    let (declared, left_out) = mongoseal_conformance::requirements_of(store.as_ref());
    let checks = declared.into_iter().map(|requirement| requirement.check(Arc::clone(&store)));
    checks.collect::<tokio::task::JoinSet<()>>().join_all().await;
    println!("not declared: {left_out:?}");
}
