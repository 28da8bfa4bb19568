//! Every requirement that a store must keep, on the memory store. `tests/stores/conformance/main.rs` has them on MongoDB.

use std::{process::ExitCode, sync::Arc};

use mongoseal::store::MemoryStore;
use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::harness::{self, Test};

fn main() -> ExitCode {
    let test = |requirement: &'static Requirement| {
        Test::new(format!("memory::{}", requirement.name()), || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime starts").block_on(requirement.check(Arc::new(MemoryStore::default())));
        })
    };
    harness::main(&requirements().iter().map(test).collect::<Vec<_>>())
}
