//! A set with a member down, and a failover to a member whose clock is ahead.

use std::time::Instant;

use mongodb::bson::{Document, doc};
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::ReplicaSet;

use crate::{connect, millis, secs};

pub(super) async fn a_handle_starts_with_a_member_down_and_a_collection_without_its_index() {
    let set = ReplicaSet::start(3).await;
    let records = set.client().await.database("mongoseal").collection::<Document>("mongoseal");
    records.insert_one(doc! { "_id": "not a record" }).await.unwrap();
    // Not while a member is still copying its first data: then one down is one too many.
    set.settled().await;
    set.kill((set.primary().await + 1) % 3).await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(120)), set.uri()).await;
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(records.list_index_names().await.unwrap(), ["_id_", "expires_at_1"]);
}

/// How far ahead the clock of one member is of another's: at least and at most, in milliseconds.
async fn ahead(set: &ReplicaSet, member: usize, other: usize) -> (i64, i64) {
    let reads = async |member| {
        let hello = set.admin(member, doc! { "hello": 1 }).await.unwrap();
        hello.get_datetime("localTime").unwrap().timestamp_millis()
    };
    let (before, read, after) = (reads(other).await, reads(member).await, reads(other).await);
    (read - after, read - before)
}

/// No clock jumps: that of the new primary is ahead. A grace of zero would not cover the difference.
pub(super) async fn a_failover_to_a_member_whose_clock_is_ahead_grants_no_key_before_its_holder_has_stopped() {
    let set = ReplicaSet::builder().members(3).election_timeout(secs(10)).own_clocks().start().await;
    let primary = set.primary().await;
    let next = (primary + 1) % 3;
    set.set_clock(next, "+0.4");
    let began = Instant::now();
    loop {
        let (at_least, at_most) = ahead(&set, next, primary).await;
        if at_least > 350 && at_most < 450 {
            break;
        }
        assert!(began.elapsed() < secs(30), "from {at_least} to {at_most} ms ahead");
        tokio::time::sleep(millis(50)).await;
    }

    let (first, second) =
        (connect(Mongoseal::builder(), set.uri()).await, connect(Mongoseal::builder(), set.uri()).await);
    let lease = first.acquire("k").ttl(secs(8)).without_refresh().await.unwrap();
    // So soon after the send that the holder believes for nearly as long as the store keeps the key.
    loop {
        let refreshing = Instant::now();
        lease.refresh().await.unwrap();
        if refreshing.elapsed() < millis(50) {
            break;
        }
        assert!(began.elapsed() < secs(60), "a refresh takes {:?}", refreshing.elapsed());
    }
    set.step_up(next).await;
    assert!(lease.is_valid(), "the failover is over while the lease holds");
    let granted = loop {
        match second.acquire("k").await {
            Ok(granted) => break granted,
            Err(Error::Held { .. }) => tokio::time::sleep(millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let left = lease.remaining();
    assert!(left.is_zero(), "the key is granted again while its holder believes for {left:?} more");
    assert!(granted.token() > lease.token());
    assert_eq!(set.primary().await, next, "whose clock is ahead");
}
