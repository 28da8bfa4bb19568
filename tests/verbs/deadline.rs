//! A holder stops by its deadline, whatever the store does.

use std::{sync::Arc, time::Duration};

use mongoseal::{
    Error, LeaseState, LossCause, Mongoseal, ReleaseOutcome, record::Request, store::MemoryStore, testing::ManualClock,
};
use tokio::time::Instant;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_fails_or_refuses_loses_the_lease_by_the_deadline_and_the_work_is_dropped() {
    for fault in [Fault::Hang, Fault::Fail, Fault::Refuse] {
        let (store, began) = (Faulty::new(), Instant::now());
        let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
        store.always(fault);
        let working = Arc::new(());
        let at_work = Arc::clone(&working);
        let work = async move {
            std::future::pending::<()>().await;
            drop(at_work);
        };
        let error = lease.run(work).await.unwrap_err();
        assert!(matches!(error, Error::Lost { cause: LossCause::Expired, .. }), "{error}");
        let lost = began.elapsed();
        assert!(lost > secs(29) && lost <= secs(30), "{fault:?}: {lost:?}");
        assert_eq!(Arc::strong_count(&working), 1, "{fault:?}");
        assert!(!lease.is_valid() && lease.remaining().is_zero());
        assert!(matches!(lease.state(), LeaseState::Lost { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_counted_from_before_the_send() {
    let store = Faulty::new();
    store.always(Fault::Delay(secs(4)));
    let lease = store.seal().acquire("k").ttl(secs(30)).without_refresh().await.unwrap();
    assert!(lease.remaining() < secs(26), "{:?}", lease.remaining());
    lease.refresh().await.unwrap();
    assert!(lease.remaining() < secs(26), "{:?}", lease.remaining());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_deadline_of_what_it_grants_is_thrown_away() {
    let store = MemoryStore::default();
    store.delay_replies(secs(2));
    let seal = Mongoseal::builder().operation_timeout(secs(5)).on_store(Arc::new(store.clone())).unwrap();
    let error = seal.acquire("k").ttl(secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("choose a longer ttl"), "{error}");
    store.delay_replies(Duration::ZERO);
    tokio::time::sleep(secs(10)).await;
    drop(Mongoseal::in_memory_on(&store).acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_his_own_lost_reply_and_a_release_was_still_ours() {
    let store = Faulty::new();
    let began = Instant::now();
    store.first(1, |call| matches!(call, Call::Apply(_)), Fault::LoseReply);
    let lease = store.seal().acquire("k").await.unwrap();
    assert!(began.elapsed() < millis(100));
    let sent = store.requests();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0], sent[1], "the same request");
    store.first(1, |_| true, Fault::LoseReply);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    // If the key is shared, a larger token of another lease takes nothing from this one.
    let seal = store.seal();
    let sharer = seal.acquire("shared").shared().await.unwrap();
    let _other = seal.acquire("shared").shared().await.unwrap();
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::LoseReply);
    assert_eq!(sharer.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn what_one_who_gave_up_was_granted_after_all_is_taken_back_at_once_and_what_arrives_later_expires() {
    for (fault, ttl, ends_after) in
        [(Fault::LoseReply, secs(3_600), millis(1)), (Fault::Delay(secs(7)), secs(30), secs(38))]
    {
        let store = Faulty::new();
        store.script(move |call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(fault));
        let error = store.seal().acquire("k").ttl(ttl).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }));
        store.heal();
        tokio::time::sleep(ends_after).await;
        drop(store.seal().acquire("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_a_stale_copy_ends_no_lease_and_no_release() {
    let (store, lease) = Faulty::held().await;
    store.always(Fault::Stale);
    tokio::time::sleep(secs(15)).await;
    assert_eq!(lease.state(), LeaseState::AtRisk, "not believed, and not ignored");
    assert!(matches!(lease.refresh().await, Err(Error::Unavailable { .. })));
    store.heal();
    lease.refresh().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);

    store.first(1, |_| true, Fault::Stale);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_lease_gone_after_its_deadline_does_not_claim_it() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().operation_timeout(secs(20)));
    let lease = seal.acquire("k").ttl(millis(800)).without_refresh().await.unwrap();
    // The first send never arrives; meanwhile the lease expires, its grace ends, and somebody else comes.
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::Hang);
    let releasing = tokio::spawn(lease.release());
    tokio::time::sleep(secs(2)).await;
    let next = seal.acquire("k").await.unwrap();
    assert_eq!(releasing.await.unwrap().unwrap(), ReleaseOutcome::Unknown);
    next.verify().await.unwrap();
}

/// The refresh is confirmed while the thread is blocked past the deadline.
#[tokio::test]
async fn a_late_answer_does_not_revive_a_lease_whose_thread_was_blocked() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(2)).without_refresh().await.unwrap();
    store.always(Fault::DelayReply(millis(500)));
    let mut refreshing = Box::pin(lease.refresh());
    // Until the request is under way; then the only thread is blocked past deadline and answer.
    while store.requests().len() < 2 {
        tokio::select! {
            biased;
            _ = &mut refreshing => panic!("the answer is delayed"),
            () = tokio::task::yield_now() => {}
        }
    }
    std::thread::sleep(millis(2_100));
    assert!(!lease.is_valid());
    assert!(matches!(refreshing.await, Err(Error::Lost { .. })));
    assert!(!lease.is_valid());
}

/// The thread of the runtime is blocked past the deadline, so that the lease ends here before its task sees
/// that it is over: such an end is none by its holder's will, and the grace is there for it.
#[tokio::test]
async fn a_lease_that_ends_after_its_deadline_is_lost_and_its_grace_kept() {
    let clock = ManualClock::new();
    let seal = Mongoseal::in_memory_on(&MemoryStore::on_clock(clock));
    for released in [false, true] {
        let key = format!("released/{released}");
        let lease = seal.acquire(key.as_str()).grace(secs(20)).without_refresh().await.unwrap();
        let states = lease.watch_state();
        clock.advance(secs(31));
        if released {
            assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Expired });
        } else {
            drop(lease);
        }
        assert_eq!(states.get(), LeaseState::Lost { cause: LossCause::Expired }, "{key}");
        tokio::time::sleep(millis(50)).await;
        let next = seal.acquire(key.as_str()).await;
        assert!(matches!(next, Err(Error::Held { .. })), "{key}: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_come_together_do_not_wait_for_one_another() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Prepare).then_some(Fault::Hang));
    let seal = store.build(Mongoseal::builder().operation_timeout(secs(1)));
    let began = Instant::now();
    let asking: Vec<_> = (0..8).map(|key| tokio::spawn(seal.acquire(format!("k{key}")).into_future())).collect();
    for asked in asking {
        assert!(matches!(asked.await.unwrap(), Err(Error::Unavailable { .. })));
    }
    assert!(began.elapsed() <= secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn work_that_blocks_past_the_deadline_is_not_called_done() {
    let clock = ManualClock::new();
    let lease = Mongoseal::in_memory_on(&MemoryStore::on_clock(clock)).acquire("k").await.unwrap();
    let error = lease.run(async { clock.advance(secs(31)) }).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(!lease.is_valid());
}

/// A paused primary replies only after another one is elected, so an attempt must not wait for it for long.
#[tokio::test(start_paused = true)]
async fn a_refresh_and_a_release_that_are_lost_are_sent_again_after_little_more_than_a_second() {
    let store = Faulty::new();
    let loses_one = || store.first(1, |call| matches!(call, Call::Apply(_)), Fault::Hang);
    let lease = store.seal().acquire("k").without_refresh().await.unwrap();
    let began = Instant::now();
    loses_one();
    lease.refresh().await.unwrap();
    assert!(began.elapsed() < millis(1_100), "{:?}", began.elapsed());
    loses_one();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(began.elapsed() < millis(2_200), "{:?}", began.elapsed());
}
