//! Every clause that a store must keep, on each of ours.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

use std::{sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Trial};
use mongoseal::{
    conformance,
    store::{MemoryStore, MongoStore, Store},
};

const RETENTION: Duration = Duration::from_secs(24 * 3600);

fn memory() -> impl Future<Output = Arc<dyn Store>> {
    std::future::ready(Arc::new(MemoryStore::default()) as Arc<dyn Store>)
}

async fn mongo() -> Arc<dyn Store> {
    let client = mongoseal_test_support::shared(1).await.client().await;
    let store = MongoStore::new(&client.database("conformance"), "mongoseal", RETENTION);
    store.prepare(Duration::from_secs(20)).await.expect("the store is fit");
    Arc::new(store)
}

fn main() {
    let mut trials = Vec::new();
    for clause in conformance::clauses() {
        let run = move |store: std::pin::Pin<Box<dyn Future<Output = Arc<dyn Store>>>>| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime starts").block_on(async { clause.check(store.await).await });
            Ok(())
        };
        trials.push(Trial::test(format!("memory::{}", clause.name()), move || run(Box::pin(memory()))));
        trials.push(Trial::test(format!("mongo::{}", clause.name()), move || run(Box::pin(mongo()))));
    }
    let mut arguments = Arguments::from_args();
    // Most of a clause is waiting.
    arguments.test_threads.get_or_insert(8);
    libtest_mimic::run(&arguments, trials).exit();
}
