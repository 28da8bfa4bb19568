//! Runs the bodies of `everywhere` on paused time: on the memory store, which has streams of changes, and on a store that
//! can only compare and swap, which polls.

use std::sync::Arc;

use mongoseal::{Builder, store::MemoryStore};

use crate::{
    compare_and_swap::Table,
    everywhere::bodies,
    world::{Abilities, World},
};

fn memory() -> World {
    let store = Arc::new(MemoryStore::default());
    let changed = Arc::clone(&store);
    World::new(
        Abilities { has_current_reads: true, has_notifications: true },
        move |builder: Builder| builder.on_store(store.clone()).unwrap(),
        move |key| {
            changed.remove(&key);
            Box::pin(async {})
        },
    )
}

fn table() -> World {
    let table = Table::new();
    let changed = table.clone();
    World::new(
        Abilities { has_current_reads: true, has_notifications: false },
        move |builder: Builder| builder.on_store(table.store()).unwrap(),
        move |key| {
            changed.remove(key.as_str());
            Box::pin(async {})
        },
    )
}

macro_rules! run {
    ($($file:ident: [$($body:ident,)*],)*) => {
        $(mod $file {
            $(mod $body {
                use crate::{everywhere::$file::$body as prove, in_memory};

                #[tokio::test(start_paused = true)]
                async fn memory() {
                    prove(&in_memory::memory()).await;
                }

                #[tokio::test(start_paused = true)]
                async fn compare_and_swap() {
                    prove(&in_memory::table()).await;
                }
            })*
        })*
    };
}

bodies!(run);
