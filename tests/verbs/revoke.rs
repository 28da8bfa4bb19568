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
async fn a_holder_learns_of_its_revocation_at_once_if_it_listens_and_otherwise_when_it_does_or_refreshes() {
    for (listening, fault, times, revoked_at, valid_for, lost_after) in [
        // Longer than a listener stays for nobody.
        ("works", Fault::Fail, 0, secs(60), None, millis(5)),
        ("begins after a second", Fault::Fail, 0, millis(500), Some(millis(400)), millis(700)),
        ("has failed once", Fault::Fail, 1, secs(12), None, millis(5)),
        ("is refused", Fault::Refuse, usize::MAX, secs(5), Some(secs(4)), millis(5_100)),
    ] {
        let store = Faulty::new();
        store.first(times, |call| matches!(call, Call::Watch), fault);
        let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
        tokio::time::sleep(revoked_at).await;
        store.build(Mongoseal::builder().owner("olga")).revoke("k").await.unwrap();
        if let Some(valid_for) = valid_for {
            tokio::time::sleep(valid_for).await;
            assert!(lease.is_valid(), "{listening}");
        }
        tokio::time::sleep(lost_after.saturating_sub(valid_for.unwrap_or_default())).await;
        assert!(
            matches!(lease.state(), LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == "olga"),
            "{listening}: {:?}",
            lease.state()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_whose_answer_was_lost_returns_whom_it_hit_and_hits_nobody_who_came_after() {
    for is_of_token in [false, true] {
        let (store, lease) = Faulty::held().await;
        let waiting = tokio::spawn(store.seal().acquire("k").wait(secs(3600)).into_future());
        tokio::time::sleep(secs(5)).await;
        store.first(1, |call| is_revoke(&call), Fault::LoseReply);
        assert_eq!(revoke(&store, &lease, is_of_token).await, [lease.token()], "of its token: {is_of_token}");
        let next = waiting.await.unwrap().unwrap();
        next.verify().await.unwrap();
        let sent = store.requests().iter().filter(|request| matches!(request, Request::Revoke(_))).count();
        assert_eq!(sent, if is_of_token { 0 } else { 2 });
        // A stale copy has written nothing.
        store.first(1, |call| is_revoke(&call), Fault::Stale);
        assert_eq!(revoke(&store, &next, is_of_token).await, [next.token()], "of its token: {is_of_token}");
        assert!(next.verify().await.is_err());
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
