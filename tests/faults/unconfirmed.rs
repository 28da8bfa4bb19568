//! A write concern error is never success.

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::ReplicaSet;

use crate::{connect, millis, secs};

pub(super) async fn a_write_concern_error_on_a_committed_write_is_asked_again_and_then_unavailable() {
    let set = ReplicaSet::start(1).await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(3)), set.uri_with("appName=one")).await;
    let error = || doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };

    let once = set.fail_command("one", &["findAndModify"], error(), 1).await;
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(once.off().await, 1);
    let record = set.client().await.database("mongoseal").collection::<mongodb::bson::Document>("mongoseal");
    let record = record.find_one(doc! { "_id": "k" }).await.unwrap().unwrap();
    assert_eq!(record.get_i64("version").unwrap(), i64::from(lease.token()), "one grant, sent twice");

    let always = set.fail_command("one", &["findAndModify"], error(), 1_000_000).await;
    assert!(matches!(seal.acquire("other").await, Err(Error::Unavailable { .. })));
    assert!(matches!(lease.refresh().await, Err(Error::Unavailable { .. })));
    assert!(always.off().await > 4);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn a_write_without_a_majority_is_unavailable_and_what_it_left_is_taken_back() {
    let set = ReplicaSet::start(3).await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(3)), set.uri()).await;
    let held = seal.acquire("held").ttl(secs(300)).await.unwrap();
    let stopped = set.stop_replication().await;
    let error = seal.acquire("k").ttl(secs(60)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(matches!(held.refresh().await, Err(Error::Unavailable { .. })));
    for stop in stopped {
        stop.off().await;
    }
    let began = std::time::Instant::now();
    loop {
        match seal.acquire("k").await {
            Ok(_) => break,
            Err(Error::Held { .. } | Error::Unavailable { .. }) if began.elapsed() < secs(60) => {
                tokio::time::sleep(millis(50)).await;
            }
            Err(error) => panic!("{error} after {:?}", began.elapsed()),
        }
    }
    held.refresh().await.unwrap();
}
