//! The minimum hold, the maximum hold, and the progress of a holder.

use std::time::Duration;

use mongoseal::{
    Error, Lease, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Result, Tick, action::Acquire,
    inspect::EventKind, record::Request, store::MemoryStore,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::{next, nothing},
};

fn waiting(acquire: Acquire) -> JoinHandle<Result<Lease>> {
    tokio::spawn(acquire.wait(secs(3_600)).into_future())
}

/// Waits until a lease that was granted at `began` is lost, and returns when that was and why.
async fn lost(lease: &Lease, began: Instant) -> (Duration, LossCause) {
    let LeaseState::Lost { cause } = lease.cancelled().await else { panic!("its holder has not ended it") };
    (began.elapsed(), cause)
}

fn is_near(time: Duration, expected: Duration) -> bool {
    time <= expected && time + millis(20) >= expected.mul_f64(0.995)
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_before_the_end_of_its_minimum_hold_keeps_its_key_until_then_and_is_not_resumed() {
    let seal = Mongoseal::in_memory();
    let began = Instant::now();
    let lease = seal.acquire("k").min_hold(secs(100)).await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    tokio::time::sleep(secs(1)).await;
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    let error = seal.acquire("k").await.unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Held { is_released: true, free_in, .. } if free_in <= secs(99)), "{error:?}");
    assert!(said.contains("released") && said.contains("minimum hold") && !said.contains("refreshed"), "{said}");
    assert!(matches!(seal.resume("k", id, token).await, Err(Error::Lost { .. })));
    let none = seal.resume("k", LeaseId::NONE, token).await.unwrap_err();
    assert!(matches!(none, Error::Invalid { .. }) && none.to_string().contains("names no lease"), "{none}");
    let _next = seal.acquire("k").wait(secs(200)).await.unwrap();
    assert!(is_near(secs(100), began.elapsed()), "{:?}", began.elapsed());
}

/// Polls `call` once, waits until its requests are answered, and drops it without another poll.
async fn drop_after_the_answer(call: impl IntoFuture) {
    let mut call = Box::pin(call.into_future());
    assert!(tokio::time::timeout(Duration::ZERO, &mut call).await.is_err());
    tokio::time::sleep(secs(5)).await;
}

/// A lease on its way to its caller is taken back. A release would keep the key for the minimum hold. A shutdown counts
/// as a drop.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_it_returns_its_lease_leaves_no_minimum_hold() {
    let (store, seal) = Faulty::open();
    let are_free = async |keys: &[&str], case: &str| {
        let acquired = store.seal().acquire_all(keys.iter().copied()).wait(secs(60)).await;
        acquired.unwrap_or_else(|error| panic!("{case}: {error}")).release().await.unwrap();
    };
    let acquire = || seal.acquire("k").min_hold(secs(3_600));
    let all = || seal.acquire_all(["a", "k"]).min_hold(secs(3_600));

    drop_after_the_answer(acquire()).await;
    are_free(&["k"], "an acquire whose lease was on its way").await;
    drop_after_the_answer(all()).await;
    are_free(&["a", "k"], "an acquire of two keys whose leases were on their way").await;

    // While an answer is under way.
    let slow = |is_slow: fn(&Call<'_>) -> bool| {
        store.script(move |call| is_slow(&call).then_some(Fault::DelayReply(secs(2))));
    };
    slow(|call| matches!(call, Call::Apply(Request::Acquire(_))));
    assert!(timeout(secs(1), acquire().into_future()).await.is_err());
    store.heal();
    are_free(&["k"], "an acquire before its answer").await;
    slow(|call| matches!(call, Call::Apply(Request::Acquire(_))));
    assert!(timeout(secs(3), all().into_future()).await.is_err());
    store.heal();
    are_free(&["a", "k"], "an acquire of two keys before its last answer").await;
    slow(|call| matches!(call, Call::Read));
    let once = seal.once("k", Tick::number(1)).min_hold(secs(3_600));
    assert!(timeout(secs(3), once.begin()).await.is_err());
    store.heal();
    are_free(&["k"], "a tick before the second read").await;
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().holders.len(), 0);

    // A shutdown while it waits for its last key.
    let holder = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let (ended, ()) = tokio::join!(all().wait(secs(600)).into_future(), async {
        tokio::time::sleep(secs(5)).await;
        seal.shutdown().await;
    });
    assert!(ended.is_err());
    are_free(&["a"], "the first key of two, after a shutdown").await;
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_waiter_asks_at_the_end_of_a_minimum_hold_once() {
    let store = Faulty::new();
    let _lease = store.seal().acquire("k").ttl(secs(600)).min_hold(secs(20)).await.unwrap();
    let _waiter = waiting(store.seal().acquire("k").ttl(secs(600)));
    let asked = async |until: Instant| {
        tokio::time::sleep_until(until).await;
        store.requests().iter().filter(|request| matches!(request, Request::Acquire(_))).count()
    };
    let began = Instant::now();
    let before = asked(began + secs(19)).await;
    // Its holder may have released it, and the notification may be lost.
    assert_eq!(asked(began + secs(100)).await - before, 1);
}

/// Callers of different handles wait for a key with a minimum hold of a second, and work for 100 ms.
/// The waiter that was first when a hold began is not the only one that must know its end.
#[tokio::test(start_paused = true)]
async fn each_waiter_in_turn_is_granted_the_key_when_a_minimum_hold_ends() {
    for (callers, at_once) in [(6_u32, 1), (18, 5)] {
        let store = MemoryStore::default();
        let began = Instant::now();
        let mut turns = Vec::new();
        for turn in 0..callers {
            let seal = Mongoseal::in_memory_on(&store);
            turns.push(tokio::spawn(async move {
                let acquire = seal.acquire("k").shared_up_to(at_once).min_hold(secs(1)).wait(secs(3_600));
                let lease = acquire.await.unwrap();
                let (granted, due) = (began.elapsed(), secs(1) * (turn / at_once));
                assert!(granted >= due && granted < due + millis(50) * (turn / at_once + 1), "{turn}: {granted:?}");
                tokio::time::sleep(millis(100)).await;
                lease.release().await.unwrap();
            }));
            tokio::time::sleep(millis(1)).await;
        }
        for turn in turns {
            turn.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_is_granted_the_key_when_a_minimum_hold_ends_if_the_first_ones_left_meanwhile() {
    let store = Faulty::new();
    let began = Instant::now();
    let lease = store.seal().acquire("k").min_hold(secs(2)).await.unwrap();
    let mut waiters = Vec::new();
    for at_most in [secs(3_600), secs(1), secs(3_600)] {
        waiters.push(tokio::spawn(store.seal().acquire("k").wait(at_most).into_future()));
        tokio::time::sleep(millis(1)).await;
    }
    tokio::time::sleep(millis(100)).await;
    lease.release().await.unwrap();
    tokio::time::sleep(millis(100)).await;
    waiters[0].abort();
    let _granted = waiters.pop().unwrap().await.unwrap().unwrap();
    assert!(matches!(waiters.pop().unwrap().await.unwrap(), Err(Error::Held { .. })), "it has waited for a second");
    assert!(began.elapsed() >= secs(2) && began.elapsed() < millis(2_050), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_minimum_hold_also_counts_for_a_drop_and_a_shutdown() {
    let (store, seal) = Faulty::open();
    let take = async |key: &'static str| seal.acquire(key).min_hold(secs(50)).await.unwrap();
    drop(take("dropped").await);
    let _shut_down = take("shut down").await;
    seal.shutdown().await;
    for key in ["dropped", "shut down"] {
        let refused = store.seal().acquire(key).await.unwrap_err();
        assert!(matches!(refused, Error::Held { is_released: true, .. }), "{key}: {refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_the_group_ends_minimum_holds_and_leaves_out_leases_that_were_released() {
    let seal = Mongoseal::in_memory();
    let take = async |key: &'static str| seal.acquire(key).min_hold(secs(50)).group("g").await.unwrap();
    take("released").await.release().await.unwrap();
    let _held = take("held").await;
    assert_eq!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.len(), 1);
    let released = seal.release_group("g").await.unwrap();
    assert!(released.iter().map(|lease| lease.key.as_str()).eq(["held"]));
    drop(seal.acquire("held").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_watch_reports_the_release_when_it_happens_and_the_end_of_the_minimum_hold_is_no_event() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").min_hold(secs(50)).await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert_eq!(next(&mut events).await.token, lease.token());
    tokio::time::sleep(secs(1)).await;
    lease.release().await.unwrap();
    assert_eq!(next(&mut events).await.kind, EventKind::Released);
    let seen = seal.inspect("k").await.unwrap().unwrap();
    assert_eq!(seen.holders[0].released_at, Some(seen.last_seen));
    assert_eq!(seen.holders[0].held_until.unwrap().since(seen.holders[0].since), secs(50));
    nothing(&mut events, 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_at_the_end_of_its_maximum_hold_however_often_it_is_refreshed_unless_it_expires_before() {
    let seal = Mongoseal::in_memory();
    let began = Instant::now();
    let lease = seal.acquire("k").ttl(secs(30)).max_hold(secs(100)).await.unwrap();
    let next = waiting(seal.acquire("k"));
    tokio::time::sleep(secs(80)).await;
    lease.refresh().await.unwrap();
    lease.extend(secs(600)).await.unwrap();
    assert!(lease.remaining() <= secs(20));
    let (after, cause) = lost(&lease, began).await;
    assert_eq!(cause, LossCause::HeldTooLong);
    assert!(is_near(after, secs(100)), "{after:?}");
    let error = lease.verify().await.unwrap_err();
    assert!(error.to_string().contains("the maximum time"), "{error}");
    let next = next.await.unwrap().unwrap();
    assert!(began.elapsed() >= secs(100) + GRACE && began.elapsed() < secs(101), "{:?}", began.elapsed());
    assert!(next.token() > lease.token());
    let expires = seal.acquire("l").ttl(secs(10)).max_hold(secs(15)).without_refresh().await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(expires.state(), LeaseState::Lost { cause: LossCause::Expired });
}

#[tokio::test(start_paused = true)]
async fn the_maximum_hold_of_a_resent_acquire_counts_from_its_first_grant() {
    let (store, seal) = Faulty::open();
    let began = Instant::now();
    // The first reply is lost after the attempt's time, so the second answer comes seconds later.
    store.first(1, |call| matches!(call, Call::Apply(_)), Fault::DelayReply(secs(60)));
    let lease = seal.acquire("k").ttl(secs(60)).max_hold(secs(20)).await.unwrap();
    assert!(began.elapsed() >= secs(4), "the acquire was sent twice");
    let (after, cause) = lost(&lease, began).await;
    assert_eq!(cause, LossCause::HeldTooLong);
    assert!(after <= secs(20) && after >= secs(14), "{after:?}: from the last request before the grant on");
    drop(seal.acquire("k").wait(secs(1)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_maximum_hold_of_a_waiter_counts_from_its_grant_and_goes_on_in_another_process() {
    for is_transferred in [false, true] {
        let (store, seal) = Faulty::open();
        let first = seal.acquire("k").await.unwrap();
        let waiter = waiting(seal.acquire("k").max_hold(secs(40)));
        tokio::time::sleep(secs(100)).await;
        drop(first);
        let granted = Instant::now();
        let lease = waiter.await.unwrap().unwrap();
        tokio::time::sleep(secs(25)).await;
        assert!(lease.is_valid());
        let (mut id, mut token) = (lease.id(), lease.token());
        if is_transferred {
            id = LeaseId::random();
            token = lease.transfer(id).await.unwrap();
        } else {
            lease.orphan();
        }
        let again = store.seal().resume("k", id, token).await.unwrap();
        let (held, cause) = lost(&again, granted).await;
        assert_eq!(cause, LossCause::HeldTooLong);
        assert!(held <= secs(40) && held >= secs(28), "{held:?}: from the last request before the grant on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_reports_no_progress_loses_the_lease_and_the_store_keeps_the_key_for_the_ttl() {
    let seal = Mongoseal::in_memory();
    let began = Instant::now();
    let lease = seal.acquire("k").ttl(secs(30)).stalled_after(secs(50)).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(secs(40)).await;
        lease.progress();
    }
    let (after, cause) = lost(&lease, began).await;
    assert_eq!((after, cause), (secs(250), LossCause::Stalled));
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })), "the work may still write");
    let error = lease.refresh().await.unwrap_err();
    assert!(error.to_string().contains("no progress"), "{error}");
    drop(seal.acquire("k").wait(secs(60)).await.unwrap());
    assert!(began.elapsed() <= secs(250) + secs(30) + GRACE + millis(10), "{:?}", began.elapsed());
    // Without the option there is no limit.
    let lease = seal.acquire("other").await.unwrap();
    lease.progress();
    tokio::time::sleep(secs(3_600)).await;
    assert!(lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_set_that_reports_no_progress_is_lost_and_one_that_does_is_kept() {
    let seal = Mongoseal::in_memory();
    let set = seal.acquire_all(["a", "b"]).stalled_after(secs(10)).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(secs(8)).await;
        set.progress();
    }
    assert!(set.is_valid());
    let began = Instant::now();
    let (_, end) = set.cancelled().await;
    assert_eq!(end, LeaseState::Lost { cause: LossCause::Stalled });
    assert!(is_near(began.elapsed(), secs(10)), "{:?}", began.elapsed());
}
