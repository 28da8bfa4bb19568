//! Leases, waiters and handles.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
};

use mongoseal::{Error, Mongoseal, observe::HandleEvent};
use mongoseal_test_support::{Redis, eventually, millis, secs};
use redis::AsyncCommands;

use crate::{client, count, open, prefix, send, shared, store};

/// The changes of the stream of messages that a handle's observer has received, and `queued`.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<&'static str>>>);

impl Events {
    fn observer(&self) -> Arc<dyn mongoseal::observe::Observer> {
        let Self(names) = self.clone();
        Arc::new(move |event: &HandleEvent<'_>| {
            names.lock().unwrap().extend(match event {
                HandleEvent::StreamOpened => Some("opened"),
                HandleEvent::StreamClosed { .. } => Some("closed"),
                HandleEvent::Queued { .. } => Some("queued"),
                _ => None,
            });
        })
    }

    async fn until(&self, name: &str) {
        eventually(secs(60), name, async || self.0.lock().unwrap().contains(&name)).await;
    }
}

pub(crate) async fn a_value_of_another_type_is_corrupt_and_left_as_it_is() {
    let prefix = prefix();
    let seal = open(Mongoseal::builder().collection(&prefix), shared().await.url()).await.unwrap();
    let mut redis = client(shared().await).await;
    let key = format!("{prefix}:k");
    let () = redis.rpush(&key, "one").await.unwrap();
    for error in [seal.acquire("k").await.unwrap_err(), seal.inspect("k").await.unwrap_err()] {
        assert!(matches!(&error, Error::Corrupt { key, .. } if key.as_str() == "k"), "{error:?}");
    }
    assert_eq!(count(&seal).await, 0, "the list leaves it out");
    assert_eq!(redis.lrange::<_, Vec<String>>(&key, 0, -1).await.unwrap(), ["one"]);
}

pub(crate) async fn a_waiter_polls_after_its_connection_for_messages_was_killed() {
    let server = Redis::start().await;
    let (store, events) = (store(&server), Events::default());
    let first = Mongoseal::builder().on_store(Arc::clone(&store)).unwrap();
    let second = Mongoseal::builder().observer(events.observer()).on_store(store).unwrap();
    let lease = first.acquire("k").await.unwrap();
    let waiting = tokio::spawn(second.acquire("k").wait(secs(60)).into_future());
    events.until("queued").await;
    events.until("opened").await;
    // The holder listens, too, once it has held its lease for a second.
    let killed: u32 = send(&server, "CLIENT KILL TYPE pubsub").await;
    assert!(killed >= 1);
    events.until("closed").await;
    let token = lease.token();
    lease.release().await.unwrap();
    let granted = waiting.await.unwrap().unwrap();
    assert!(granted.token() > token);
    // And it listens again.
    events.0.lock().unwrap().clear();
    let next = tokio::spawn(first.acquire("k").wait(secs(60)).into_future());
    events.until("opened").await;
    granted.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

pub(crate) async fn a_key_is_kept_for_its_expiry_and_the_retention() {
    let server = Redis::start().await;
    let seal = open(Mongoseal::builder().retention(secs(3_600)), server.url()).await.unwrap();
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let left = millis(send::<u64>(&server, "PTTL mongoseal:k").await);
    // A record expires up to a ttl later than its lease, so that not each refresh changes the time.
    assert!(left > secs(3_600) && left <= secs(3_600 + 90), "{left:?}");
    lease.release().await.unwrap();
    let after = millis(send::<u64>(&server, "PTTL mongoseal:k").await);
    assert!(after > secs(3_500) && after <= left, "{after:?}");
    let forever = seal.acquire("forever").without_expiry().await.unwrap();
    assert!(send::<i64>(&server, "PTTL mongoseal:forever").await > 0);
    forever.release().await.unwrap();
}

pub(crate) async fn siblings_with_prefixes_of_their_own_share_no_record() {
    let server = Redis::start().await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    let tenant = Mongoseal::builder().collection("tenant").sibling_of(&seal).unwrap();
    let same = Mongoseal::builder().sibling_of(&seal).unwrap();
    let (one, two) = (seal.acquire("k").await.unwrap(), tenant.acquire("k").await.unwrap());
    assert!(matches!(same.acquire("k").await, Err(Error::Held { .. })));
    let keys: Vec<String> = send(&server, "KEYS *").await;
    assert!(keys.len() == 2 && keys.contains(&"tenant:k".into()) && keys.contains(&"mongoseal:k".into()), "{keys:?}");
    assert_eq!(count(&tenant).await, 1);
    tenant.shutdown().await;
    assert!(one.is_valid() && !two.is_valid());
    one.refresh().await.unwrap();
}

pub(crate) async fn a_lease_is_kept_while_the_runtime_of_its_holder_is_blocked() {
    let server = shared().await.url();
    // On a runtime with one thread, which is blocked.
    let held = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let builder = Mongoseal::builder().collection(prefix());
            let seal = open(builder, server).await.unwrap();
            let lease = seal.acquire("k").ttl(secs(4)).await.unwrap();
            let sibling = Mongoseal::builder().collection(prefix()).sibling_of(&seal).unwrap();
            let of_sibling = sibling.acquire("k").ttl(secs(4)).await.unwrap();
            // The caller's runtime uses the connection, and does not read it afterwards.
            assert!(seal.inspect("k").await.unwrap().is_some());
            std::thread::sleep(secs(6));
            lease.is_valid() && of_sibling.is_valid()
        })
    });
    assert!(tokio::task::spawn_blocking(|| held.join().unwrap()).await.unwrap());
}

pub(crate) async fn a_handle_outlives_the_runtime_that_opened_its_connection() {
    let uri = shared().await.url();
    let opened = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(open(Mongoseal::builder().collection(prefix()), uri)).unwrap()
    });
    let seal = tokio::task::spawn_blocking(|| opened.join().unwrap()).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
}
