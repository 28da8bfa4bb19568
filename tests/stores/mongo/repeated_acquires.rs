//! Repeated acquires of a key that was held.

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};

use crate::{GRACE, Sent, TestDatabase, eventually, millis, noting_client, secs};

/// A handle that was refused `k`, which somebody else holds, and the commands it has sent since.
async fn refused(db: &TestDatabase, name: &str) -> (Mongoseal, Sent) {
    let (client, sent) = noting_client(&db.set.uri_with(&format!("appName={name}"))).await;
    let seal = Mongoseal::on_shared_client(&client.database(db.database.name()));
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent.take();
    (seal, sent)
}

#[tokio::test]
async fn it_is_refused_by_one_command_and_granted_the_key_as_soon_as_it_is_free() {
    let db = TestDatabase::new("mongoseal_asked_again").await;
    let holder = db.seal().acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let (seal, sent) = refused(&db, "asked_again").await;
    for _ in 0..3 {
        match seal.acquire("k").await {
            Err(Error::Held { owner, token, remaining, .. }) => {
                assert_eq!((&owner, token), (holder.owner(), holder.token()));
                assert!(remaining > secs(50) && remaining <= secs(60) + GRACE, "{remaining:?}");
            }
            other => panic!("it is held: {other:?}"),
        }
    }
    assert_eq!(sent.take_names(), ["findAndModify"; 3]);
    holder.release().await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(sent.take_names(), ["findAndModify"], "one command sees that the key is free and takes it");
    lease.release().await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(sent.take_names(), ["update", "findAndModify", "update"], "each request is one command");
}

#[tokio::test]
async fn it_is_granted_what_a_holder_left_whose_time_is_over_and_what_it_can_share() {
    let db = TestDatabase::new("mongoseal_asked_again_over").await;
    let other = db.seal();
    let _dead = other.acquire("k").ttl(millis(800)).without_refresh().await.unwrap();
    let (seal, _sent) = refused(&db, "asked_again_over").await;
    let taken = async || match seal.acquire("k").await {
        Ok(lease) => lease.release().await.is_ok(),
        Err(_held) => false,
    };
    eventually(secs(30), "its time is over", taken).await;

    let one = other.acquire("k").shared_up_to(2).await.unwrap();
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })), "alone it cannot be had");
    let two = seal.acquire("k").shared_up_to(2).await.unwrap();
    assert!(matches!(seal.acquire("k").shared_up_to(2).await, Err(Error::Held { .. })), "two have it");
    assert!(matches!(seal.acquire("k").shared_up_to(2).await, Err(Error::Held { .. })), "and have it still");
    one.release().await.unwrap();
    let _three = seal.acquire("k").shared_up_to(2).await.unwrap();
    two.release().await.unwrap();
}

#[tokio::test]
async fn it_asks_until_it_is_answered_and_leaves_nothing_behind() {
    let name = "asked_again_faults";
    let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
    for fault in [
        doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        doc! { "closeConnection": true },
        doc! { "errorCode": 91 },
    ] {
        let holder = db.seal().acquire("k").await.unwrap();
        let (seal, sent) = refused(&db, name).await;
        let point = db.set.fail_command(name, &["findAndModify"], fault.clone(), 2).await;
        assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
        assert_eq!(
            sent.take_names(),
            ["findAndModify"; 4],
            "two that were not confirmed, a third, and one to take them back"
        );
        holder.release().await.unwrap();
        drop(point);
        let point = db.set.fail_command(name, &["findAndModify"], fault, 2).await;
        seal.acquire("k").await.unwrap().release().await.unwrap();
        drop(point);
        assert!(db.record("k").await.unwrap().get_array("holders").unwrap().is_empty());
    }
}

#[tokio::test]
async fn once_it_has_given_up_nothing_is_sent_for_it_any_more() {
    let name = "asked_again_late";
    let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
    let holder = db.seal().acquire("k").await.unwrap();
    let seal = db.build(Mongoseal::builder().operation_timeout(secs(1)));
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    holder.release().await.unwrap();
    // Done, but not answered.
    let point = doc! {
        "configureFailPoint": "waitAfterCommandFinishesExecution",
        "mode": "alwaysOn",
        "data": { "ns": format!("mongoseal_{name}.mongoseal"), "commands": ["findAndModify"] },
    };
    let point = db.set.fail_point(0, point).await;
    let error = seal.acquire("k").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    point.hit(1).await;
    point.off().await;
    // In this time whatever was to follow would have been answered.
    tokio::time::sleep(secs(1)).await;
    assert!(db.record("k").await.unwrap().get_array("holders").unwrap().is_empty());
}

/// A document that is not ours is told of as ever.
#[tokio::test]
async fn it_hears_what_is_wrong_with_a_record_that_somebody_broke_meanwhile() {
    let db = TestDatabase::new("mongoseal_asked_again_broken").await;
    let _holder = db.seal().acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let (seal, _sent) = refused(&db, "asked_again_broken").await;
    for (field, wrong) in
        [("queue", doc! { "$set": { "queue": "me" } }), ("version", doc! { "$set": { "version": 7 } })]
    {
        let record = db.record("k").await.unwrap();
        db.records().update_one(doc! { "_id": "k" }, wrong).await.unwrap();
        match seal.acquire("k").await {
            Err(error @ Error::Corrupt { .. }) => assert!(error.to_string().contains(field), "{error}"),
            other => panic!("`{field}` is broken: {other:?}"),
        }
        db.records().replace_one(doc! { "_id": "k" }, record).await.unwrap();
    }
}
