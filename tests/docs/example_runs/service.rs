//! The example `service` as three processes under load, which are killed, stopped, terminated, and made to give way.

mod cluster;
mod load;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cluster::{Cluster, Leading};
use load::put_all;
use mongodb::{
    Database,
    bson::{Document, doc},
};
use mongoseal::CancellationToken;
use mongoseal_test_support::{eventually, millis, secs};
use nix::sys::signal::Signal;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::TestDatabase;

const TTL: Duration = secs(2);
/// The default grace of this ttl.
const GRACE: Duration = millis(200);
/// What a busy machine adds.
const SLACK: Duration = secs(1);

/// The label of the leadership.
const LEADERSHIP: &str = r#"name="orders""#;

/// What the test measures of a fault.
struct Fault<'a> {
    name: &'a str,
    began: Instant,
    before: Leading,
    /// The processes that answer.
    live: Vec<usize>,
}

impl<'a> Fault<'a> {
    fn begin(name: &'a str, before: Leading) -> Self {
        let live = (0..3).filter(|number| *number != before.number).collect();
        Self { name, began: Instant::now(), before, live }
    }

    /// Waits for the next leader, and until each other live process sends clients to it: within this time of the fault.
    /// All of them are ready before and after.
    async fn until_it_is_over(self, cluster: &Cluster, within: Duration) -> Leading {
        cluster.are_ready(&self.live).await;
        let (leader, led) = cluster.next_leader(&self.live, self.before.token).await;
        let mut followed = led;
        for number in self.live.iter().filter(|number| **number != leader.number) {
            followed = cluster.until_it_follows(*number, leader.number).await;
        }
        cluster.are_ready(&self.live).await;
        let (led, followed) = (led - self.began, followed - self.began);
        println!(
            "{}: the next leader after {led:?}, the other process sends clients to it after {followed:?}",
            self.name
        );
        assert!(led < within && followed < within, "{}: within {within:?}", self.name);
        leader
    }
}

/// The tokens of the orders in the ledger, in the order in which they were written, and that no order is missing or
/// there twice.
async fn written(database: &Database, accepted: &[String]) -> Vec<i64> {
    let ledger = database.collection::<Document>("ledgers").find_one(doc! { "_id": "orders" }).await.unwrap().unwrap();
    let orders: Vec<_> = ledger.get_array("orders").unwrap().iter().map(|order| order.as_document().unwrap()).collect();
    let ids: HashSet<_> = orders.iter().map(|order| order.get_str("id").unwrap()).collect();
    assert_eq!(ids.len(), orders.len(), "each order is there once");
    let missing: Vec<_> = accepted.iter().filter(|id| !ids.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "accepted and not there: {missing:?}");
    assert!(!ids.contains("late") && !ids.contains("misdirected"), "a refused order is not there");
    orders.iter().map(|order| order.get_i64("token").unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: it judges seconds"]
async fn one_process_takes_orders_while_leaders_are_stopped_killed_terminated_and_give_way() {
    let db = TestDatabase::new("examples_service").await;
    let mut cluster = Cluster::start(db.uri()).await;
    let (first, _) = cluster.next_leader(&[0, 1, 2], 0).await;

    // This request was admitted while its process led, and writes after the process was deposed. The new leader fences it before
    // it takes an order itself.
    let late = cluster.begin_order(first.number, "late").await;
    let fault = Fault::begin("SIGSTOP", first);
    cluster.signal(first.number, Signal::SIGSTOP);
    let second = fault.until_it_is_over(&cluster, TTL + TTL / 6 + GRACE + SLACK).await;
    let ledgers = db.database.collection::<Document>("ledgers");
    let is_fenced = async || ledgers.find_one(doc! { "fence": second.token }).await.unwrap().is_some();
    eventually(secs(5), "the new leader has written its token", is_fenced).await;
    cluster.signal(first.number, Signal::SIGCONT);
    let answer = late.finish().await;
    assert!(answer.starts_with("HTTP/1.1 409") && answer.contains(&second.token.to_string()), "{answer}");
    cluster.until_it_follows(first.number, second.number).await;
    cluster.until_it_is_ready(first.number).await;
    cluster.until_metric(first.number, "mongoseal_lease_lost", &[r#"cause="expired""#], 1.0).await;
    cluster.until_metric(first.number, "mongoseal_leader", &[LEADERSHIP], 0.0).await;

    let (end, count) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
    let load = |first| put_all(cluster.addresses.clone(), first, end.clone(), Arc::clone(&count));
    let load: JoinSet<_> = (0..3).map(load).collect();
    let takes_orders = async || {
        let enough = count.load(Ordering::Relaxed) + 50;
        eventually(secs(10), "more orders are accepted", async || count.load(Ordering::Relaxed) >= enough).await;
    };
    takes_orders().await;

    let fault = Fault::begin("kill -9", second);
    cluster.signal(second.number, Signal::SIGKILL);
    let third = fault.until_it_is_over(&cluster, TTL + TTL / 6 + GRACE + SLACK).await;
    assert!(!cluster.has_ended_well(second.number).await);
    cluster.until_metric(third.number, "mongoseal_leader", &[LEADERSHIP], 1.0).await;
    let granted = [r#"outcome="granted""#, r#"mode="campaign""#];
    cluster.until_metric(third.number, "mongoseal_acquire_duration_count", &granted, 1.0).await;
    let waited = cluster.metric(third.number, "mongoseal_acquire_duration_sum", &granted).await;
    assert!(waited > Some(TTL.as_secs_f64() / 2.0), "it waited while another process led: {waited:?} s");
    takes_orders().await;
    cluster.launch(second.number).await;
    cluster.until_it_follows(second.number, third.number).await;

    let fault = Fault::begin("SIGTERM", third);
    cluster.signal(third.number, Signal::SIGTERM);
    let fourth = fault.until_it_is_over(&cluster, TTL / 2).await;
    assert!(cluster.has_ended_well(third.number).await);
    takes_orders().await;
    cluster.launch(third.number).await;
    cluster.until_it_follows(third.number, fourth.number).await;

    let fault = Fault::begin("step down", fourth);
    assert!(cluster.step_down(fourth.number).await, "it led");
    let fifth = fault.until_it_is_over(&cluster, TTL / 2).await;
    cluster.until_it_follows(fourth.number, fifth.number).await;
    assert!(!cluster.step_down(fourth.number).await, "a follower has nothing to give");
    takes_orders().await;
    cluster.are_ready(&[0, 1, 2]).await;

    end.cancel();
    let accepted = timeout(secs(20), load.join_all()).await.expect("an order is accepted");
    let tokens = written(&db.database, &accepted.concat()).await;
    assert!(tokens.is_sorted(), "no leader wrote after a later leader: {tokens:?}");
    let mut leaders = tokens;
    leaders.dedup();
    assert_eq!(leaders, [second, third, fourth, fifth].map(|leader| leader.token));
}
