//! Keys that an operator takes away.

use mongoseal::{Error, FencingToken, Lease, LeaseState, LossCause, Mongoseal, inspect::HolderInfo, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

fn tokens(revoked: &[HolderInfo]) -> Vec<FencingToken> {
    revoked.iter().map(|holder| holder.token).collect()
}

fn is_revoke(call: &Call<'_>) -> bool {
    matches!(call, Call::Apply(Request::Revoke(_)) | Call::Jointly(_))
}

/// Revokes the key of a lease, or the lease by its token. Returns the tokens that were revoked.
async fn revoke(store: &Faulty, lease: &Lease, is_of_token: bool) -> Vec<FencingToken> {
    let revoke = store.seal().revoke("k");
    tokens(&if is_of_token { revoke.token(lease.token()).await } else { revoke.await }.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_holder_learns_of_its_revocation_at_once() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    // Longer than a listener stays for nobody.
    tokio::time::sleep(secs(60)).await;
    store.seal().revoke("k").await.unwrap();
    let began = tokio::time::Instant::now();
    assert!(matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { .. } }));
    assert!(began.elapsed() < millis(5), "{:?}", began.elapsed());
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
    let seal = Mongoseal::in_memory();
    let one = seal.acquire("k").shared().await.unwrap();
    let two = seal.acquire("k").shared().without_expiry().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    let revoked = seal.revoke("k").await.unwrap();
    assert_eq!(tokens(&revoked), [one.token(), two.token()]);
    for lease in [one, two] {
        assert!(
            matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == seal.owner().as_str())
        );
    }
    drop(seal.acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_whose_answer_was_lost_returns_whom_it_hit_and_hits_nobody_who_came_after() {
    for is_of_token in [false, true] {
        let (store, lease) = Faulty::held().await;
        let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
        tokio::time::sleep(secs(5)).await;
        store.first(1, |call| is_revoke(&call), Fault::LoseReply);
        assert_eq!(revoke(&store, &lease, is_of_token).await, [lease.token()]);
        waiting.await.unwrap().unwrap().verify().await.unwrap();
        let sent = store.requests().iter().filter(|request| matches!(request, Request::Revoke(_))).count();
        assert_eq!(sent, if is_of_token { 0 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_a_stale_copy_has_not_written_is_sent_again() {
    let (store, seal) = Faulty::open();
    for is_of_token in [false, true] {
        let lease = seal.acquire("k").await.unwrap();
        store.first(1, |call| is_revoke(&call), Fault::Stale);
        assert_eq!(revoke(&store, &lease, is_of_token).await, [lease.token()]);
        assert!(lease.verify().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_before_its_revocation_arrives_is_not_returned() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(secs(1))));
    let revoke = tokio::spawn(seal.revoke("k").token(lease.token()).into_future());
    tokio::time::sleep(millis(500)).await;
    lease.release().await.unwrap();
    assert!(revoke.await.unwrap().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bound_leaves_the_lease_that_was_granted_after_it() {
    let seal = Mongoseal::in_memory();
    let old = seal.acquire("k").shared().await.unwrap();
    let seen = seal.inspect("k").await.unwrap().unwrap().version;
    let new = seal.acquire("k").shared().await.unwrap();
    let revoked = seal.revoke("k").up_to(seen).await.unwrap();
    assert_eq!(tokens(&revoked), [old.token()]);
    new.verify().await.unwrap();
    assert!(seal.revoke("k").up_to(seen).await.unwrap().is_empty(), "a repeated one ends no other lease");
    new.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_nobody_holds_is_left_alone_and_too_long_a_reason_refused() {
    let (store, seal) = Faulty::open();
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
    let seal = Mongoseal::in_memory();
    for number in 0..10 {
        seal.acquire("k").await.unwrap().orphan();
        seal.revoke("k").by("alice").reason(format!("{number}")).await.unwrap();
    }
    let history = seal.inspect("k").await.unwrap().unwrap().history;
    let reasons: Vec<_> = history.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["2", "3", "4", "5", "6", "7", "8", "9"]);
}
