//! Calls on a store that takes long for each request: each returns within its time.

use std::{pin::Pin, time::Duration};

use mongoseal::{
    BeginOutcome, FencingToken, Lease, LeaseId, Metadata, Mongoseal, Sharing, Tick, TickLease, action::RunOnce,
    election::Leader,
};
use tokio::time::Instant;

use crate::{
    faulty::{Fault, Faulty},
    millis, secs,
};

const TIMEOUT: Duration = secs(2);
const WAIT: Duration = secs(3);

/// What a call on a lease waits longer than the task of the lease.
const MARGIN: Duration = millis(110);

const KEYS: [&str; 8] = ["s/1", "s/2", "s/3", "s/4", "s/5", "s/6", "s/7", "s/8"];

/// A handle whose calls take no longer than [`TIMEOUT`].
fn bounded(store: &Faulty) -> Mongoseal {
    store.build(Mongoseal::builder().operation_timeout(TIMEOUT).ttl(secs(60)))
}

/// What each row of the table finds: a group of three leases of which one has expired, and a key that is held by another
/// handle. The store is as fast as ever.
struct Scene {
    store: Faulty,
    seal: Mongoseal,
    lease: Lease,
    members: Vec<Lease>,
    _other: Lease,
}

impl Scene {
    async fn new() -> Self {
        let store = Faulty::new();
        let seal = bounded(&store);
        let others = store.build(Mongoseal::builder().ttl(secs(60)));
        let mut members = Vec::new();
        for key in ["g/1", "g/2"] {
            members.push(seal.acquire(key).group("g").await.unwrap());
        }
        others.acquire("g/3").group("g").ttl(millis(50)).without_refresh().await.unwrap().orphan();
        tokio::time::sleep(secs(1)).await;
        let lease = seal.acquire("k").await.unwrap();
        let other = others.acquire("s/9").await.unwrap();
        Self { store, seal, lease, members, _other: other }
    }

    /// A lease that its process has left.
    async fn left(&self) -> (LeaseId, FencingToken) {
        let lease = self.store.seal().acquire("left").ttl(secs(60)).await.unwrap();
        let named = (lease.id(), lease.token());
        lease.orphan();
        named
    }

    fn once(&self) -> RunOnce {
        self.seal.once("tick", Tick::number(1))
    }

    async fn tick(&self) -> TickLease {
        match self.once().begin().await.unwrap() {
            BeginOutcome::Started(tick) => tick,
            BeginOutcome::Skipped(why) => panic!("the tick is open: {why}"),
        }
    }

    /// Makes the key of the tick known to the handle.
    async fn know_tick(&self) {
        self.seal.acquire("tick").await.unwrap().release().await.unwrap();
    }

    async fn lead(&self) -> Leader {
        self.seal.campaign("lead").await.unwrap()
    }
}

/// Makes the store slow, and runs the last step of a row. Returns how long it took.
async fn timed<T>(store: &Faulty, fault: Fault, call: impl Future<Output = T>) -> Duration {
    store.always(fault);
    let began = Instant::now();
    drop(call.await);
    began.elapsed()
}

type Row = fn(Scene, Fault) -> Pin<Box<dyn Future<Output = Duration>>>;

macro_rules! row {
    ($name:literal, $bound:expr, |$scene:ident| $call:expr) => {
        row!($name, $bound, |$scene| {}, $call)
    };
    ($name:literal, $bound:expr, |$scene:ident| $before:stmt, $call:expr) => {
        ($name, $bound, (|$scene: Scene, fault: Fault| {
            Box::pin(async move {
                $before
                let store = $scene.store.clone();
                timed(&store, fault, async { $call }).await
            })
        }) as Row)
    };
}

/// Each verb, and the longest time that it takes: see "Liveness" in the guarantees.
fn table() -> Vec<(&'static str, Duration, Row)> {
    vec![
        row!("acquire", TIMEOUT, |scene| scene.seal.acquire("free").await),
        row!("acquire, held", TIMEOUT, |scene| scene.seal.acquire("s/9").await),
        row!("acquire, waits", WAIT + TIMEOUT, |scene| scene.seal.acquire("s/9").wait(WAIT).await),
        row!("acquire, without expiry", TIMEOUT, |scene| scene.seal.acquire("free").without_expiry().await),
        row!("acquire_all", TIMEOUT, |scene| scene.seal.acquire_all(KEYS).await),
        row!("acquire_all, held", TIMEOUT, |scene| scene.seal.acquire_all(["s/8", "s/9"]).await),
        row!("acquire_all, waits", WAIT + TIMEOUT, |scene| {
            scene.seal.acquire_all(KEYS.into_iter().chain(["s/9"])).wait(WAIT).await
        }),
        row!("acquire_all, would wait", TIMEOUT, |scene| scene.seal.acquire_all(KEYS).wait(WAIT).await),
        row!("acquire_any", TIMEOUT, |scene| scene.seal.acquire_any(KEYS).await),
        row!("acquire_any, waits", WAIT + TIMEOUT, |scene| scene.seal.acquire_any(["k", "s/9"]).wait(WAIT).await),
        row!("acquire, with", TIMEOUT * 2, |scene| scene.seal.acquire("free").with(async |_| ()).await),
        row!("resume", TIMEOUT, |scene| let (id, token) = scene.left().await, scene.seal.resume("left", id, token).await),
        row!("refresh", TIMEOUT, |scene| scene.lease.refresh().await),
        row!("extend", TIMEOUT, |scene| scene.lease.extend(secs(90)).await),
        row!("update_metadata", TIMEOUT, |scene| scene.lease.update_metadata(Metadata::default()).await),
        row!("verify", TIMEOUT, |scene| scene.lease.verify().await),
        row!("downgrade", TIMEOUT, |scene| scene.lease.downgrade(Sharing::UpTo(3)).await),
        row!("upgrade", TIMEOUT * 3, |scene| let sharer = scene.seal.acquire("shared").shared().await.unwrap(), {
            sharer.upgrade().await
        }),
        row!("put_value", TIMEOUT, |scene| scene.lease.put_value(&1).await),
        row!("put_value under a lease of others", TIMEOUT, |scene| let (id, token) = scene.left().await, {
            scene.seal.put_value("left", id, token, &1).await
        }),
        row!("clear_value", TIMEOUT, |scene| scene.lease.clear_value().await),
        row!("value", TIMEOUT, |scene| scene.lease.put_value(&1).await.unwrap(), scene.lease.value::<u64>().await),
        row!("release_with_value", TIMEOUT, |scene| scene.lease.release_with_value(&1).await),
        row!("transfer", TIMEOUT, |scene| scene.lease.transfer(LeaseId::random()).await),
        row!("release", TIMEOUT, |scene| scene.lease.release().await),
        row!("release of a set", TIMEOUT, |scene| let set = scene.seal.acquire_all(KEYS).await.unwrap(), set.release().await),
        row!("release_group", TIMEOUT, |scene| scene.seal.release_group("g").await),
        row!("release_group of others", TIMEOUT, |scene| bounded(&scene.store).release_group("g").await),
        row!("refresh_group", TIMEOUT, |scene| {
            let seal = scene.seal.clone();
            drop(scene.members);
            seal.refresh_group("g", secs(60)).await
        }),
        row!("revoke", TIMEOUT, |scene| scene.seal.revoke("k").await),
        row!("revoke of a token", TIMEOUT, |scene| scene.seal.revoke("k").token(scene.lease.token()).await),
        row!("raise", TIMEOUT, |scene| scene.seal.raise_token_floor("k", scene.lease.token()).await),
        row!("once, begin", TIMEOUT, |scene| scene.once().wait(Duration::ZERO).begin().await),
        row!("once, begin, known key", TIMEOUT, |scene| scene.know_tick().await, {
            scene.once().wait(Duration::ZERO).begin().await
        }),
        row!("once, begin, known key, would wait", TIMEOUT, |scene| scene.know_tick().await, {
            scene.once().wait(WAIT).begin().await
        }),
        row!("once, begin, waits", WAIT + TIMEOUT, |scene| {
            scene.seal.once("s/9", Tick::number(1)).wait(WAIT).begin().await
        }),
        row!("once, run", TIMEOUT * 2, |scene| {
            scene.once().wait(Duration::ZERO).run(async |_| -> mongoseal::Result<()> { Ok(()) }).await
        }),
        row!("once, complete", TIMEOUT, |scene| let tick = scene.tick().await, tick.complete().await),
        row!("once, release", TIMEOUT, |scene| let tick = scene.tick().await, tick.release().await),
        row!("rewind_tick", TIMEOUT, |scene| scene.tick().await.complete().await.unwrap(), {
            scene.seal.rewind_tick("tick", 0).await
        }),
        // A page, and the key of the expired lease: each may take the operation timeout.
        row!("purge", TIMEOUT * 2, |scene| scene.seal.purge().await),
        row!("campaign", TIMEOUT, |scene| scene.seal.campaign("lead").await),
        row!("proclaim", TIMEOUT, |scene| let leader = scene.lead().await, leader.proclaim("here").await),
        row!("resign", TIMEOUT, |scene| let leader = scene.lead().await, leader.resign().await),
        row!("leader", TIMEOUT, |scene| scene.seal.leader("k").await),
        row!("observe", TIMEOUT, |scene| scene.seal.observe("k").await),
        row!("watch", TIMEOUT, |scene| scene.seal.watch("k").await),
        row!("watch_prefix", TIMEOUT, |scene| scene.seal.watch_prefix("g/").await),
        row!("inspect", TIMEOUT, |scene| scene.seal.inspect("k").await),
        row!("runs", TIMEOUT, |scene| scene.seal.runs("k").await),
        row!("list", TIMEOUT, |scene| scene.seal.leases().await),
        row!("now", TIMEOUT, |scene| scene.seal.now().await),
        row!("prepare", TIMEOUT, |scene| bounded(&scene.store).prepare().await),
        row!("shutdown", TIMEOUT, |scene| scene.seal.shutdown().await),
    ]
}

/// The operation timeout limits the call, and not each of its requests, also if the call does not wait.
#[tokio::test(start_paused = true)]
async fn each_call_returns_within_the_operation_timeout_however_many_requests_it_sends() {
    let mut late = Vec::new();
    for (name, bound, row) in table() {
        for fault in [
            Fault::Delay(millis(300)),
            Fault::Delay(millis(650)),
            Fault::Delay(millis(1_200)),
            Fault::DelayReply(millis(1_200)),
            Fault::LoseReply,
            Fault::Hang,
        ] {
            let took = row(Scene::new().await, fault).await;
            if took > bound + MARGIN {
                late.push(format!("{name}, {fault:?}: {took:?} of {bound:?}"));
            }
        }
    }
    assert!(late.is_empty(), "{late:#?}");
}
