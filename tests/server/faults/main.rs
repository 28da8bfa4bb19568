//! The library on replica sets that are hurt: each test has a set of its own and the machine to
//! itself, because what it measures is time.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod apart;
mod deposed;
mod durable;
mod failover;
mod lost_replies;
mod matrix;
mod recovery;
mod round_trip;
mod unconfirmed;
mod unreachable;
mod watch;

use mongoseal::{Builder, Mongoseal};
use mongoseal_test_support::{millis, secs};
use tokio::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::const_new(());

/// One test at a time.
async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// A handle that has connected.
async fn connect(builder: Builder, uri: String) -> Mongoseal {
    builder.connect(uri).await.unwrap()
}
