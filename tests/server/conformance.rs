//! Runs the conformance suite for stores on MongoDB. `tests/conformance.rs` runs it on the memory store.

use std::{process::ExitCode, sync::Arc, time::Duration};

use mongoseal::{
    Deadline, conformance,
    store::{MongoStore, Store},
};
use mongoseal_test_support::{
    harness::{self, Test},
    secs, shared,
};

const RETENTION: Duration = secs(24 * 3600);

async fn store() -> Arc<dyn Store> {
    let client = shared(1).await.client().await;
    let store = MongoStore::new(&client.database("conformance"), "mongoseal", RETENTION);
    store.prepare(Deadline::after(store.clock(), secs(20))).await.expect("the store is fit");
    Arc::new(store)
}

fn main() -> ExitCode {
    let test = |clause: &'static conformance::Clause| {
        Test::new(format!("mongo::{}", clause.name()), || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime starts").block_on(async { clause.check(store().await).await });
        })
    };
    harness::main(&conformance::clauses().iter().map(test).collect::<Vec<_>>())
}
