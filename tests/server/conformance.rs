//! Checks every clause of the store contract on MongoDB. `tests/conformance.rs` checks them on the memory store.
//!
//! Beside the clauses runs `agreement.rs`, which takes as long as all of them.

mod agreement;

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

/// A test that runs on a runtime of its own.
fn test<F: Future<Output = ()>>(name: impl Into<String>, run: impl Fn() -> F + Send + Sync + 'static) -> Test {
    Test::new(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(run());
    })
}

fn main() -> ExitCode {
    let agree = agreement::the_machine_and_the_pipeline_agree_on_random_requests;
    let mut tests = vec![test("the_machine_and_the_pipeline_agree_on_random_requests", agree)];
    tests.extend(conformance::clauses().iter().map(|clause| {
        test(format!("mongo::{}", clause.name()), move || async move { clause.check(store().await).await })
    }));
    harness::main(&tests)
}
