//! Revocation on a real server.

use std::time::Instant;

use mongodb::bson::doc;
use mongoseal::{Error, LeaseState, LossCause};

use crate::{OpenedStreams, TestDatabase, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_of_its_revocation_by_the_change_stream() {
    let db = TestDatabase::new("mongoseal_revoked").await;
    let streams = OpenedStreams::default();
    let seal = streams.builder().database("mongoseal_revoked").connect(db.set.uri()).await.unwrap();
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    streams.wait_for(1).await;
    let revoked = db.seal().revoke("k").by("alice").reason("drill").await.unwrap();
    let began = Instant::now();
    assert_eq!(revoked.len(), 1);
    assert_eq!(
        lease.cancelled().await,
        LeaseState::Lost { cause: LossCause::Revoked { by: "alice".into(), reason: "drill".into() } }
    );
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    println!("told {:?} after the revocation returned", began.elapsed());
    let next = db.seal().acquire("k").await.unwrap();
    assert!(next.token() > lease.token());
    let record = db.record("k").await.unwrap();
    let event = record.get_array("history").unwrap()[0].as_document().unwrap();
    assert_eq!((event.get_str("by").unwrap(), event.get_str("reason").unwrap()), ("alice", "drill"));
    seal.shutdown().await;
}

#[tokio::test]
async fn a_revocation_of_one_token_ends_its_lease_and_no_other_sharer() {
    let db = TestDatabase::new("mongoseal_revoke_one").await;
    let seal = db.seal();
    let (one, two) = (seal.acquire("k").shared().await.unwrap(), seal.acquire("k").shared().await.unwrap());
    let revoked = seal.revoke("k").token(one.token()).by("alice").reason("stuck").await.unwrap();
    assert_eq!(revoked.iter().map(|revoked| revoked.token).collect::<Vec<_>>(), [one.token()]);
    assert_eq!(
        one.cancelled().await,
        LeaseState::Lost { cause: LossCause::Revoked { by: "alice".into(), reason: "stuck".into() } }
    );
    two.verify().await.unwrap();
    assert!(seal.revoke("k").token(one.token()).await.unwrap().is_empty());
    db.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "holders": "none" } }).await.unwrap();
    assert!(matches!(seal.revoke("k").token(two.token()).await, Err(Error::Corrupt { .. })));
}
