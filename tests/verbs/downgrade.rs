//! Leases whose holder lets other holders in, if replies are lost or the store is away.

use mongoseal::{Error, LossCause, ReleaseOutcome, Sharing, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

fn is_downgrade(call: Call<'_>) -> bool {
    matches!(call, Call::Apply(Request::Downgrade(_)))
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_whose_answer_was_lost_is_made_once() {
    let (store, lease) = Faulty::held().await;
    let asked = store.requests().len();
    store.first(2, is_downgrade, Fault::LoseReply);
    // On a task of its own, so its future can be sent to another thread.
    let lease =
        tokio::spawn(async move { lease.downgrade(Sharing::UpTo(2)).await.map(|()| lease) }).await.unwrap().unwrap();
    assert_eq!(store.requests().len() - asked, 3);
    let _second = store.seal().acquire("k").shared().await.unwrap();
    assert!(matches!(store.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_lost_and_the_key_stays_as_it_is() {
    let (store, lease) = Faulty::held().await;
    store.seal().revoke("k").await.unwrap();
    let next = store.seal().acquire("k").await.unwrap();
    let error = lease.downgrade(Sharing::UpTo(2)).await.unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Revoked { .. }, .. }), "{error}");
    assert!(matches!(lease.downgrade(Sharing::UpTo(2)).await, Err(Error::Lost { .. })));
    assert!(matches!(store.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    next.verify().await.unwrap();
    // A stale copy knows nothing of the lease: a read says that it holds.
    store.first(1, is_downgrade, Fault::Stale);
    next.downgrade(Sharing::UpTo(2)).await.unwrap();
    drop(store.seal().acquire("k").shared().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_meanwhile_is_lost_before_the_operation_timeout() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(3)).without_refresh().await.unwrap();
    let (began, deadline) = (tokio::time::Instant::now(), lease.remaining());
    store.always(Fault::Fail);
    let error = lease.downgrade(Sharing::UpTo(2)).await.unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Expired, .. }), "{error}");
    assert!(began.elapsed() <= deadline + millis(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_unavailable_and_the_lease_lives_on() {
    let (store, lease) = Faulty::held().await;
    store.script(|call| is_downgrade(call).then_some(Fault::Fail));
    assert!(matches!(lease.downgrade(Sharing::UpTo(2)).await, Err(Error::Unavailable { .. })));
    store.heal();
    assert!(matches!(store.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    lease.downgrade(Sharing::UpTo(2)).await.unwrap();
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_later_sharer_takes_nothing_from_a_downgraded_lease() {
    let (store, lease) = Faulty::held().await;
    lease.downgrade(Sharing::UpTo(3)).await.unwrap();
    let sharer = store.seal().acquire("k").shared().ttl(secs(600)).await.unwrap();
    assert!(sharer.token() > lease.token());
    // The record does not tell how the lease ended, and its version is that of the sharer.
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::LoseReply);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_dropped_half_way_may_be_made_and_the_lease_stays() {
    for (fault, is_made) in [(Fault::Delay(secs(2)), true), (Fault::DelayReply(secs(2)), true), (Fault::Fail, false)] {
        let (store, lease) = Faulty::held().await;
        store.script(move |call| is_downgrade(call).then_some(fault));
        assert!(
            tokio::time::timeout(millis(10), lease.downgrade(Sharing::UpTo(2))).await.is_err(),
            "it is dropped half-way"
        );
        tokio::time::sleep(secs(20)).await;
        assert_eq!(store.seal().acquire("k").shared().await.is_ok(), is_made, "{fault:?}");
        lease.verify().await.unwrap();
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    }
}
