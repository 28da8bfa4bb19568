//! The backend itself.

use std::time::Duration;

use mongoseal::{
    Key,
    store::{Backend, Deadline, Swap},
};
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, millis, secs};

use crate::{backend, client, send, shared};

fn deadline(backend: &RedisBackend) -> Deadline {
    Deadline::after(backend.clock(), secs(10))
}

fn key() -> Key {
    "k".parse().unwrap()
}

/// A swap after this load.
fn swap(loaded: Option<&[u8]>, now: Duration, bytes: &[u8]) -> Swap {
    Swap {
        key: key(),
        loaded: loaded.map(Into::into),
        bytes: bytes.into(),
        now,
        max_age: secs(10),
        keep_for: secs(60),
        publish: Vec::new(),
    }
}

/// Loads the key, does this meanwhile, and swaps.
async fn swaps_after(backend: &RedisBackend, meanwhile: impl AsyncFnOnce()) -> bool {
    let loaded = backend.load(&key(), deadline(backend)).await.unwrap();
    meanwhile().await;
    backend.swap(swap(loaded.bytes.as_deref(), loaded.now, b"swapped"), deadline(backend)).await.unwrap()
}

async fn value(backend: &RedisBackend) -> Option<Vec<u8>> {
    backend.load(&key(), deadline(backend)).await.unwrap().bytes
}

/// The name of the key at the server.
async fn put(backend: &RedisBackend, bytes: &[u8]) {
    let now = backend.load(&key(), deadline(backend)).await.unwrap();
    assert!(backend.swap(swap(now.bytes.as_deref(), now.now, bytes), deadline(backend)).await.unwrap());
}

/// What the names of a backend's keys begin with.
fn prefix(backend: &RedisBackend) -> String {
    let shown = format!("{backend:?}");
    shown.split_once("prefix: \"").unwrap().1.split('"').next().unwrap().to_owned()
}

/// Deletes the key, as an operator does.
async fn delete(backend: &RedisBackend) {
    let deleted: u32 = send(shared().await, &format!("DEL {}:{}", prefix(backend), key())).await;
    assert_eq!(deleted, 1);
}

pub(crate) async fn a_swap_is_refused_if_the_key_was_deleted_and_made_again_since_the_load() {
    let backend = backend(shared().await);
    put(&backend, b"first").await;
    let made_again = swaps_after(&backend, async || {
        delete(&backend).await;
        put(&backend, b"second").await;
    });
    assert!(!made_again.await);
    assert_eq!(value(&backend).await.unwrap(), b"second");
    assert!(!swaps_after(&backend, async || delete(&backend).await).await, "the key is gone");
    assert!(!swaps_after(&backend, async || put(&backend, b"third").await).await, "the key is there");
    assert!(swaps_after(&backend, async || {}).await);
    assert_eq!(value(&backend).await.unwrap(), b"swapped");
}

pub(crate) async fn a_value_of_no_bytes_and_no_value_differ() {
    let backend = backend(shared().await);
    let now = backend.load(&key(), deadline(&backend)).await.unwrap().now;
    let swaps = async |loaded, bytes| backend.swap(swap(loaded, now, bytes), deadline(&backend)).await.unwrap();
    assert!(!swaps(Some(b"".as_slice()), b"x").await, "there is no value");
    assert!(swaps(None, b"").await);
    assert!(!swaps(None, b"x").await, "there is one without bytes");
    assert!(swaps(Some(b"".as_slice()), b"\0\xff\r\n").await);
    assert_eq!(value(&backend).await.unwrap(), b"\0\xff\r\n");
}

pub(crate) async fn a_swap_of_a_process_that_was_paused_too_long_after_its_load_is_refused() {
    let backend = backend(shared().await);
    let loaded = backend.load(&key(), deadline(&backend)).await.unwrap();
    let paused = |max_age| Swap { max_age, ..swap(None, loaded.now, b"old token") };
    // Meanwhile another process acquires and releases, and an operator deletes the key: it is as it was loaded.
    let later = async || backend.load(&key(), deadline(&backend)).await.unwrap().now > loaded.now + millis(50);
    mongoseal_test_support::eventually(secs(10), "the server's clock moves on", later).await;
    assert!(!backend.swap(paused(millis(50)), deadline(&backend)).await.unwrap());
    assert_eq!(value(&backend).await, None);
    assert!(backend.swap(paused(secs(60)), deadline(&backend)).await.unwrap());
}

pub(crate) async fn a_swap_works_after_the_server_has_forgotten_the_scripts() {
    // Another test's requests would be refused meanwhile.
    let server = Redis::start().await;
    let backend = backend(&server);
    put(&backend, b"first").await;
    let () = send(&server, "SCRIPT FLUSH").await;
    put(&backend, b"second").await;
    assert_eq!(value(&backend).await.unwrap(), b"second");
}

pub(crate) async fn a_list_has_the_keys_of_its_prefix_and_no_other() {
    let server = shared().await;
    let own = backend(server).with_collection(format!("l*st[{:x}]", fastrand::u64(..))).unwrap();
    let prefix = prefix(&own);
    let mut redis = client(server).await;
    let mut expected = Vec::new();
    for number in 0..2_500 {
        let name = format!("{prefix}:key:{number}");
        let () = redis::cmd("SET").arg(name).arg(number).query_async(&mut redis).await.unwrap();
        expected.push((format!("key:{number}"), number.to_string().into_bytes()));
    }
    // A name that the pattern would match without escapes, a value of another type, a name that is no text.
    let () = redis::cmd("SET").arg(prefix.replace('*', "x") + ":k").arg(1).query_async(&mut redis).await.unwrap();
    let () = redis::cmd("RPUSH").arg(format!("{prefix}:list")).arg(1).query_async(&mut redis).await.unwrap();
    let name = [prefix.as_bytes(), b":\xff"].concat();
    let () = redis::cmd("SET").arg(name).arg(1).query_async(&mut redis).await.unwrap();
    let before = own.load(&key(), deadline(&own)).await.unwrap().now;
    let mut listed = own.list(deadline(&own)).await.unwrap();
    assert!(listed.now > before);
    listed.values.sort();
    expected.sort();
    assert!(listed.values == expected, "{} and not {}", listed.values.len(), expected.len());
}

pub(crate) async fn a_dropped_request_leaves_the_connection_in_order() {
    let server = shared().await;
    for backend in [backend(server), backend(server).with_replicas(1)] {
        put_any(&backend, b"0").await;
        for number in 1..200_u32 {
            let bytes = number.to_string().into_bytes();
            let loaded = backend.load(&key(), deadline(&backend)).await.unwrap();
            let swap = backend.swap(swap(loaded.bytes.as_deref(), loaded.now, &bytes), deadline(&backend));
            // Dropped before it is sent, after it is sent, or when the answer is there.
            let dropped = tokio::time::timeout(Duration::from_micros(u64::from(number) * 5), swap).await;
            drop(dropped);
            let found = value(&backend).await.unwrap();
            assert!(found == bytes || Some(found) == loaded.bytes, "each answer is that of its own request");
        }
    }
}

/// Stores bytes, whether or not a replica acknowledges them.
async fn put_any(backend: &RedisBackend, bytes: &[u8]) {
    let now = backend.load(&key(), deadline(backend)).await.unwrap().now;
    let deadline = Deadline::after(backend.clock(), millis(500));
    drop(backend.swap(swap(None, now, bytes), deadline).await);
}
