//! A deposed primary that is partitioned from the other members never confirms a lease.

use mongodb::{Client, bson::doc};
use mongoseal::{Error, Lease, LeaseState, Mongoseal};
use mongoseal_test_support::{How, ReplicaSet, Walk};

use crate::{connect, millis, secs};

pub(super) async fn a_deposed_primary_confirms_no_verb() {
    let set = ReplicaSet::builder().members(3).election_timeout(secs(20)).proxied().start().await;
    let old = set.primary().await;
    // Speaks to the old primary only, and past the proxies: never cut off from it.
    let seal = connect(Mongoseal::builder().operation_timeout(secs(3)), set.direct_uri(old)).await;
    let kept = seal.acquire("kept").ttl(secs(300)).without_refresh().await.unwrap();
    let short = seal.acquire("taken").ttl(millis(500)).without_refresh().await.unwrap();
    let walk = Walk::prepare(&seal).await;

    set.proxy().isolate_member(old, How::Reset);
    let new = (old + 1) % 3;
    set.step_up(new).await;
    let elsewhere = connect(Mongoseal::builder(), set.direct_uri(new)).await;
    let taken = loop {
        match elsewhere.acquire("taken").ttl(secs(60)).await {
            Ok(lease) => break lease,
            Err(Error::Held { .. } | Error::Unavailable { .. }) => tokio::time::sleep(millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(taken.token() > short.token());

    // The trap is there: the old primary says that it is one, and confirms by a majority a write
    // that changes nothing.
    let client = Client::with_uri_str(set.direct_uri(old)).await.unwrap();
    let database = client.database("mongoseal");
    let hello = database.run_command(doc! { "hello": 1 }).await.unwrap();
    assert!(hello.get_bool("isWritablePrimary").unwrap());
    let unchanged = database
        .run_command(doc! {
            "findAndModify": "mongoseal", "query": { "_id": "taken" }, "update": [{ "$set": { "_id": "$_id" } }],
            "writeConcern": { "w": "majority", "wtimeout": 1000 },
        })
        .await
        .unwrap();
    assert!(!unchanged.contains_key("writeConcernError"), "{unchanged}");
    let stale = unchanged.get_document("value").unwrap().get_i64("version").unwrap();
    assert_eq!(stale, i64::from(short.token()), "and knows nothing of the new holder");

    // Who asks it to hold, again or anew, or to refresh, is not told that he does: neither for the
    // lease that it believes expired, nor for the one that it believes held.
    let restarted = connect(Mongoseal::builder().operation_timeout(secs(3)), set.direct_uri(old)).await;
    let resume = async |lease: &Lease| restarted.resume(lease.key(), lease.id(), lease.token()).await.map(drop);
    let anew = async || seal.acquire("new").await.map(drop);
    let answers =
        async { <[_; 5]>::from(tokio::join!(resume(&short), resume(&kept), anew(), kept.refresh(), kept.verify())) };
    let (answers, ()) = tokio::join!(answers, walk.none_is_confirmed(&seal));
    for answer in answers {
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    }
    assert!(matches!(kept.state(), LeaseState::AtRisk | LeaseState::Held));

    let hello = database.run_command(doc! { "hello": 1 }).await.unwrap();
    assert!(hello.get_bool("isWritablePrimary").unwrap(), "all this while it believed to be primary");

    // Healed, the new holder is the holder, and the old token is the smaller one.
    set.proxy().heal();
    set.settled().await;
    taken.verify().await.unwrap();
    taken.refresh().await.unwrap();
}
