//! Leases that a process takes up by their key, lease id and token.

use std::sync::Arc;

use mongoseal::{
    Error, FencingToken, Lease, LeaseId, LeaseState, LossCause, Result,
    record::{Outcome, Request},
    store::{Deadline, Store},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// A lease that its process has left, with a ttl of 30 seconds.
async fn left(store: &Faulty) -> (LeaseId, FencingToken) {
    leave(store.seal().acquire("k").ttl(secs(30)).await.unwrap())
}

async fn new_left() -> (Faulty, LeaseId, FencingToken) {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    (store, id, token)
}

fn leave(lease: Lease) -> (LeaseId, FencingToken) {
    let named = (lease.id(), lease.token());
    lease.orphan();
    named
}

fn assert_lost(result: Result<impl std::fmt::Debug>, expected: &LossCause) {
    match result {
        Err(Error::Lost { cause, .. }) => assert_eq!(cause, *expected),
        other => panic!("the lease is lost: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_sends_refreshes_only_also_of_a_lease_that_is_lost() {
    let (store, id, token) = new_left().await;
    let sent = store.requests().len();
    leave(store.seal().resume("k", id, token).await.unwrap());
    tokio::time::sleep(secs(31)).await;
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::Expired);
    assert!(matches!(store.requests()[sent..], [Request::Refresh(_)]), "{:?}", &store.requests()[sent..]);
}

/// The store gets the first acquire once more, and grants it. Returns the token of that.
async fn deliver_again(store: &Faulty) -> FencingToken {
    let acquire = store.requests().into_iter().find(|request| matches!(request, Request::Acquire(_))).unwrap();
    let (key, deadline) = ("k".parse().unwrap(), Deadline::after(store.records.clock(), secs(1)));
    let applied = store.records.apply(&key, acquire, deadline).await.unwrap();
    let Outcome::Granted { token, .. } = applied.outcome else { panic!("{applied:?}") };
    token
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_acquire_was_delivered_again_after_its_end_is_taken_over() {
    let (store, id, token) = new_left().await;
    tokio::time::sleep(secs(30) + GRACE).await;
    let later = deliver_again(&store).await;
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::TakenOver { token: later });
    tokio::time::sleep(secs(30) + GRACE).await;
    drop(store.seal().acquire("k").await.unwrap());

    let (store, held) = Faulty::held().await;
    store.records.remove(held.key());
    let later = deliver_again(&store).await;
    assert_lost(held.refresh().await, &LossCause::TakenOver { token: later });
}

#[tokio::test(start_paused = true)]
async fn a_resume_of_a_lease_that_is_lost_says_how_it_was_lost() {
    let (store, seal) = Faulty::open();
    let resume = async |(id, token)| store.seal().resume("k", id, token).await;
    let (id, token) = left(&store).await;
    let larger = FencingToken::new(token.get() + 1).unwrap();
    assert_lost(resume((id, larger)).await, &LossCause::Removed);
    assert_lost(resume((LeaseId::random(), token)).await, &LossCause::Expired);
    assert_lost(seal.resume("other", id, token).await, &LossCause::Removed);
    assert!(matches!(seal.resume("", id, token).await, Err(Error::Invalid { .. })));
    resume((id, token)).await.unwrap().release().await.unwrap();

    let revoked = left(&store).await;
    seal.revoke("k").by("olga").reason("stuck").await.unwrap();
    assert_lost(resume(revoked).await, &LossCause::Revoked { by: "olga".into(), reason: "stuck".into() });

    let taken_over = left(&store).await;
    tokio::time::sleep(secs(30) + GRACE).await;
    let next = seal.acquire("k").await.unwrap();
    assert_lost(resume(taken_over).await, &LossCause::TakenOver { token: next.token() });
    next.verify().await.unwrap();
    next.release().await.unwrap();

    // Sharers take nothing from one another.
    let sharer = leave(seal.acquire("k").shared().ttl(secs(10)).await.unwrap());
    let later = seal.acquire("k").shared().await.unwrap();
    tokio::time::sleep(secs(11)).await;
    assert_lost(resume(sharer).await, &LossCause::Expired);
    later.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_fails_or_is_dropped_half_way_leaves_the_lease_held_and_its_id_free() {
    let (store, id, token) = new_left().await;
    let seal = store.seal();
    for fault in [Fault::Delay(secs(2)), Fault::DelayReply(secs(2)), Fault::Fail] {
        for at_read in [true, false] {
            store.script(move |call| match call {
                Call::Read => at_read.then_some(fault),
                Call::Apply(Request::Refresh(_)) => (!at_read).then_some(fault),
                _ => None,
            });
            let is_dropped = !matches!(fault, Fault::Fail);
            let at_most = if is_dropped { millis(500) } else { secs(60) };
            let resuming = tokio::time::timeout(at_most, seal.resume("k", id, token).into_future()).await;
            assert!(matches!(resuming, Ok(Err(Error::Unavailable { .. }))) || is_dropped && resuming.is_err());
            tokio::time::sleep(secs(3)).await;
        }
    }
    store.heal();
    assert!(!store.requests().iter().any(|request| matches!(request, Request::Release(_) | Request::Leave(_))));
    seal.resume("k", id, token).await.unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_sends_again_if_a_reply_is_lost_or_comes_from_a_stale_copy() {
    for mut faults in [vec![Fault::LoseReply, Fault::Hang], vec![Fault::Stale]] {
        let (store, id, token) = new_left().await;
        store.script(move |call| match call {
            Call::Apply(Request::Refresh(_)) => faults.pop(),
            _ => None,
        });
        store.seal().resume("k", id, token).await.unwrap().verify().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_resumed_lease_counts_from_before_its_refresh_was_sent() {
    let (store, id, token) = new_left().await;
    let seal = store.seal();
    tokio::time::sleep(secs(20)).await;
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::DelayReply(millis(800))));
    let lease = seal.resume("k", id, token).without_refresh().await.unwrap();
    assert!(lease.remaining() <= millis(29_200), "{:?}", lease.remaining());
    tokio::time::sleep(lease.remaining()).await;
    assert!(!lease.is_valid());
    assert!(matches!(store.seal().acquire("k").await, Err(Error::Held { .. })), "the store keeps it for longer");

    let (id, token) = leave(seal.acquire("short").ttl(millis(500)).await.unwrap());
    let resumed = seal.resume("short", id, token).await;
    let has_none = matches!(resumed, Err(Error::Unavailable { .. } | Error::Lost { .. }));
    assert!(has_none, "the answer comes after the ttl: {resumed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_without_expiry_stays_one_and_is_refreshed() {
    let store = Faulty::new();
    let (id, token) = leave(store.seal().acquire("k").without_expiry().await.unwrap());
    let refused = store.seal().resume("k", id, token).ttl(secs(30)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    let seal = store.seal();
    let lease = seal.resume("k", id, token).await.unwrap();
    let sent = store.requests().len();
    tokio::time::sleep(secs(3600)).await;
    assert!(store.requests().len() > sent + 300 && lease.is_valid());
    assert_eq!(lease.remaining(), std::time::Duration::MAX);
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().holders[0].free_in, std::time::Duration::MAX);
    // Only the release of the shutdown ends it.
    seal.shutdown().await;
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_resume_with_another_ttl_extends_the_lease_and_never_shortens_it() {
    let (store, id, token) = new_left().await;
    let longer = store.seal().resume("k", id, token).ttl(secs(600)).await.unwrap();
    assert!(longer.remaining() > secs(590));
    longer.orphan();
    let shorter = store.seal().resume("k", id, token).ttl(secs(10)).without_refresh().await.unwrap();
    assert!(shorter.remaining() > secs(590), "{:?}", shorter.remaining());
    for ttl in [millis(1), secs(24 * 3600)] {
        let refused = store.seal().resume("k", LeaseId::random(), token).ttl(ttl).await;
        assert!(matches!(refused, Err(Error::Lost { .. })), "of a lease that is lost, the loss counts");
        let refused = store.seal().resume("k", id, token).ttl(ttl).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    shorter.orphan();
    let refreshed = store.seal().resume("k", id, token).ttl(secs(6)).await.unwrap();
    for _ in 0..300 {
        tokio::time::sleep(secs(3)).await;
        assert_eq!(refreshed.state(), LeaseState::Held);
    }
    refreshed.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_is_refreshed_as_it_says_with_the_ttl_and_the_grace_of_the_lease() {
    let (store, id, token) = new_left().await;
    let refused = store.seal().resume("k", id, token).refresh_every(secs(20)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let lease = store.seal().resume("k", id, token).refresh_every(secs(1)).await.unwrap();
    let sent = store.requests().len();
    tokio::time::sleep(secs(10)).await;
    assert!(store.requests().len() >= sent + 9);
    lease.orphan();
    let lease = store.seal().resume("k", id, token).without_refresh().await.unwrap();
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });

    let seal = store.seal();
    let (id, token) = leave(seal.acquire("graced").ttl(secs(30)).grace(secs(7)).await.unwrap());
    let lease = store.seal().resume("graced", id, token).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    lease.refresh().await.unwrap();
    assert_eq!(seal.inspect("graced").await.unwrap().unwrap().holders[0].free_in, secs(37));
}

#[tokio::test(start_paused = true)]
async fn a_resume_after_or_during_a_shutdown_leaves_the_lease() {
    let (store, id, token) = new_left().await;
    let seal = Arc::new(store.seal());
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::DelayReply(millis(900))));
    let resuming = tokio::spawn(seal.resume("k", id, token).into_future());
    tokio::time::sleep(millis(100)).await;
    seal.shutdown().await;
    assert!(matches!(resuming.await.unwrap(), Err(Error::Invalid { .. })));
    assert!(matches!(seal.resume("k", id, token).await, Err(Error::Invalid { .. })));
    store.heal();
    store.seal().resume("k", id, token).await.unwrap().verify().await.unwrap();
}
