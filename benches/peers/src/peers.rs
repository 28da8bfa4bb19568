//! Who is compared.

mod distributed_lock_mongo;
#[cfg(feature = "etcd")]
mod etcd;
mod mongo_lock_async;
mod mongodb_lock;
mod mongoseal;
mod mongoseal_redis;
mod poll_loop;
mod rslock;

use std::sync::Arc;

use mongoseal_test_support::Redis;

use crate::{
    peer::{Peer, Result},
    set::Set,
    table::{Row, Table},
};

/// A peer, or why it is not there.
type Found = std::result::Result<Arc<dyn Peer>, String>;

/// All that are wanted, by name, with servers of their own started for those that need them.
pub(crate) async fn all(set: &Set, wanted: impl Fn(&str) -> bool) -> Vec<(&'static str, Found)> {
    let uri = || set.uri().to_owned();
    let on_mongodb: [Arc<dyn Peer>; 6] = [
        Arc::new(mongoseal::Connected(uri())),
        Arc::new(mongoseal::Peer(uri())),
        Arc::new(mongodb_lock::Peer(uri())),
        Arc::new(mongo_lock_async::Peer(uri())),
        Arc::new(distributed_lock_mongo::Peer(uri())),
        Arc::new(poll_loop::Peer(uri())),
    ];
    let mut all: Vec<(_, Found)> = Vec::new();
    for peer in on_mongodb {
        let name = peer.about().name;
        if wanted(name) {
            all.push((name, Ok(peer)));
        }
    }
    if wanted("etcd") {
        all.push(("etcd", etcd().await));
    }
    if wanted("mongoseal-redis") {
        all.push(("mongoseal-redis", on_redis(async { Ok(mongoseal_redis::Peer::start().await) }).await));
    }
    if wanted("mongoseal-redis-replica") {
        all.push(("mongoseal-redis-replica", on_redis(mongoseal_redis::Peer::start_replicated()).await));
    }
    if wanted("rslock") {
        let servers = async { Ok(rslock::Peer([Redis::start().await, Redis::start().await, Redis::start().await])) };
        all.push(("rslock", on_redis(servers).await));
    }
    all
}

#[cfg(feature = "etcd")]
async fn etcd() -> Found {
    match mongoseal_test_support::Etcd::missing() {
        Some(reason) => Err(reason),
        None => Ok(Arc::new(etcd::Peer(mongoseal_test_support::Etcd::start().await))),
    }
}

#[cfg(not(feature = "etcd"))]
#[expect(clippy::unused_async, reason = "with the feature there is something to wait for")]
async fn etcd() -> Found {
    Err("not built: that takes `--features etcd`, and protoc for its client".into())
}

/// A peer whose servers this starts, if Redis is installed.
async fn on_redis<P: Peer + 'static>(starting: impl Future<Output = Result<P>>) -> Found {
    if let Some(reason) = Redis::missing() {
        return Err(reason);
    }
    starting.await.map(|peer| Arc::new(peer) as Arc<dyn Peer>).map_err(|error| error.to_string())
}

/// Each in words, and those that are missing.
pub(crate) fn table(found: &[Arc<dyn Peer>], missing: &[(&'static str, String)]) -> Table {
    let there = found.iter().map(|peer| {
        let about = peer.about();
        let note = about.note.map(str::to_owned);
        let cells = [about.version, about.waits, about.lasts].map(Into::into).to_vec();
        Row { peer: about.name, cells, notes: note.into_iter().collect() }
    });
    let others = missing.iter().map(|(name, reason)| {
        let cells = vec!["not measured".into(), serde_json::Value::Null, serde_json::Value::Null];
        Row { peer: name, cells, notes: vec![reason.clone()] }
    });
    Table {
        case: "peers",
        what: "who is compared, and how each is used here".into(),
        columns: vec!["version", "waits by", "a lock lasts"],
        rows: there.chain(others).collect(),
    }
}
