//! Checks every requirement of the store contract on MongoDB. `tests/stores/conformance/memory.rs` checks them on the memory store.
//!
//! Beside the requirements runs `agreement.rs`, which takes as long as all of them. If Redis is not installed, its part is
//! reported as ignored, with the reason.

mod agreement;

use std::{process::ExitCode, sync::Arc, time::Duration};

use mongoseal::store::{Deadline, MongoStore, Store};
use mongoseal_conformance::requirements;
use mongoseal_test_support::{Redis, Turn, run_trials, secs, shared, trial, trials};

const RETENTION: Duration = secs(24 * 3600);

async fn store() -> Arc<dyn Store> {
    let client = shared(1).await.client().await;
    let store = MongoStore::new(&client.database("conformance"), "mongoseal", RETENTION);
    store.prepare(Deadline::after(store.clock(), secs(20))).await.expect("the store is fit");
    Arc::new(store)
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting => agreement::the_machine_and_the_pipeline_agree_on_random_requests,];
    tests.extend(trials![Turn::Waiting, Redis::missing =>
        agreement::the_machine_and_the_redis_store_agree_on_the_same_random_requests,
    ]);
    tests.extend(requirements().iter().map(|requirement| {
        let check = move || async { requirement.check(store().await).await };
        trial(format!("mongo::{}", requirement.name()), Turn::Waiting, || None, check)
    }));
    run_trials(tests)
}
