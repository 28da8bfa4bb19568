//! Every clause that a store must keep, on the memory store. `tests/server/conformance.rs` has them on MongoDB.

use std::{process::ExitCode, sync::Arc};

use mongoseal::{conformance, store::MemoryStore};
use mongoseal_test_support::harness::{self, Test};

fn main() -> ExitCode {
    let test = |clause: &'static conformance::Clause| {
        Test::new(format!("memory::{}", clause.name()), || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime starts").block_on(clause.check(Arc::new(MemoryStore::default())));
        })
    };
    harness::main(&conformance::clauses().iter().map(test).collect::<Vec<_>>())
}
