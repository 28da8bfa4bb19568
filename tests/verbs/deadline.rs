//! A holder stops by its deadline, whatever the store does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    Deadline, Error, LeaseState, LossCause, Mongoseal, ReleaseOutcome,
    record::Request,
    store::{MemoryStore, Store},
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Holds a key while every request meets `fault`, and gives the time at which the work stopped.
async fn work_until_lost(fault: Fault) -> Duration {
    let store = Faulty::new();
    let clock = store.records.clock();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    store.always(fault);
    let working = Arc::new(());
    let at_work = Arc::clone(&working);
    let error = lease
        .run(async move {
            std::future::pending::<()>().await;
            drop(at_work);
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Expired, .. }), "{error}");
    assert_eq!(Arc::strong_count(&working), 1, "the work was dropped");
    assert!(!lease.is_valid() && lease.remaining().is_zero());
    assert!(matches!(lease.state(), LeaseState::Lost { .. }));
    clock.now().since_origin()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_loses_the_lease_by_the_deadline() {
    let lost = work_until_lost(Fault::Hang).await;
    assert!(lost > secs(29) && lost <= secs(30), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_fast_loses_the_lease_by_the_deadline() {
    let lost = work_until_lost(Fault::Fail).await;
    assert!(lost > secs(29) && lost <= secs(30), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_loses_the_lease_by_the_deadline() {
    let lost = work_until_lost(Fault::Refuse).await;
    assert!(lost > secs(29) && lost <= secs(30), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_at_risk_is_held_again_when_the_store_is_back() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("k").ttl(secs(30)).await.unwrap();
    store.set_reachable(false);
    tokio::time::sleep(secs(20)).await;
    assert_eq!(lease.state(), LeaseState::AtRisk);
    assert!(lease.is_valid());
    store.set_reachable(true);
    tokio::time::sleep(secs(6)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid());
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
async fn a_refresh_confirmed_after_the_deadline_does_not_revive_the_lease() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("k").ttl(secs(30)).refresh_every(secs(15)).await.unwrap();
    store.delay_replies(secs(16));
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });
    store.delay_replies(Duration::ZERO);
    tokio::time::sleep(secs(5)).await;
    assert!(matches!(lease.state(), LeaseState::Lost { .. }));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Expired });
}

#[tokio::test(start_paused = true)]
async fn an_acquire_gives_up_at_the_operation_timeout() {
    for fault in [Fault::Hang, Fault::Fail] {
        let store = Faulty::new();
        store.always(fault);
        let clock = store.records.clock();
        let error = store.seal().acquire("k").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(clock.now().since_origin() <= secs(10), "{fault:?} {:?}", clock.now());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_his_own_lost_reply() {
    let store = Faulty::new();
    let lost = AtomicBool::new(false);
    store.script(move |call| match call {
        Call::Apply(_) if !lost.swap(true, Ordering::Relaxed) => Some(Fault::LoseReply),
        _ => None,
    });
    let lease = store.seal().acquire("k").await.unwrap();
    assert!(store.records.clock().now().since_origin() < millis(100));
    let sent = store.requests();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0], sent[1], "the same request");
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_was_still_ours() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    let lost = AtomicBool::new(false);
    store.script(move |_| (!lost.swap(true, Ordering::Relaxed)).then_some(Fault::LoseReply));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn one_who_gave_up_leaves_nothing_held() {
    let store = Faulty::new();
    // The request arrives after its caller has gone.
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::Delay(secs(7))));
    let error = store.seal().acquire("k").ttl(secs(30)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }));
    store.heal();
    tokio::time::sleep(secs(38)).await;
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_one_who_gave_up_was_granted_after_all_is_taken_back_at_once() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::LoseReply));
    let error = store.seal().acquire("k").ttl(secs(3600)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }));
    store.heal();
    tokio::time::sleep(millis(1)).await;
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_a_stale_copy_ends_no_lease_and_no_release() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    store.always(Fault::Stale);
    tokio::time::sleep(secs(15)).await;
    assert_eq!(lease.state(), LeaseState::AtRisk, "not believed, and not ignored");
    assert!(matches!(lease.refresh().await, Err(Error::Unavailable { .. })));
    store.heal();
    lease.refresh().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);

    let stale = AtomicBool::new(true);
    store.script(move |_| stale.swap(false, Ordering::Relaxed).then_some(Fault::Stale));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    drop(store.seal().acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_lease_gone_after_its_deadline_does_not_claim_it() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().operation_timeout(secs(20)));
    let lease = seal.acquire("k").ttl(millis(800)).without_refresh().await.unwrap();
    // The first send never arrives; meanwhile the lease expires, its grace ends, and somebody else comes.
    let first = AtomicBool::new(true);
    store.script(move |call| match call {
        Call::Apply(Request::Release(_)) if first.swap(false, Ordering::Relaxed) => Some(Fault::Hang),
        _ => None,
    });
    let releasing = tokio::spawn(lease.release());
    tokio::time::sleep(secs(2)).await;
    let next = seal.acquire("k").await.unwrap();
    assert_eq!(releasing.await.unwrap().unwrap(), ReleaseOutcome::Unknown);
    next.verify().await.unwrap();
}

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
    let seal = Mongoseal::in_memory();
    for released in [false, true] {
        let key = format!("released/{released}");
        let lease = seal.acquire(key.as_str()).ttl(millis(50)).grace(secs(20)).without_refresh().await.unwrap();
        let states = lease.watch_state();
        std::thread::sleep(millis(60));
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
    let clock = store.records.clock();
    let asking: Vec<_> = (0..8).map(|key| tokio::spawn(seal.acquire(format!("k{key}")).into_future())).collect();
    for asked in asking {
        assert!(matches!(asked.await.unwrap(), Err(Error::Unavailable { .. })));
    }
    assert!(clock.now().since_origin() <= secs(1), "{:?}", clock.now());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_time_whatever_is_under_way() {
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let _held = seal.acquire("held").await.unwrap();
    store.set_reachable(false);
    let clock = store.clock();
    let asking = tokio::spawn(seal.acquire("asked").into_future());
    tokio::time::sleep(secs(1)).await;
    let began = clock.now();
    seal.shutdown().await;
    let took = clock.now().since(began);
    assert!(took <= millis(10_100), "{took:?}");
    let error = asking.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_took_is_lost_with_the_next_refresh_and_says_to_whom() {
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let other = {
        store.remove(lease.key());
        seal.acquire("k").await.unwrap()
    };
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::TakenOver { token: other.token() } });
    assert!(store.clock().now().since_origin() <= secs(11));
    assert!(other.is_valid());
    drop(lease);
    tokio::time::sleep(secs(60)).await;
    assert!(other.is_valid(), "the end of the old lease did not touch the new one");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_record_was_deleted_is_lost_and_verify_says_so_first() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("k").await.unwrap();
    lease.verify().await.unwrap();
    store.remove(lease.key());
    assert!(lease.is_valid(), "local and free is not proof");
    assert!(matches!(lease.verify().await, Err(Error::Lost { cause: LossCause::Removed, .. })));
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_revoked_lease_is_lost_and_says_by_whom_and_why() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    let revoke = mongoseal::record::Revoke { by: "ops".into(), reason: "drill".into(), upto: lease.token() };
    store
        .records
        .apply(lease.key(), Request::Revoke(revoke), Deadline::after(store.records.clock(), secs(1)))
        .await
        .unwrap();
    let cause = LossCause::Revoked { by: "ops".into(), reason: "drill".into() };
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause });
}

#[tokio::test(start_paused = true)]
async fn grace_keeps_others_out_after_a_holder_was_lost() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().grace(secs(15)));
    let lease = seal.acquire("k").ttl(secs(30)).without_refresh().await.unwrap();
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });
    drop(lease);
    tokio::time::sleep(secs(10)).await;
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    tokio::time::sleep(secs(6)).await;
    drop(seal.acquire("k").await.unwrap());
}

#[tokio::test]
async fn work_that_blocks_past_the_deadline_is_not_called_done() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").ttl(millis(50)).await.unwrap();
    let error = lease.run(async { std::thread::sleep(millis(80)) }).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_refresh_and_a_release_that_are_lost_are_sent_again_after_little_more_than_a_second() {
    let store = Faulty::new();
    let loses_one = || {
        let mut asked = 0;
        store.script(move |call| {
            asked += u32::from(matches!(call, Call::Apply(_)));
            (asked == 1).then_some(Fault::Hang)
        });
    };
    let lease = store.seal().acquire("k").without_refresh().await.unwrap();
    let began = tokio::time::Instant::now();
    loses_one();
    lease.refresh().await.unwrap();
    assert!(began.elapsed() < millis(1_100), "{:?}", began.elapsed());
    loses_one();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(began.elapsed() < millis(2_200), "{:?}", began.elapsed());
}
