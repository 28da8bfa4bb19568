//! Leases that a process takes up by their key, lease id and token.

use std::sync::Arc;

use mongoseal::{
    Deadline, EndReason, Error, FencingToken, Lease, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Result,
    Sharing,
    record::{Outcome, Request},
    store::Store,
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
async fn a_resumed_lease_is_refreshed_and_its_release_frees_the_key() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    tokio::time::sleep(secs(20)).await;
    let lease = store.seal().resume("k", id, token).await.unwrap();
    assert_eq!((lease.key().as_str(), lease.id(), lease.token()), ("k", id, token));
    assert!(lease.remaining() > secs(29) && lease.remaining() < secs(30), "{:?}", lease.remaining());
    tokio::time::sleep(secs(300)).await;
    lease.verify().await.unwrap();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(store.seal().acquire("k").await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_resume_sends_refreshes_only_also_of_a_lease_that_is_lost() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let sent = store.requests().len();
    leave(store.seal().resume("k", id, token).await.unwrap());
    tokio::time::sleep(secs(31)).await;
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::Expired);
    assert!(matches!(store.requests()[sent..], [Request::Refresh(_)]), "{:?}", &store.requests()[sent..]);
    let record = store.seal().inspect("k").await.unwrap().unwrap();
    assert!(record.holders.iter().all(mongoseal::HolderInfo::is_expired) && record.queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_drop_of_a_resumed_lease_releases_it() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    drop(store.seal().resume("k", id, token).await.unwrap());
    tokio::time::sleep(millis(1)).await;
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_a_resumed_lease_and_not_an_orphan() {
    let store = Faulty::new();
    let before = store.seal();
    let lease = before.acquire("k").await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    // The task of the lease finds the end and the shutdown at once.
    lease.orphan();
    before.shutdown().await;
    let after = store.seal();
    let lease = after.resume("k", id, token).await.unwrap();
    after.shutdown().await;
    assert_eq!(lease.state(), LeaseState::Ended { reason: EndReason::ShutDown });
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_revoked_is_lost_with_the_name_and_the_reason() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    store.seal().revoke("k").by("olga").reason("stuck").await.unwrap();
    let cause = LossCause::Revoked { by: "olga".into(), reason: "stuck".into() };
    assert_lost(store.seal().resume("k", id, token).await, &cause);
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_key_another_lease_holds_is_taken_over() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    tokio::time::sleep(secs(30) + GRACE).await;
    let next = store.seal().acquire("k").await.unwrap();
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::TakenOver { token: next.token() });
    next.verify().await.unwrap();
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
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    tokio::time::sleep(secs(30) + GRACE).await;
    let later = deliver_again(&store).await;
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::TakenOver { token: later });
    tokio::time::sleep(secs(30) + GRACE).await;
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_whose_acquire_was_delivered_again_is_lost_with_its_refresh() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    store.records.remove(lease.key());
    let later = deliver_again(&store).await;
    assert_lost(lease.refresh().await, &LossCause::TakenOver { token: later });
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_a_wrong_id_and_a_missing_record_are_refused() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let larger = FencingToken::new(token.get() + 1).unwrap();
    assert_lost(store.seal().resume("k", id, larger).await, &LossCause::Removed);
    assert_lost(store.seal().resume("k", LeaseId::random(), token).await, &LossCause::Expired);
    assert_lost(store.seal().resume("other", id, token).await, &LossCause::Removed);
    assert!(matches!(store.seal().resume("", id, token).await, Err(Error::Invalid { .. })));
    store.seal().resume("k", id, token).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_sharer_is_not_taken_over_by_the_sharers_after_it() {
    let store = Faulty::new();
    let seal = store.seal();
    let (id, token) = leave(seal.acquire("k").shared().ttl(secs(10)).await.unwrap());
    let later = seal.acquire("k").shared().await.unwrap();
    tokio::time::sleep(secs(11)).await;
    assert_lost(store.seal().resume("k", id, token).await, &LossCause::Expired);
    later.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_id_in_use_by_this_handle_is_refused() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").await.unwrap();
    let error = seal.resume("k", lease.id(), lease.token()).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { message, .. } if message.contains("is in use")), "{error}");
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_id_is_free_again_after_a_resume_that_failed() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let seal = store.seal();
    store.always(Fault::Fail);
    let error = seal.resume("k", id, token).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    store.heal();
    seal.resume("k", id, token).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_dropped_half_way_leaves_the_lease_held_and_its_id_free() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let seal = store.seal();
    let fault_of_refresh =
        |fault| move |call: Call<'_>| matches!(call, Call::Apply(Request::Refresh(_))).then_some(fault);
    for fault in [Fault::Delay(secs(2)), Fault::DelayReply(secs(2))] {
        for at_read in [true, false] {
            if at_read {
                store.script(move |call| matches!(call, Call::Read).then_some(fault));
            } else {
                store.script(fault_of_refresh(fault));
            }
            let dropped = tokio::time::timeout(millis(500), seal.resume("k", id, token).into_future());
            assert!(dropped.await.is_err());
            tokio::time::sleep(secs(3)).await;
        }
    }
    store.heal();
    assert!(!store.requests().iter().any(|request| matches!(request, Request::Release(_) | Request::Leave(_))));
    seal.resume("k", id, token).await.unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_sends_again_if_a_reply_is_lost() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let mut faults = vec![Fault::LoseReply, Fault::Hang];
    store.script(move |call| match call {
        Call::Apply(Request::Refresh(_)) => faults.pop(),
        _ => None,
    });
    let lease = store.seal().resume("k", id, token).await.unwrap();
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_a_stale_copy_ends_no_lease() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let mut faults = vec![Fault::Stale];
    store.script(move |call| match call {
        Call::Apply(Request::Refresh(_)) => faults.pop(),
        _ => None,
    });
    store.seal().resume("k", id, token).await.unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_resumed_lease_counts_from_before_its_refresh_was_sent() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    tokio::time::sleep(secs(20)).await;
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::DelayReply(millis(800))));
    let lease = store.seal().resume("k", id, token).without_refresh().await.unwrap();
    assert!(lease.remaining() <= millis(29_200), "{:?}", lease.remaining());
    tokio::time::sleep(lease.remaining()).await;
    assert!(!lease.is_valid());
    assert!(matches!(store.seal().acquire("k").await, Err(Error::Held { .. })), "the store keeps it for longer");
}

#[tokio::test(start_paused = true)]
async fn a_resume_whose_answer_comes_after_the_ttl_is_no_lease() {
    let store = Faulty::new();
    let (id, token) = leave(store.seal().acquire("k").ttl(millis(500)).await.unwrap());
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::DelayReply(millis(800))));
    let resumed = store.seal().resume("k", id, token).await;
    assert!(matches!(resumed, Err(Error::Unavailable { .. } | Error::Lost { .. })), "{resumed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_keeps_owner_group_metadata_grace_and_limit() {
    let store = Faulty::new();
    let first = store.build(Mongoseal::builder().owner("first"));
    let acquire = first.acquire("k").ttl(secs(30)).grace(secs(7)).shared_up_to(3).group("g").metadata("build", "1.4.2");
    let (id, token) = leave(acquire.await.unwrap());
    let before = first.inspect("k").await.unwrap().unwrap().holders.remove(0);

    let second = store.build(Mongoseal::builder().owner("second"));
    let lease = second.resume("k", id, token).await.unwrap();
    assert_eq!(lease.owner().as_str(), "first");
    tokio::time::sleep(secs(60)).await;
    lease.refresh().await.unwrap();
    let after = second.inspect("k").await.unwrap().unwrap().holders.remove(0);
    assert_eq!((&after.owner, after.sharing, &after.group), (&before.owner, Sharing::UpTo(3), &before.group));
    assert_eq!((&after.metadata, after.token), (&before.metadata, token));
    // The ttl of 30 seconds and the grace of 7.
    assert_eq!(after.remaining, Some(secs(37)));
    let released = second.release_group("g").await.unwrap();
    assert_eq!(released.len(), 1);
    assert!(matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { .. } }));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_without_expiry_stays_one_and_is_refreshed() {
    let store = Faulty::new();
    let (id, token) = leave(store.seal().acquire("k").without_expiry().await.unwrap());
    let refused = store.seal().resume("k", id, token).ttl(secs(30)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    let lease = store.seal().resume("k", id, token).await.unwrap();
    assert_eq!(lease.remaining(), std::time::Duration::MAX);
    let sent = store.requests().len();
    tokio::time::sleep(secs(3600)).await;
    assert!(store.requests().len() > sent + 300 && lease.is_valid());
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().holders[0].remaining, None);
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_with_another_ttl_extends_the_lease_and_never_shortens_it() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let longer = store.seal().resume("k", id, token).ttl(secs(600)).await.unwrap();
    assert!(longer.remaining() > secs(590));
    longer.orphan();
    let shorter = store.seal().resume("k", id, token).ttl(secs(10)).without_refresh().await.unwrap();
    assert!(shorter.remaining() > secs(590), "{:?}", shorter.remaining());
    for bad in [millis(1), secs(24 * 3600)] {
        let refused = store.seal().resume("k", LeaseId::random(), token).ttl(bad).await;
        assert!(matches!(refused, Err(Error::Lost { .. })), "of a lease that is lost, the loss counts");
        let refused = store.seal().resume("k", id, token).ttl(bad).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    shorter.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_without_refresh_ends_with_the_ttl_and_a_bad_interval_is_refused() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let refused = store.seal().resume("k", id, token).refresh_every(secs(20)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let lease = store.seal().resume("k", id, token).refresh_every(secs(1)).await.unwrap();
    let sent = store.requests().len();
    tokio::time::sleep(secs(10)).await;
    assert!(store.requests().len() >= sent + 9);
    lease.orphan();
    let lease = store.seal().resume("k", id, token).without_refresh().await.unwrap();
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_hears_of_its_revocation_at_once() {
    let store = Faulty::new();
    let seal = store.seal();
    let (id, token) = leave(seal.acquire("k").ttl(secs(60)).await.unwrap());
    seal.shutdown().await;
    let lease = store.seal().resume("k", id, token).await.unwrap();
    // Also after a refresh, which a batch may send.
    for held in [secs(3), secs(40)] {
        tokio::time::sleep(held).await;
        assert!(lease.is_valid());
    }
    let began = tokio::time::Instant::now();
    store.seal().revoke("k").by("olga").await.unwrap();
    assert!(
        matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == "olga")
    );
    let took = began.elapsed();
    assert!(took < millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_refresh_of_an_earlier_resume_delays_the_notice_of_a_revocation_to_the_next_refresh() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    leave(store.seal().resume("k", id, token).await.unwrap());
    let earlier = store.requests().pop().unwrap();
    let seal = store.seal();
    let lease = seal.resume("k", id, token).await.unwrap();
    let deadline = Deadline::after(store.clock(), secs(1));
    store.apply(lease.key(), earlier, deadline).await.unwrap();
    tokio::time::sleep(secs(2)).await;
    store.seal().revoke("k").await.unwrap();
    tokio::time::sleep(millis(100)).await;
    assert!(lease.is_valid());
    tokio::time::sleep(secs(8)).await;
    assert!(!lease.is_valid(), "it is lost at a third of its ttl of 30 s");
}

#[tokio::test(start_paused = true)]
async fn a_resume_after_or_during_a_shutdown_leaves_the_lease() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
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

#[tokio::test(start_paused = true)]
async fn of_two_resumes_at_once_by_one_handle_one_is_refused() {
    let store = Faulty::new();
    let (id, token) = left(&store).await;
    let seal = store.seal();
    let resume = || seal.resume("k", id, token).into_future();
    let (one, other) = tokio::join!(resume(), resume());
    assert!(matches!((&one, &other), (Ok(_), Err(Error::Invalid { .. })) | (Err(Error::Invalid { .. }), Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_resumed_with_a_shorter_ttl_is_refreshed_and_kept() {
    let store = Faulty::new();
    let (id, token) = leave(store.seal().acquire("k").ttl(secs(60)).await.unwrap());
    let lease = store.seal().resume("k", id, token).ttl(secs(6)).await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(secs(3)).await;
        assert_eq!(lease.state(), LeaseState::Held);
    }
    lease.verify().await.unwrap();
}
