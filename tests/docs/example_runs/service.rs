//! The example `service` as three processes under load, which are killed, stopped, terminated, and made to give way.

mod cluster;
mod load;

use std::{collections::HashSet, time::Duration};

use cluster::{Cluster, Leading};
use load::Load;
use mongodb::{
    Database,
    bson::{Document, doc},
};
use mongoseal_test_support::{eventually, millis, secs};
use nix::sys::signal::Signal;
use tokio::time::Instant;

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
async fn one_process_takes_orders_while_leaders_are_killed_stopped_terminated_and_give_way() {
    let db = TestDatabase::new("examples_service").await;
    let mut cluster = Cluster::start(db.uri()).await;
    let (first, _) = cluster.next_leader(&[0, 1, 2], 0).await;
    let load = Load::begin(&cluster.addresses);
    let takes_orders = async |count: usize| {
        let before = load.accepted().len();
        let more = async || load.accepted().len() >= before + count;
        eventually(secs(10), &format!("{count} more orders are accepted"), more).await;
    };
    takes_orders(50).await;

    let fault = Fault::begin("kill -9", first);
    cluster.signal(first.number, Signal::SIGKILL);
    let second = fault.until_it_is_over(&cluster, TTL + TTL / 6 + GRACE + SLACK).await;
    assert!(!cluster.has_ended_well(first.number).await);
    cluster.until_metric(second.number, "mongoseal_leader", &[LEADERSHIP], 1.0).await;
    let granted = [r#"outcome="granted""#, r#"mode="campaign""#];
    cluster.until_metric(second.number, "mongoseal_acquire_duration_count", &granted, 1.0).await;
    let waited = cluster.metric(second.number, "mongoseal_acquire_duration_sum", &granted).await;
    assert!(waited > Some(TTL.as_secs_f64() / 2.0), "it waited while another process led: {waited:?} s");
    takes_orders(50).await;
    cluster.launch(first.number).await;
    cluster.until_it_follows(first.number, second.number).await;

    // This request was admitted while its process led, and writes after the process was deposed.
    let late = cluster.begin_order(second.number, "late").await;
    let fault = Fault::begin("SIGSTOP", second);
    cluster.signal(second.number, Signal::SIGSTOP);
    let third = fault.until_it_is_over(&cluster, TTL + TTL / 6 + GRACE + SLACK).await;
    takes_orders(50).await;
    cluster.signal(second.number, Signal::SIGCONT);
    let answer = late.finish().await;
    assert!(answer.starts_with("HTTP/1.1 409") && answer.contains(&third.token.to_string()), "{answer}");
    cluster.until_it_follows(second.number, third.number).await;
    cluster.until_it_is_ready(second.number).await;
    cluster.until_metric(second.number, "mongoseal_lease_lost", &[r#"cause="expired""#], 1.0).await;
    cluster.until_metric(second.number, "mongoseal_leader", &[LEADERSHIP], 0.0).await;

    let fault = Fault::begin("SIGTERM", third);
    cluster.signal(third.number, Signal::SIGTERM);
    let fourth = fault.until_it_is_over(&cluster, TTL / 2).await;
    assert!(cluster.has_ended_well(third.number).await);
    takes_orders(50).await;
    cluster.launch(third.number).await;
    cluster.until_it_follows(third.number, fourth.number).await;

    let fault = Fault::begin("step down", fourth);
    assert!(cluster.step_down(fourth.number).await, "it led");
    let fifth = fault.until_it_is_over(&cluster, TTL / 2).await;
    cluster.until_it_follows(fourth.number, fifth.number).await;
    assert!(!cluster.step_down(fourth.number).await, "a follower has nothing to give");
    takes_orders(50).await;
    cluster.are_ready(&[0, 1, 2]).await;

    let tokens = written(&db.database, &load.end().await).await;
    assert!(tokens.is_sorted(), "no leader wrote after a later leader: {tokens:?}");
    let mut leaders = tokens;
    leaders.dedup();
    assert_eq!(leaders, [first, second, third, fourth, fifth].map(|leader| leader.token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: it judges seconds"]
async fn a_new_leader_fences_its_predecessor_before_it_takes_an_order() {
    let db = TestDatabase::new("examples_service_idle").await;
    let cluster = Cluster::start(db.uri()).await;
    let (first, _) = cluster.next_leader(&[0, 1, 2], 0).await;
    let late = cluster.begin_order(first.number, "late").await;
    let fault = Fault::begin("SIGSTOP without load", first);
    cluster.signal(first.number, Signal::SIGSTOP);
    let second = fault.until_it_is_over(&cluster, TTL + TTL / 6 + GRACE + SLACK).await;
    let ledgers = db.database.collection::<Document>("ledgers");
    let is_fenced = async || ledgers.find_one(doc! { "fence": second.token }).await.unwrap().is_some();
    eventually(secs(5), "the new leader has written its token", is_fenced).await;
    cluster.signal(first.number, Signal::SIGCONT);
    let answer = late.finish().await;
    assert!(answer.starts_with("HTTP/1.1 409") && answer.contains(&second.token.to_string()), "{answer}");
    assert!(written(&db.database, &[]).await.is_empty());
}
