//! The life of a lease on a real server.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::{EndReason, Error, LeaseState, LossCause, Mongoseal, ReleaseOutcome};

use crate::{TestDatabase, eventually, millis, secs};

#[tokio::test]
async fn keys_that_look_like_operators_are_keys_like_any_other() {
    let db = TestDatabase::new("mongoseal_operators").await;
    let seal = db.seal();
    let keys = ["$where", "a.b", "$$NOW", "{\"$gt\":\"\"}", " ", "ключ", "\u{7f}\n"];
    let mut leases = Vec::new();
    for key in keys {
        leases.push(seal.acquire(key).await.unwrap());
        assert!(db.record(key).await.is_some());
        assert!(matches!(seal.acquire(key).await, Err(Error::Held { .. })));
    }
    for lease in leases {
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn a_dropped_lease_is_released_and_so_is_one_whose_acquire_was_dropped() {
    let db = TestDatabase::new("mongoseal_dropped").await;
    let seal = db.seal();
    drop(seal.acquire("k").ttl(secs(600)).await.unwrap());
    eventually(secs(5), "the dropped lease is released", || async { seal.acquire("k").await.is_ok() }).await;
    eventually(secs(5), "and the next", || async { seal.acquire("k").await.is_ok() }).await;
    for delay in [0, 1, 2, 3] {
        let asked = tokio::time::timeout(millis(delay), seal.acquire("a").ttl(secs(600)));
        drop(asked.await);
        eventually(secs(5), "a dropped acquire leaves nothing held", || async { seal.acquire("a").await.is_ok() })
            .await;
    }
}

#[tokio::test]
async fn a_lease_whose_record_went_is_lost_with_its_next_refresh_and_never_created_again() {
    let db = TestDatabase::new("mongoseal_removed").await;
    let lease = db.seal().acquire("k").ttl(secs(2)).await.unwrap();
    db.records().delete_one(doc! { "_id": "k" }).await.unwrap();
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Removed });
    assert_eq!(db.record("k").await, None);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Removed });
}

#[tokio::test]
async fn verify_and_refresh_by_hand_see_a_takeover_before_the_next_refresh() {
    let db = TestDatabase::new("mongoseal_takeover").await;
    let seal = db.seal();
    for by_verify in [true, false] {
        let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
        db.records().delete_one(doc! { "_id": "k" }).await.unwrap();
        let next = seal.acquire("k").await.unwrap();
        assert!(lease.is_valid(), "what is believed is not proof");
        let error = if by_verify { lease.verify().await } else { lease.refresh().await }.unwrap_err();
        let cause = LossCause::TakenOver { token: next.token() };
        assert!(matches!(error, Error::Lost { cause: ref found, .. } if *found == cause), "{error}");
        assert_eq!(lease.state(), LeaseState::Lost { cause });
        drop(lease);
        assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn shutdown_releases_at_the_server_and_closes_only_its_own_client() {
    let db = TestDatabase::new("mongoseal_shutdown").await;
    let seal = db.seal();
    let _lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    seal.shutdown().await;
    drop(db.seal().acquire("k").await.unwrap());
    db.client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();

    let own = Mongoseal::builder().database("mongoseal_shutdown").connect(db.set.uri()).await.unwrap();
    let lease = own.acquire("own").ttl(secs(600)).await.unwrap();
    own.shutdown().await;
    drop(lease);
    drop(db.seal().acquire("own").await.unwrap());
}

#[tokio::test]
async fn a_pool_in_the_connection_string_that_is_too_small_is_not_used() {
    let db = TestDatabase::new("mongoseal_small_pool").await;
    let builder = Mongoseal::builder().database("mongoseal_small_pool");
    let seal = builder.connect(db.set.uri_with("maxPoolSize=1")).await.unwrap();
    let lease = seal.acquire("k").ttl(secs(2)).await.unwrap();
    let mut watches = Vec::new();
    for number in 0..5 {
        watches.push(seal.watch(format!("watched/{number}")).await.unwrap());
    }
    tokio::time::sleep(secs(5)).await;
    let began = Instant::now();
    seal.acquire("other").await.unwrap().release().await.unwrap();
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    lease.verify().await.unwrap();
    seal.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_does_not_wait_for_the_next_events_of_a_change_stream() {
    let db = TestDatabase::new("mongoseal_soon").await;
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let seal = Mongoseal::builder().database("mongoseal_soon").connect(db.set.uri()).await.unwrap();
        let lease = seal.acquire("k").await.unwrap();
        // Its handle listens for a revocation from a second on.
        tokio::time::sleep(millis(1_300 + 200 * round)).await;
        lease.release().await.unwrap();
        let began = Instant::now();
        seal.shutdown().await;
        longest = longest.max(began.elapsed());
    }
    println!("the longest shutdown took {longest:?}");
    // The request for the next events would have taken 0.7 seconds more at least.
    assert!(longest < millis(400), "{longest:?}");
}

#[tokio::test]
async fn a_lease_is_given_to_another_process_with_a_larger_token_and_nobody_comes_between() {
    let db = TestDatabase::new("mongoseal_given").await;
    let giver = db.seal().acquire("k").ttl(secs(30)).await.unwrap();
    let (token, state) = (giver.token(), giver.watch_state());
    let other = Mongoseal::builder().database("mongoseal_given").connect(db.set.uri()).await.unwrap();
    let waiting = tokio::spawn(other.acquire("k").wait(secs(60)).into_future());
    let id = mongoseal::LeaseId::random();
    let queued = async || db.record("k").await.is_some_and(|record| record.get_array("queue").unwrap().len() == 1);
    crate::eventually(secs(5), "the other waits", queued).await;
    let larger = giver.transfer(id).await.unwrap();
    assert!(larger > token);
    assert_eq!(state.get(), LeaseState::Ended { reason: EndReason::Transferred });
    let lease = db.seal().resume("k", id, larger).await.unwrap();
    lease.verify().await.unwrap();
    assert!(!waiting.is_finished());
    lease.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > larger);
    other.shutdown().await;
}

/// An attempt of its refresh may last for a sixth of the ttl only.
#[tokio::test]
async fn a_lease_of_a_tenth_of_a_second_can_be_refreshed() {
    let db = TestDatabase::new("mongoseal_tenth").await;
    let seal = db.seal();
    // On a busy machine some come too late.
    eventually(secs(20), "one of them is", async || {
        let acquired = seal.acquire("k").ttl(millis(100)).without_refresh().await;
        let Ok(lease) = acquired else { return false };
        lease.refresh().await.is_ok()
    })
    .await;
}
