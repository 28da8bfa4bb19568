//! Tokens grow and leases live on over a change of the primary.

use mongodb::bson::{Document, doc};
use mongoseal::{FencingToken, LeaseState, Mongoseal};
use mongoseal_test_support::ReplicaSet;

use crate::{connect, secs, turn};

#[tokio::test]
async fn a_handle_starts_with_a_member_down_and_a_collection_without_its_index() {
    let _turn = turn().await;
    let set = ReplicaSet::start(3).await;
    let records = set.client().await.database("mongoseal").collection::<Document>("mongoseal");
    records.insert_one(doc! { "_id": "not a record" }).await.unwrap();
    // Not while a member is still copying its first data: then one down is one too many.
    set.settled().await;
    set.kill((set.primary().await + 1) % 3).await;
    let seal = connect(Mongoseal::builder(), set.uri()).await;
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(records.list_index_names().await.unwrap(), ["_id_", "expires_at_1"]);
}

async fn next(seal: &Mongoseal, last: &mut Option<FencingToken>) {
    let lease = seal.acquire("k").await.unwrap();
    assert!(Some(lease.token()) > *last, "{:?} after {last:?}", lease.token());
    *last = Some(lease.token());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn tokens_grow_and_a_lease_lives_on_over_step_down_and_kill_of_the_primary() {
    let _turn = turn().await;
    let set = ReplicaSet::start(3).await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(20)), set.uri()).await;
    let kept = seal.acquire("kept").ttl(secs(20)).await.unwrap();
    let mut last = None;
    next(&seal, &mut last).await;

    set.step_down().await;
    next(&seal, &mut last).await;
    set.settled().await;

    let killed = set.primary().await;
    set.kill(killed).await;
    next(&seal, &mut last).await;
    set.restart(killed).await;
    set.settled().await;
    next(&seal, &mut last).await;

    kept.verify().await.unwrap();
    assert_eq!(kept.state(), LeaseState::Held);
    kept.release().await.unwrap();
}
