//! Runs the bodies of `everywhere` on MongoDB and on Redis.
//!
//! If Redis is not installed, its tests are reported as ignored, with the reason.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

mod everywhere;
mod world;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mongodb::bson::doc;
use mongoseal::Builder;
use mongoseal_redis::{RedisBackend, RedisStore};
use mongoseal_test_support::{Redis, TestDatabase, Turn, run_trials, secs, trial};
use tokio::sync::OnceCell;

use crate::{
    everywhere::bodies,
    world::{Abilities, World},
};

/// A name of a database or of a prefix that no other body uses.
fn name() -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("worlds_{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

async fn on_mongodb() -> World {
    let db = TestDatabase::new(&name()).await;
    let (opened, records) = (db.database.clone(), db.records());
    World::new(
        Abilities { has_current_reads: true, has_notifications: true },
        move |builder: Builder| builder.on_shared_client(&opened).unwrap(),
        move |key| {
            let records = records.clone();
            Box::pin(async move {
                records.delete_one(doc! { "_id": key.as_str() }).await.unwrap();
            })
        },
    )
}

async fn on_redis() -> World {
    static SERVER: OnceCell<Redis> = OnceCell::const_new();
    let (url, prefix) = (SERVER.get_or_init(Redis::start).await.url(), name());
    let client = redis::Client::open(url.as_str()).unwrap();
    let removed = prefix.clone();
    World::new(
        Abilities { has_current_reads: false, has_notifications: true },
        move |builder: Builder| {
            let backend = RedisBackend::new(url.as_str()).unwrap().with_collection(prefix.as_str()).unwrap();
            builder.on_store(Arc::new(RedisStore::new(backend, secs(3_600)))).unwrap()
        },
        move |key| {
            let (client, key) = (client.clone(), format!("{removed}:{key}"));
            Box::pin(async move {
                // By default the crate waits half a second for an answer, and a busy machine takes longer.
                let patience = Some(secs(60));
                let config = redis::AsyncConnectionConfig::new();
                let config = config.set_connection_timeout(patience).set_response_timeout(patience);
                let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
                let () = redis::cmd("DEL").arg(key).query_async(&mut connection).await.unwrap();
            })
        },
    )
}

fn main() -> ExitCode {
    let mut tests = Vec::new();
    macro_rules! run {
        ($($file:ident: [$($body:ident,)*],)*) => {$($(
            let name = concat!(stringify!($file), "::", stringify!($body));
            tests.push(trial(format!("mongodb::{name}"), Turn::Waiting, || None, || async {
                everywhere::$file::$body(&on_mongodb().await).await;
            }));
            tests.push(trial(format!("redis::{name}"), Turn::Waiting, Redis::missing, || async {
                everywhere::$file::$body(&on_redis().await).await;
            }));
        )*)*};
    }
    bodies!(run);
    run_trials(tests)
}
