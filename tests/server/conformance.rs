//! Checks every requirement of the store contract on MongoDB. `tests/conformance.rs` checks them on the memory store.
//!
//! Beside the requirements runs `agreement.rs`, which takes as long as all of them. If Redis is not installed, its part is
//! reported as ignored, with the reason.

mod agreement;

use std::{process::ExitCode, sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Completion, Trial};
use mongoseal::{
    Deadline,
    store::{MongoStore, Store},
};
use mongoseal_conformance::requirements;
use mongoseal_test_support::{Redis, secs, shared};

const RETENTION: Duration = secs(24 * 3600);

async fn store() -> Arc<dyn Store> {
    let client = shared(1).await.client().await;
    let store = MongoStore::new(&client.database("conformance"), "mongoseal", RETENTION);
    store.prepare(Deadline::after(store.clock(), secs(20))).await.expect("the store is fit");
    Arc::new(store)
}

/// Runs a test on a runtime of its own.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(test());
}

fn main() -> ExitCode {
    let mut tests = vec![
        Trial::test("the_machine_and_the_pipeline_agree_on_random_requests", || {
            run(agreement::the_machine_and_the_pipeline_agree_on_random_requests);
            Ok(())
        }),
        Trial::ignorable_test("the_machine_and_the_redis_store_agree_on_the_same_random_requests", || {
            if let Some(reason) = Redis::missing() {
                return Ok(Completion::ignored_with(reason));
            }
            run(agreement::the_machine_and_the_redis_store_agree_on_the_same_random_requests);
            Ok(Completion::Completed)
        }),
    ];
    tests.extend(requirements().iter().map(|requirement| {
        Trial::test(format!("mongo::{}", requirement.name()), move || {
            run(|| async { requirement.check(store().await).await });
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
