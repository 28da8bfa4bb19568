//! The library on replica sets with faults. Each test has a set of its own. The tests measure times, so only a few run
//! concurrently, and those that keep the machine busy run alone.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod apart;
mod deposed;
mod durable;
mod failover;
mod locked;
mod lost_replies;
mod matrix;
mod recovery;
mod round_trip;
mod slow_queries;
mod unconfirmed;
mod unreachable;
mod watch;

use mongoseal::{Builder, Mongoseal};
use mongoseal_test_support::{millis, secs};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How many tests run at once that mostly wait.
const AT_ONCE: u32 = 5;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE as usize);

/// The turn of a test that mostly waits.
async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.unwrap()
}

/// The turn of a test that keeps the machine busy, beside one that mostly waits.
async fn busy_turn() -> SemaphorePermit<'static> {
    TURNS.acquire_many(AT_ONCE - 1).await.unwrap()
}

/// The turn of a test that compares times of a busy machine: no other runs meanwhile.
async fn turn_alone() -> SemaphorePermit<'static> {
    TURNS.acquire_many(AT_ONCE).await.unwrap()
}

/// A handle that has connected.
async fn connect(builder: Builder, uri: String) -> Mongoseal {
    builder.connect(uri).await.unwrap()
}
