//! The backend itself.

use std::time::Duration;

use mongoseal::{
    Key,
    store::{Backend, Deadline, Swap},
};
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, secs};

use crate::{backend, client, prefix, send, shared};

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
async fn swaps_after(backend: &RedisBackend, bytes: &[u8], meanwhile: impl AsyncFnOnce()) -> bool {
    let loaded = backend.load(&key(), deadline(backend)).await.unwrap();
    meanwhile().await;
    backend.swap(swap(loaded.bytes.as_deref(), loaded.now, bytes), deadline(backend)).await.unwrap()
}

async fn put(backend: &RedisBackend, bytes: &[u8]) {
    assert!(swaps_after(backend, bytes, async || {}).await);
}

async fn value(backend: &RedisBackend) -> Option<Vec<u8>> {
    backend.load(&key(), deadline(backend)).await.unwrap().bytes
}

pub(crate) async fn a_swap_is_refused_if_the_key_was_deleted_and_made_again_since_the_load() {
    let (server, prefix) = (shared().await, prefix());
    let backend = backend(server, &prefix);
    let delete = async || assert_eq!(send::<u32>(server, &format!("DEL {prefix}:{}", key())).await, 1);
    put(&backend, b"first").await;
    let made_again = swaps_after(&backend, b"late", async || {
        delete().await;
        put(&backend, b"second").await;
    });
    assert!(!made_again.await);
    assert_eq!(value(&backend).await.unwrap(), b"second");
    assert!(!swaps_after(&backend, b"late", delete).await, "the key is gone");
    assert!(!swaps_after(&backend, b"late", async || put(&backend, b"third").await).await, "the key is there");
    put(&backend, b"last").await;
    assert_eq!(value(&backend).await.unwrap(), b"last");
}

pub(crate) async fn a_value_of_no_bytes_and_no_value_differ() {
    let backend = backend(shared().await, &prefix());
    let now = backend.load(&key(), deadline(&backend)).await.unwrap().now;
    let swaps = async |loaded, bytes| backend.swap(swap(loaded, now, bytes), deadline(&backend)).await.unwrap();
    assert!(!swaps(Some(b"".as_slice()), b"x").await, "there is no value");
    assert!(swaps(None, b"").await);
    assert!(!swaps(None, b"x").await, "there is one without bytes");
    assert!(swaps(Some(b"".as_slice()), b"\0\xff\r\n").await);
    assert_eq!(value(&backend).await.unwrap(), b"\0\xff\r\n");
}

pub(crate) async fn a_swap_works_after_the_server_has_forgotten_the_scripts() {
    // Another test's requests would be refused meanwhile.
    let server = Redis::start().await;
    let backend = backend(&server, &prefix());
    put(&backend, b"first").await;
    let () = send(&server, "SCRIPT FLUSH").await;
    put(&backend, b"second").await;
    assert_eq!(value(&backend).await.unwrap(), b"second");
}

pub(crate) async fn a_list_has_the_keys_of_its_prefix_and_no_other() {
    let server = shared().await;
    let prefix = format!("l*st[{:x}]", fastrand::u64(..));
    let own = backend(server, &prefix);
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
    for backend in [backend(server, &prefix()), backend(server, &prefix()).with_replicas(1)] {
        for number in 0..200_u32 {
            let bytes = number.to_string().into_bytes();
            let loaded = backend.load(&key(), deadline(&backend)).await.unwrap();
            let swap = backend.swap(swap(loaded.bytes.as_deref(), loaded.now, &bytes), deadline(&backend));
            // Dropped before it is sent, after it is sent, or when the answer is there.
            let dropped = tokio::time::timeout(Duration::from_micros(u64::from(number) * 5), swap).await;
            drop(dropped);
            let found = value(&backend).await;
            assert!(found == Some(bytes) || found == loaded.bytes, "each answer is that of its own request");
        }
    }
}
