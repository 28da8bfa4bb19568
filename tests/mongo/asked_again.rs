//! Who was refused a key and asks for it again.

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};

use crate::{Bench, Sent, millis, noting_client, secs};

/// A handle that was refused `k`, which somebody else holds, and the commands it has sent since.
async fn refused(bench: &Bench, name: &str) -> (Mongoseal, Sent) {
    let (client, sent) = noting_client(&bench.set.uri_with(&format!("appName={name}"))).await;
    let seal = Mongoseal::new(&client.database(bench.database.name()));
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent.lock().unwrap().clear();
    (seal, sent)
}

fn names(sent: &Sent) -> Vec<String> {
    sent.lock().unwrap().drain(..).collect()
}

#[tokio::test]
async fn it_is_refused_by_one_find_and_granted_the_key_as_soon_as_it_is_free() {
    let bench = Bench::new("asked_again").await;
    let holder = bench.seal().acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let (seal, sent) = refused(&bench, "asked_again").await;
    for _ in 0..3 {
        match seal.acquire("k").await {
            Err(Error::Held { owner, token, remaining, .. }) => {
                assert_eq!((&owner, token), (holder.owner(), holder.token()));
                assert!(remaining > secs(50) && remaining <= secs(60), "{remaining:?}");
            }
            other => panic!("it is held: {other:?}"),
        }
    }
    assert_eq!(names(&sent), ["find"; 3]);
    holder.release().await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(names(&sent), ["find", "findAndModify"]);
    lease.release().await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(names(&sent), ["findAndModify"; 3], "a key that was granted is not read first any more");
}

#[tokio::test]
async fn it_is_granted_what_a_holder_left_whose_time_is_over_and_what_it_can_share() {
    let bench = Bench::new("asked_again_over").await;
    let other = bench.seal();
    let _dead = other.acquire("k").ttl(millis(800)).without_refresh().await.unwrap();
    let (seal, _sent) = refused(&bench, "asked_again_over").await;
    tokio::time::sleep(millis(900)).await;
    seal.acquire("k").await.unwrap().release().await.unwrap();

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
async fn if_it_waited_it_leaves_the_queue_when_it_gives_up() {
    let bench = Bench::new("asked_again_queue").await;
    let holder = bench.seal().acquire("k").await.unwrap();
    let (seal, sent) = refused(&bench, "asked_again_queue").await;
    assert!(matches!(seal.acquire("k").wait(millis(300)).await, Err(Error::Held { .. })));
    assert!(names(&sent).contains(&"find".into()), "it read before the last attempt");
    assert!(bench.record("k").await.unwrap().get_array("queue").unwrap().is_empty());
    holder.release().await.unwrap();
}

/// Whose own grant was not confirmed finds itself in the record, and is not refused by it.
#[tokio::test]
async fn if_its_grant_was_not_confirmed_it_has_the_key_when_it_asks_again() {
    let bench = Bench::new("asked_again_lost").await;
    let name = "asked_again_lost";
    for fault in [
        doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        doc! { "closeConnection": true },
    ] {
        let holder = bench.seal().acquire("k").await.unwrap();
        let (seal, sent) = refused(&bench, name).await;
        holder.release().await.unwrap();
        let point = bench.set.fail_command(name, &["findAndModify"], fault, 1).await;
        let lease = seal.acquire("k").await.unwrap();
        point.hit(1).await;
        drop(point);
        assert_eq!(names(&sent), ["find", "findAndModify", "find", "findAndModify"]);
        lease.verify().await.unwrap();
        lease.release().await.unwrap();
    }
}

/// A document that is not ours is told of as ever.
#[tokio::test]
async fn it_hears_what_is_wrong_with_a_record_that_somebody_broke_meanwhile() {
    let bench = Bench::new("asked_again_broken").await;
    let _holder = bench.seal().acquire("k").ttl(secs(60)).without_refresh().await.unwrap();
    let (seal, _sent) = refused(&bench, "asked_again_broken").await;
    for (field, wrong) in
        [("queue", doc! { "$set": { "queue": "me" } }), ("version", doc! { "$set": { "version": 7 } })]
    {
        let record = bench.record("k").await.unwrap();
        bench.records().update_one(doc! { "_id": "k" }, wrong).await.unwrap();
        match seal.acquire("k").await {
            Err(error @ Error::Corrupt { .. }) => assert!(error.to_string().contains(field), "{error}"),
            other => panic!("`{field}` is broken: {other:?}"),
        }
        bench.records().replace_one(doc! { "_id": "k" }, record).await.unwrap();
    }
}
