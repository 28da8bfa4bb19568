//! Keys that an operator takes away.

use mongoseal::{Deadline, Error, LeaseState, LossCause, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn a_holder_learns_of_its_revocation_at_once_and_who_waits_is_next() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
    // Longer than a listener stays for nobody.
    tokio::time::sleep(secs(60)).await;
    let revoked = store.seal().revoke("k").by("alice").reason("stuck").await.unwrap();
    assert_eq!(revoked.len(), 1);
    assert_eq!((&revoked[0].owner, revoked[0].token), (lease.owner(), lease.token()));
    let began = tokio::time::Instant::now();
    assert_eq!(
        lease.cancelled().await,
        LeaseState::Lost { cause: LossCause::Revoked { by: "alice".into(), reason: "stuck".into() } }
    );
    assert!(began.elapsed() < millis(5), "{:?}", began.elapsed());
    assert!(waiting.await.unwrap().unwrap().token() > lease.token());
}

#[tokio::test(start_paused = true)]
async fn where_nobody_tells_the_next_refresh_does() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    tokio::time::sleep(secs(5)).await;
    store.seal().revoke("k").await.unwrap();
    tokio::time::sleep(secs(4)).await;
    assert!(lease.is_valid());
    tokio::time::sleep(millis(1_100)).await;
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_revoked_before_its_handle_listened_is_lost_when_it_does() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").without_refresh().await.unwrap();
    tokio::time::sleep(millis(500)).await;
    store.seal().revoke("k").await.unwrap();
    assert!(lease.is_valid(), "the handle listens after a second");
    tokio::time::sleep(millis(700)).await;
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_holder_listens_again_where_listening_failed() {
    let store = Faulty::new();
    store.first(1, |call| matches!(call, Call::Watch), Fault::Fail);
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    tokio::time::sleep(secs(12)).await;
    store.seal().revoke("k").await.unwrap();
    tokio::time::sleep(millis(5)).await;
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn all_sharers_lose_the_key_and_a_lease_without_expiry_does() {
    let store = Faulty::new();
    let seal = store.seal();
    let one = seal.acquire("k").shared().await.unwrap();
    let two = seal.acquire("k").shared().without_expiry().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    let revoked = seal.revoke("k").await.unwrap();
    assert_eq!(revoked.iter().map(|revoked| revoked.token).collect::<Vec<_>>(), [one.token(), two.token()]);
    for lease in [one, two] {
        assert!(
            matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == seal.owner().as_str())
        );
    }
    drop(seal.acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_whose_answer_was_lost_hits_nobody_who_came_after() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
    tokio::time::sleep(secs(5)).await;
    store.first(1, |call| matches!(call, Call::Apply(Request::Revoke(_))), Fault::LoseReply);
    let revoked = store.seal().revoke("k").await.unwrap();
    assert_eq!(revoked.iter().map(|revoked| revoked.token).collect::<Vec<_>>(), [lease.token()]);
    let next = waiting.await.unwrap().unwrap();
    next.verify().await.unwrap();
    assert!(store.requests().iter().filter(|request| matches!(request, Request::Revoke(_))).count() == 2);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_a_stale_copy_has_not_written_is_sent_again() {
    let store = Faulty::new();
    let seal = store.seal();
    for is_of_token in [false, true] {
        let lease = seal.acquire("k").await.unwrap();
        let is_revoke = |call: Call<'_>| matches!(call, Call::Apply(Request::Revoke(_)) | Call::Jointly(_));
        store.first(1, is_revoke, Fault::Stale);
        let revoke = store.seal().revoke("k");
        let revoked = if is_of_token { revoke.token(lease.token()).await } else { revoke.await }.unwrap();
        assert_eq!(revoked.iter().map(|holder| holder.token).collect::<Vec<_>>(), [lease.token()]);
        assert!(lease.verify().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_of_one_token_whose_answer_was_lost_ends_no_other_lease_and_returns_the_one() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
    tokio::time::sleep(secs(5)).await;
    store.first(1, |call| matches!(call, Call::Jointly(_)), Fault::LoseReply);
    let revoked = store.seal().revoke("k").token(lease.token()).await.unwrap();
    assert_eq!(revoked.iter().map(|revoked| revoked.token).collect::<Vec<_>>(), [lease.token()]);
    waiting.await.unwrap().unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_before_its_revocation_arrives_is_not_returned() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("k").await.unwrap();
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(secs(1))));
    let revoke = tokio::spawn(seal.revoke("k").token(lease.token()).into_future());
    tokio::time::sleep(millis(500)).await;
    lease.release().await.unwrap();
    assert!(revoke.await.unwrap().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bound_leaves_the_lease_that_was_granted_after_it() {
    let store = Faulty::new();
    let seal = store.seal();
    let old = seal.acquire("k").shared().await.unwrap();
    let seen = seal.inspect("k").await.unwrap().unwrap().version;
    let new = seal.acquire("k").shared().await.unwrap();
    let revoked = seal.revoke("k").up_to(seen).await.unwrap();
    assert_eq!(revoked.iter().map(|revoked| revoked.token).collect::<Vec<_>>(), [old.token()]);
    new.verify().await.unwrap();
    assert!(seal.revoke("k").up_to(seen).await.unwrap().is_empty(), "a repeated one ends no other lease");
    new.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_nobody_holds_is_left_alone_and_too_long_a_reason_refused() {
    let store = Faulty::new();
    let seal = store.seal();
    assert!(seal.revoke("k").await.unwrap().is_empty());
    assert!(store.requests().is_empty());
    let error = seal.revoke("k").reason("x".repeat(1_025)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("1025 bytes"), "{error}");
    assert!(matches!(seal.revoke("").await, Err(Error::Invalid { .. })));
    store.always(Fault::Fail);
    assert!(matches!(seal.revoke("k").await, Err(Error::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_record_remembers_the_last_eight_revocations() {
    use mongoseal::store::{Snapshot, Store};
    let store = Faulty::new();
    let seal = store.seal();
    for number in 0..10 {
        let lease = seal.acquire("k").await.unwrap();
        seal.revoke("k").by("alice").reason(format!("{number}")).await.unwrap();
        lease.verify().await.unwrap_err();
    }
    let key = "k".parse().unwrap();
    let Some(Snapshot { record, .. }) =
        store.records.read(&key, Deadline::after(store.records.clock(), secs(1))).await.unwrap()
    else {
        panic!("it is there")
    };
    let reasons: Vec<_> = record.history.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["2", "3", "4", "5", "6", "7", "8", "9"]);
}
