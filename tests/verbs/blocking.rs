//! The API for callers without async. Its threads are not those of the test, so these tests run on real time.

mod contexts;
mod drops;
mod lease;
mod verbs;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mongoseal::{
    blocking::{Builder, Mongoseal},
    record::Request,
    store::{MemoryStore, Store},
    testing::ManualClock,
};

use crate::{faulty::Faulty, millis, secs};

/// Longer than any call takes, and shorter than any ttl that is not [`SHORT`].
const SOON: Duration = secs(20);
/// The time of what ends by itself.
const SHORT: Duration = millis(300);
/// An operation timeout that ends soon, and not before a busy machine has answered.
const HASTY: Duration = secs(1);

fn on(store: &Faulty) -> Mongoseal {
    build(store, Mongoseal::builder())
}

fn build(store: &(impl Store + Clone), builder: Builder) -> Mongoseal {
    builder.on_store(Arc::new(store.clone())).unwrap()
}

/// Polls a condition until it holds.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what}");
        thread::sleep(millis(2));
    }
}

/// Waits, without a call of the handle, until a lease that is refreshed each tenth of a second has been twice.
fn until_refreshed(store: &Faulty) {
    let refreshed = || store.requests().iter().filter(|request| matches!(request, Request::Refresh(_))).count();
    let before = refreshed();
    eventually("it is refreshed", || refreshed() >= before + 2);
}

/// The panic of a call, if it panics.
fn catch<T>(call: impl FnOnce() -> T) -> thread::Result<T> {
    panic::catch_unwind(AssertUnwindSafe(call))
}

/// A handle on a clock that the test moves.
fn on_clock() -> (ManualClock, Mongoseal) {
    let clock = ManualClock::new();
    (clock, Mongoseal::in_memory_on(&MemoryStore::on_clock(clock)).unwrap())
}
