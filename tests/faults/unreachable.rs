//! Callers that cannot reach the store.

use std::{future::IntoFuture, time::Instant};

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{How, Peer, ReplicaSet};
use tokio::task::JoinSet;

use crate::{connect, millis, secs};

pub(super) async fn every_call_on_a_dead_network_ends_with_the_operation_timeout() {
    let set = ReplicaSet::builder().proxied().start().await;
    let (uri, builder) = (set.uri_with("appName=holder"), || Mongoseal::builder().operation_timeout(secs(1)));
    let seal = connect(builder(), uri.clone()).await;
    let hold = async |key: &str| seal.acquire(key).ttl(secs(60)).without_refresh().await.unwrap();
    let (refreshed, extended, verified, released) = tokio::join!(hold("1"), hold("2"), hold("3"), hold("4"));
    let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
    let unprepared = builder().on_shared_client(&client.database("app")).unwrap();
    set.proxy().cut_both(&Peer::client("holder"), &Peer::Anyone, How::Blackhole);
    let longest = millis(1250);
    let began = Instant::now();
    // Several at once on a handle that was never prepared do not wait for one another.
    let first: JoinSet<_> = (0..8).map(|key| unprepared.acquire(format!("k{key}")).into_future()).collect();
    let (acquire, refresh, extend, verify, release, open, first) = tokio::join!(
        async { seal.acquire("new").await.map(drop) },
        refreshed.refresh(),
        extended.extend(secs(90)),
        verified.verify(),
        async { released.release().await.map(drop) },
        async { builder().connect(&uri).await.map(drop) },
        first.join_all(),
    );
    assert!(began.elapsed() < longest, "{:?}", began.elapsed());
    let first = first.into_iter().map(|first| ("first", first.map(drop)));
    let calls = [("acquire", acquire), ("refresh", refresh), ("extend", extend), ("verify", verify)];
    for (what, result) in calls.into_iter().chain([("release", release), ("connect", open)]).chain(first) {
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{what}: {result:?}");
    }
    // A connect dropped half-way lets its client go, and nothing is left to wait for.
    assert!(tokio::time::timeout(millis(300), Mongoseal::connect(&uri)).await.is_err());
    let began = Instant::now();
    seal.shutdown().await;
    assert!(began.elapsed() < longest, "shutdown: {:?}", began.elapsed());
    set.proxy().heal();
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
