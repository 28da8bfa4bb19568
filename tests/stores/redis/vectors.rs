//! The test vectors of `protocol/`. `tests/stores/vectors/main.rs` has them on the state machine and the memory store.

use mongoseal_redis::RedisStore;
use serde_json::json;

use crate::{RETENTION, backend, client, prefix, replay::replay_all, shared};

pub(crate) async fn the_store_does_what_the_vectors_say() {
    let (prefix, server) = (prefix(), shared().await);
    let (store, redis) = (RedisStore::new(backend(server, &prefix), RETENTION), client(server).await);
    replay_all(&store, async |key, record| {
        let value = json!({ "v": 1, "nonce": "0000000000000000", "record": record }).to_string();
        let mut set = redis::cmd("SET");
        let () = set.arg(format!("{prefix}:{key}")).arg(value).query_async(&mut redis.clone()).await.unwrap();
    })
    .await;
}
