//! The test vectors of `protocol/`. `tests/stores/vectors/main.rs` has them on the state machine and the memory store.

use mongoseal::{Key, record::Record};
use mongoseal_redis::RedisStore;
use serde_json::{Value, json};

use crate::{RETENTION, backend_with, client, replay, shared};

pub(crate) async fn the_store_does_what_the_vectors_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/vectors.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).expect("it is JSON");
    let prefix = format!("vectors-{:016x}", fastrand::u64(..));
    let (store, redis) =
        (RedisStore::new(backend_with(shared().await, &prefix), RETENTION), client(shared().await).await);
    let cases = vectors["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for (number, case) in cases.iter().enumerate() {
        let key: Key = format!("vectors/{number}").parse().unwrap();
        let put = async |record: &Record| {
            let value = json!({ "v": 1, "nonce": "0000000000000000", "record": record }).to_string();
            let mut set = redis::cmd("SET");
            let () = set.arg(format!("{prefix}:{key}")).arg(value).query_async(&mut redis.clone()).await.unwrap();
        };
        replay::replay(&store, (&vectors["defaults"], case), &key, put).await;
    }
}
