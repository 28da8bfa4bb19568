//! Callers that cannot reach the store.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{How, Peer, ReplicaSet};
use tokio::task::JoinSet;

use crate::{connect, millis, secs};

pub(super) async fn every_call_on_a_dead_network_ends_with_the_operation_timeout() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(1)), set.uri_with("appName=holder")).await;
    let lease = seal.acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let gone = seal.acquire("other").ttl(secs(60)).without_refresh().await.unwrap();
    set.proxy().cut_both(&Peer::client("holder"), &Peer::Anyone, How::Blackhole);
    let longest = millis(1250);
    let mut calls: Vec<(&str, Duration, Result<(), Error>)> = Vec::new();
    let mut began = Instant::now();
    let mut note = |what, result| {
        calls.push((what, began.elapsed(), result));
        began = Instant::now();
    };
    note("acquire", seal.acquire("new").await.map(drop));
    note("refresh", lease.refresh().await);
    note("extend", lease.extend(secs(90)).await);
    note("verify", lease.verify().await);
    note(
        "prepare",
        Mongoseal::builder().operation_timeout(secs(1)).connect(set.uri_with("appName=holder")).await.map(drop),
    );
    note("release", gone.release().await.map(drop));
    for (what, took, result) in &calls {
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{what}: {result:?}");
        assert!(*took < longest, "{what}: {took:?}");
    }
    // Several at once on a handle that was never prepared do not wait for one another.
    let fresh = Mongoseal::builder().operation_timeout(secs(1));
    let fresh = fresh.on_shared_client(
        &mongodb::Client::with_uri_str(set.uri_with("appName=holder")).await.unwrap().database("app"),
    );
    let fresh = fresh.unwrap();
    let began = Instant::now();
    let asking: Vec<_> = (0..8).map(|key| tokio::spawn(fresh.acquire(format!("k{key}")).into_future())).collect();
    for asked in asking {
        assert!(matches!(asked.await.unwrap(), Err(Error::Unavailable { .. })));
    }
    assert!(began.elapsed() < longest, "{:?}", began.elapsed());
    // A connect dropped half-way lets its client go, and nothing is left to wait for.
    let connecting = Mongoseal::connect(set.uri_with("appName=holder"));
    assert!(tokio::time::timeout(millis(300), connecting).await.is_err());
    let began = Instant::now();
    seal.shutdown().await;
    assert!(began.elapsed() < longest, "shutdown: {:?}", began.elapsed());
    set.proxy().heal();
}

pub(super) async fn requests_after_a_silence_use_no_connection_that_the_network_has_forgotten() {
    let set = ReplicaSet::builder().proxied().start().await;
    // Zero is no limit: it shows that the connections are forgotten.
    for (name, max_idle_ms) in [("limited", 500), ("unlimited", 0)] {
        let uri = set.uri_with(&format!("appName={name}&maxIdleTimeMS={max_idle_ms}"));
        let seal = connect(Mongoseal::builder(), uri).await;
        let slow = set.fail_command(name, &["find"], doc! { "blockConnection": true, "blockTimeMS": 200 }, 1_000).await;
        let read_at_once = |count| {
            let read = |key| {
                let seal = seal.clone();
                async move { seal.inspect(format!("k{key}")).await }
            };
            (0..count).map(read).collect::<JoinSet<_>>().join_all()
        };
        let before: Vec<_> = read_at_once(12).await;
        drop(slow);
        assert!(before.iter().all(Result::is_ok), "{before:?}");
        tokio::time::sleep(millis(max_idle_ms * 2)).await;
        let lost = set.proxy().forget_present(name);
        let reading = tokio::spawn(read_at_once(12));
        if max_idle_ms > 0 {
            let after: Vec<_> = reading.await.unwrap();
            assert!(after.iter().all(Result::is_ok), "{after:?}");
            assert_eq!(lost.count(), 0);
        } else {
            let until = Instant::now() + secs(30);
            while lost.count() == 0 {
                assert!(Instant::now() < until, "no connection was forgotten");
                tokio::time::sleep(millis(10)).await;
            }
            reading.abort();
        }
        set.proxy().heal();
        seal.shutdown().await;
    }
}

/// The driver opens two connections at a time, and has no timeout for a handshake.
pub(super) async fn the_pool_grows_within_ten_seconds_although_two_connections_fell_silent_while_they_opened() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=growing")).await;
    let silent = set.proxy().silence_next("growing", 2);
    // Each command takes 0.2 s, so that the acquires need as many connections.
    let data = doc! { "blockConnection": true, "blockTimeMS": 200 };
    let slow = set.fail_command("growing", &["findAndModify", "update"], data, 1_000_000).await;
    let began = Instant::now();
    let mut round = 0;
    loop {
        round += 1;
        let (mut acquires, at) = (JoinSet::new(), Instant::now());
        for number in 0..30 {
            acquires.spawn(seal.acquire(format!("{round}/{number}")).without_refresh().into_future());
        }
        let leases = acquires.join_all().await;
        let took = at.elapsed();
        println!("{:?} after the begin: 30 acquires of 0.2 s took {took:?}", began.elapsed());
        if silent.count() == 2 && took < secs(1) {
            break;
        }
        assert!(began.elapsed() < secs(10), "the pool does not grow");
        for lease in leases {
            lease.unwrap().orphan();
        }
    }
    slow.off().await;
    set.proxy().heal();
    seal.shutdown().await;
}
