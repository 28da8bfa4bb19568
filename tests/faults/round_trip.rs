//! A slow network costs no lease, as long as its round trip is at most two fifths of the ttl.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use mongodb::{Client, bson::doc};
use mongoseal::{BeginOutcome, LeaseState, Mongoseal, Tick};
use mongoseal_test_support::ReplicaSet;
use tokio::task::JoinSet;

use crate::{connect, millis, secs};

/// How many connections a handle has before its replies are late.
const CONNECTIONS: usize = 24;

/// How long a lease is held with each delay.
const HELD: Duration = secs(6);

/// A handle that waits for a reply for less than the round trip believes none of them.
pub(super) async fn a_constant_round_trip_below_two_fifths_of_the_ttl_neither_loses_a_lease_nor_puts_it_at_risk() {
    let set = ReplicaSet::builder().proxied().start().await;
    let holding = [(millis(1_500), millis(300)), (millis(2_400), millis(700))].map(|(ttl, delay)| {
        // One alone, and several that are refreshed together.
        [1, 8].map(|many| hold(&set, many, ttl, delay))
    });
    let [[first, second], [third, fourth]] = holding;
    tokio::join!(first, second, third, fourth);
}

/// Holds leases over a slow network.
async fn hold(set: &ReplicaSet, many: usize, ttl: Duration, delay: Duration) {
    let name = format!("{many}-after-{}", delay.as_millis());
    // What is measured is a round trip, and to open a connection takes several. No more of them are needed at a time than one
    // for the change stream and two for each lease.
    let uri = set.uri_with(&format!("appName={name}&minPoolSize={CONNECTIONS}"));
    let seal = connect(Mongoseal::builder().ttl(ttl), uri).await;
    let looking = set.client().await;
    while connections(&looking, &name).await < CONNECTIONS {
        tokio::time::sleep(millis(20)).await;
    }
    set.proxy().delay_replies(&name, delay);
    let mut acquiring = JoinSet::new();
    for number in 0..many {
        acquiring.spawn(seal.acquire(format!("{name} k{number}")).into_future());
        // So that they are not all refreshed at the same time.
        tokio::time::sleep(millis(100)).await;
    }
    let leases: Vec<_> = acquiring.join_all().await.into_iter().map(Result::unwrap).collect();
    let until = Instant::now() + HELD;
    while Instant::now() < until {
        for lease in &leases {
            assert_eq!(lease.state(), LeaseState::Held, "{many} leases of {ttl:?} with a delay of {delay:?}");
        }
        tokio::time::sleep(millis(10)).await;
    }
    let mut ending = JoinSet::new();
    for lease in leases {
        ending.spawn(async move {
            lease.verify().await.unwrap();
            lease.release().await.unwrap();
        });
    }
    ending.join_all().await;
    seal.shutdown().await;
}

/// How many connections to the primary clients of this name have.
async fn connections(looking: &Client, name: &str) -> usize {
    let admin = looking.database("admin");
    let all = doc! { "$currentOp": { "allUsers": true, "idleConnections": true } };
    let of_client = doc! { "$match": { "appName": name, "desc": { "$regex": "^conn" } } };
    let mut found = admin.aggregate([all, of_client]).await.unwrap();
    let mut count = 0;
    while found.advance().await.unwrap() {
        count += 1;
    }
    count
}

/// The driver gives connections to requests in the order in which they came. Pages of an operator read the records of many keys at
/// once.
pub(super) async fn a_burst_of_acquires_or_of_reads_does_not_keep_a_refresh_waiting() {
    a_burst_costs_no_lease("acquires", 1_200, |seal, key| seal.acquire(key).into_future()).await;
    let read = |seal: &Mongoseal, key: String| {
        let seal = seal.clone();
        async move { seal.inspect(key).await }
    };
    a_burst_costs_no_lease("reads", 2_000, read).await;
}

/// The driver serves requests that wait for a connection in their order. So the number of other requests is bounded.
async fn a_burst_costs_no_lease<T, F>(name: &str, many: usize, ask: impl Fn(&Mongoseal, String) -> F)
where
    T: Send + 'static,
    F: Future<Output = mongoseal::Result<T>> + Send + 'static,
{
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().ttl(secs(30)), set.uri_with(&format!("appName={name}"))).await;
    let burst = |prefix: &str, many: usize| -> JoinSet<_> {
        (0..many).map(|number| ask(&seal, format!("{prefix} {number}"))).collect()
    };
    // Opens connections.
    burst("first", 400).join_all().await.into_iter().for_each(|opened| drop(opened.unwrap()));
    let lease = seal.acquire("held").ttl(millis(2_400)).await.unwrap();
    let (with_value, released) = (seal.acquire("value").await.unwrap(), seal.acquire("released").await.unwrap());
    let BeginOutcome::Started(tick) = seal.once("tick", Tick::number(1)).begin().await.unwrap() else {
        panic!("it is new")
    };
    let delayed = set.proxy().delay_replies(name, millis(200));
    let mut asking = burst("then", many);
    let began = Instant::now();
    let (put, verified, ended, completed) =
        tokio::join!(with_value.put_value(&7).into_future(), lease.verify(), released.release(), tick.complete());
    verified.unwrap();
    put.unwrap();
    ended.unwrap();
    completed.unwrap();
    while asking.try_join_next().is_some() {}
    assert!(asking.len() > many / 2, "what keeps or ends a lease was answered with {} of {many} left", asking.len());
    while !asking.is_empty() {
        while asking.try_join_next().is_some() {}
        assert!(lease.is_valid(), "{:?} {:?} after {many} {name} were sent", lease.state(), began.elapsed());
        tokio::time::sleep(millis(10)).await;
    }
    assert!(began.elapsed() > secs(4), "the burst outlasts the lease: {:?}", began.elapsed());
    assert!(delayed.count() >= 1_000, "{} were delayed", delayed.count());
    set.proxy().heal();
    lease.release().await.unwrap();
    seal.shutdown().await;
}
