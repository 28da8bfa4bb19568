//! Leases that a process takes up by their key, lease id and token, on a real server.

use std::time::Instant;

use mongoseal::{Error, FencingToken, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome};

use crate::{OpenedStreams, TestDatabase, millis, secs};

async fn assert_lost(seal: &Mongoseal, (id, token): (LeaseId, FencingToken), is_cause: impl Fn(&LossCause) -> bool) {
    match seal.resume("k", id, token).await {
        Err(Error::Lost { cause, .. }) => assert!(is_cause(&cause), "{cause}"),
        other => panic!("the lease is lost: {other:?}"),
    }
}

#[tokio::test]
async fn a_lease_goes_on_in_another_process_as_it_was() {
    let db = TestDatabase::new("mongoseal_resume").await;
    let first = db.build(Mongoseal::builder().owner("first"));
    let acquire = first.acquire("k").ttl(secs(20)).grace(secs(3)).group("g").metadata("build", "$1").shared_up_to(2);
    let lease = acquire.await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    let before = db.record("k").await.unwrap();
    lease.orphan();
    first.shutdown().await;

    let second = db.build(Mongoseal::builder().owner("second"));
    let lease = second.resume("k", id, token).ttl(millis(900)).await.unwrap();
    // The lease never ends sooner than before.
    assert!(lease.remaining() > secs(15), "{:?}", lease.remaining());
    let after = db.record("k").await.unwrap();
    let holder =
        |record: &mongodb::bson::Document| record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let (before, after) = (holder(&before), holder(&after));
    for field in ["lease", "owner", "version", "limit", "grace", "since", "group", "metadata"] {
        assert_eq!(before.get(field), after.get(field), "{field}");
    }
    assert_eq!(after.get_i64("ttl").unwrap(), 900);
    lease.verify().await.unwrap();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_lost(&second, (id, token), |cause| *cause == LossCause::Expired).await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_lease_hears_of_its_revocation_by_the_change_stream() {
    let db = TestDatabase::new("mongoseal_resume_revoked").await;
    let (first, streams) = (db.seal(), OpenedStreams::default());
    let lease = first.acquire("k").ttl(secs(60)).await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    lease.orphan();
    first.shutdown().await;
    let second = streams.builder().database("mongoseal_resume_revoked").connect(db.set.uri()).await.unwrap();
    let lease = second.resume("k", id, token).await.unwrap();
    streams.wait_for(1).await;
    db.seal().revoke("k").by("olga").await.unwrap();
    let began = Instant::now();
    assert!(
        matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == "olga")
    );
    println!("heard {:?} after the revocation returned", began.elapsed());
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    second.shutdown().await;
}
