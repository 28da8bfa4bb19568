//! The memory store keeps every requirement of the conformance suite. `main.rs` checks MongoDB, and
//! `tests/stores/redis/main.rs` Redis.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

use std::sync::Arc;

use mongoseal::store::MemoryStore;
use mongoseal_conformance::requirements;

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_every_requirement() {
    let mut broken = Vec::new();
    for requirement in requirements() {
        let check = tokio::spawn(requirement.check(Arc::new(MemoryStore::default())));
        if check.await.is_err() {
            broken.push(requirement.name());
        }
    }
    assert!(broken.is_empty(), "{broken:?}: the panics above say how");
}
