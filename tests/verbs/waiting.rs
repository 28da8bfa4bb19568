//! Waiting for a key: in order, and leaving nothing behind.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{BeginOutcome, Error, Lease, Mongoseal, Result, Skipped, Tick, record::Request, store::MemoryStore};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::count,
};

fn waiter(seal: &Mongoseal, at_most: Duration) -> JoinHandle<Result<Lease>> {
    tokio::spawn(seal.acquire("k").wait(at_most).into_future())
}

/// How many wait.
async fn queued(store: &Faulty) -> usize {
    store.seal().inspect("k").await.unwrap().map_or(0, |seen| seen.queue.len())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_handed_over_at_once_with_one_request_of_each_side_and_counts_from_before_it_was_asked_for() {
    let (store, holder) = Faulty::held().await;
    let seal = store.seal();
    // The first waiter opens the listener; the second finds it there, and can wait for ever.
    let opening = waiter(&seal, secs(3600));
    tokio::time::sleep(secs(1)).await;
    opening.abort();
    tokio::time::sleep(millis(1)).await;
    let waiting = waiter(&seal, Duration::MAX);
    tokio::time::sleep(millis(1)).await;
    let before = store.requests().len();
    tokio::time::sleep(secs(8)).await;
    assert_eq!(store.requests().len(), before, "nobody polls");
    let released = Instant::now();
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(released.elapsed(), Duration::ZERO);
    assert_eq!(store.requests().len() - before, 1, "the release, and nothing to confirm it");
    assert!(lease.remaining() < secs(22), "{:?}", lease.remaining());
    lease.verify().await.unwrap();
    tokio::time::sleep(millis(2_500)).await;
    let is_refreshed = matches!(store.requests().last(), Some(Request::Refresh(_)));
    assert!(is_refreshed, "a third of its ttl after it was asked for, and not after it was handed over");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_is_heard_of_after_it_lapsed_is_not_believed() {
    let (store, holder) = Faulty::held().await;
    let waiting = tokio::spawn(store.seal().acquire("k").ttl(secs(1)).wait(secs(3600)).into_future());
    tokio::time::sleep(millis(200)).await;
    // What the waiter asks next is lost, and asked again five seconds later. Meanwhile it is handed
    // the key, which lapses, and somebody else comes.
    let waits = |call: Call<'_>| matches!(call, Call::Apply(Request::Acquire(acquire)) if acquire.wait.is_some());
    store.first(1, waits, Fault::Hang);
    tokio::time::sleep(millis(300)).await;
    holder.release().await.unwrap();
    tokio::time::sleep(millis(1_100)).await;
    let other = store.seal().acquire("k").await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert!(!waiting.is_finished(), "{waiting:?}");
    store.heal();
    other.verify().await.unwrap();
    let token = other.token();
    other.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > token);
}

/// If each waiter polls meanwhile, their requests fill the connection pool before the stream is open.
#[tokio::test(start_paused = true)]
async fn nobody_asks_while_the_listener_is_being_opened() {
    let (store, _holder) = Faulty::held().await;
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Hang));
    let seal = store.seal();
    let before = store.requests().len();
    let _waiting = [waiter(&seal, secs(3600)), waiter(&seal, secs(3600)), waiter(&seal, secs(3600))];
    tokio::time::sleep(secs(9)).await;
    assert_eq!(store.requests().len() - before, 3, "requests of many waiters would keep it from being opened");
}

#[tokio::test(start_paused = true)]
async fn waiters_ask_where_the_store_cannot_tell_and_listen_again_when_it_can() {
    for fault in [Fault::Refuse, Fault::Fail] {
        let store = Faulty::new();
        store.script(move |call| matches!(call, Call::Watch).then_some(fault));
        let mut holder = store.seal().acquire("k").await.unwrap();
        for _ in 0..3 {
            let waiting = waiter(&store.seal(), secs(3600));
            tokio::time::sleep(secs(5)).await;
            let released = Instant::now();
            holder.release().await.unwrap();
            holder = waiting.await.unwrap().unwrap();
            assert!(released.elapsed() <= millis(650), "{fault:?}");
        }
        let _waiting = waiter(&store.seal(), secs(3600));
        tokio::time::sleep(secs(5)).await;
        store.heal();
        tokio::time::sleep(secs(60)).await;
        let before = store.requests().len();
        tokio::time::sleep(secs(60)).await;
        let sent = store.requests().len() - before;
        assert!(sent <= 14, "{fault:?}: both sides renew at a third of the ttl of 30 s, and nobody polls: {sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_is_always_refused_is_retried_at_least_once_a_minute_and_not_much_more_often() {
    let store = Faulty::new();
    let tries = count(&store, |call| {
        let is_watch = matches!(call, Call::Watch);
        (is_watch, is_watch.then_some(Fault::Refuse))
    });
    let _holder = store.seal().acquire("k").ttl(secs(7200)).without_refresh().await.unwrap();
    let _waiting = waiter(&store.seal(), secs(7200));
    tokio::time::sleep(secs(180)).await;
    // Two handles: the pauses grow from a second to a minute.
    let first = tries();
    assert!((6..=40).contains(&first), "{first}");
    tokio::time::sleep(secs(600)).await;
    let later = tries() - first;
    assert!((10..=21).contains(&later), "{later}");
}

/// A stream keeps a connection of the client.
#[tokio::test(start_paused = true)]
async fn the_listener_ends_ten_seconds_after_the_last_holder_has_left() {
    let (store, seal) = Faulty::open();
    let opened = count(&store, |call| (matches!(call, Call::Watch), None));
    for (seconds, expected) in [(0, 1), (8, 1), (13, 2)] {
        tokio::time::sleep(secs(seconds)).await;
        let lease = seal.acquire("k").await.unwrap();
        // A holder listens from a second after its grant on.
        tokio::time::sleep(secs(3)).await;
        lease.release().await.unwrap();
        assert_eq!(opened(), expected, "after {seconds} s without a holder");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_there_when_a_dead_holder_s_time_is_over() {
    for limit in [1, 2] {
        let store = Faulty::new();
        let seal = store.seal();
        let acquire = || seal.acquire("k").shared_up_to(limit);
        let mut beside = None;
        if limit == 2 {
            beside = Some(acquire().await.unwrap());
        }
        let began = Instant::now();
        acquire().ttl(secs(20)).await.unwrap().orphan();
        let lease = acquire().wait(secs(3600)).await.unwrap();
        let took = began.elapsed();
        assert!(took >= secs(20) + GRACE && took <= millis(20_010) + GRACE, "up to {limit}: {took:?}");
        assert!(lease.is_valid() && beside.is_none_or(|lease| lease.is_valid()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_dropped_in_the_instant_of_its_hand_over_leaves_nothing_held_and_the_next_moves_up() {
    let (store, holder) = Faulty::held().await;
    let (dropped, next) = (waiter(&store.seal(), secs(3600)), waiter(&store.seal(), secs(3600)));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(queued(&store).await, 2);
    holder.release().await.unwrap();
    dropped.abort();
    // With the lease in it, if it was that fast.
    drop(dropped);
    let lease = timeout(secs(2), next).await.expect("nothing stays held by nobody").unwrap().unwrap();
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_dies_costs_the_next_one_no_more_than_its_ttl_and_the_grace() {
    let store = Faulty::new();
    let holder = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    // Asks once, and is never heard of again.
    let dead = tokio::spawn(store.seal().acquire("k").ttl(secs(20)).wait(secs(3600)).into_future());
    tokio::time::sleep(millis(1)).await;
    dead.abort();
    store.script(|call| matches!(call, Call::Apply(Request::Leave(_))).then_some(Fault::Hang));
    let next = waiter(&store.seal(), secs(3600));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(queued(&store).await, 2);
    store.heal();
    holder.release().await.unwrap();
    let began = Instant::now();
    drop(next.await.unwrap().unwrap());
    assert!(began.elapsed() <= secs(20) + GRACE, "{:?}", began.elapsed());
}

/// Each request of a waiter ends after the operation timeout. The wait goes on.
#[tokio::test(start_paused = true)]
async fn waiters_that_were_queued_outlast_an_outage_and_keep_their_order_if_it_is_shorter_than_their_ttl() {
    for (fault, outage, keeps_order) in [(Fault::Fail, 15, true), (Fault::Hang, 15, true), (Fault::Hang, 60, false)] {
        let store = Faulty::new();
        let holder = store.seal().acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..20 {
            let (seal, served) = (store.seal(), Arc::clone(&served));
            waiting.push(tokio::spawn(async move {
                let lease = seal.acquire("k").ttl(secs(60)).wait(secs(3600)).await.unwrap();
                served.lock().unwrap().push(number);
                lease.release().await.unwrap();
            }));
            tokio::time::sleep(millis(10)).await;
        }
        store.always(fault);
        tokio::time::sleep(secs(outage)).await;
        assert!(waiting.iter().all(|waiter| !waiter.is_finished()), "{fault:?} for {outage} s");
        store.heal();
        tokio::time::sleep(secs(10)).await;
        assert_eq!(queued(&store).await, 20, "{fault:?} for {outage} s");
        holder.release().await.unwrap();
        for waiter in waiting {
            waiter.await.unwrap();
        }
        let served = served.lock().unwrap();
        assert!(served.len() == 20 && (!keeps_order || served.is_sorted()), "{fault:?} for {outage} s: {served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_never_queued_ends_with_the_operation_timeout_and_one_whose_wait_ends_soon_after_it() {
    let store = MemoryStore::default();
    let seal = || Mongoseal::in_memory_on(&store);
    let _holder = seal().acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
    let was_queued = waiter(&seal(), secs(30));
    tokio::time::sleep(secs(1)).await;
    store.set_reachable(false);
    let began = Instant::now();
    assert!(matches!(waiter(&seal(), secs(3600)).await.unwrap(), Err(Error::Unavailable { .. })));
    assert_eq!(began.elapsed(), secs(10));
    assert!(matches!(was_queued.await.unwrap(), Err(Error::Unavailable { .. })));
    let took = began.elapsed();
    assert!((secs(29)..=secs(40)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_ends_with_its_caller_and_with_its_handle_also_in_an_outage() {
    for is_away in [false, true] {
        let store = Faulty::new();
        let _holder = store.seal().acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
        let (seal, dropped) = (store.seal(), store.seal());
        let (closed, waiting) = (waiter(&seal, secs(3600)), waiter(&dropped, secs(3600)));
        tokio::time::sleep(secs(1)).await;
        if is_away {
            store.always(Fault::Hang);
            tokio::time::sleep(secs(30)).await;
        }
        let began = Instant::now();
        seal.shutdown().await;
        assert!(began.elapsed() <= secs(10) + millis(100), "{:?}", began.elapsed());
        assert!(closed.await.unwrap().unwrap_err().to_string().contains("shut down"));
        waiting.abort();
        store.heal();
        tokio::time::sleep(if is_away { secs(11) } else { millis(1) }).await;
        assert_eq!(queued(&store).await, 0, "away: {is_away}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_of_a_handle_who_came_one_after_another_keep_their_places_at_the_same_times() {
    let store = Faulty::new();
    let _holder = store.seal().acquire("k").ttl(secs(600)).await.unwrap();
    let seal = store.seal();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(waiter(&seal, secs(3600)));
        tokio::time::sleep(millis(100)).await;
    }
    let asked: Arc<Mutex<Vec<_>>> = Arc::default();
    let note = Arc::clone(&asked);
    store.script(move |call| {
        if matches!(call, Call::Apply(Request::Acquire(_))) {
            note.lock().unwrap().push(Instant::now());
        }
        None
    });
    tokio::time::sleep(secs(60)).await;
    let mut asked = asked.lock().unwrap().clone();
    assert!((20 * 6..=20 * 7).contains(&asked.len()), "each a third of its ttl apart, or a little less: {asked:?}");
    asked.dedup();
    assert!(asked.len() <= 3 * 7, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_a_tick_and_a_campaign_are_told_their_own_place_once() {
    let (seal, seen) = (Mongoseal::in_memory(), Arc::new(Mutex::new(Vec::new())));
    let _holder = seal.acquire("k").await.unwrap();
    let of = |name: &'static str| {
        let seen = Arc::clone(&seen);
        move |ahead: usize| seen.lock().unwrap().push((name, ahead))
    };
    let tick = seal.once("k", Tick::number(1)).wait(secs(9)).on_queued(of("tick")).begin();
    let acquire = seal.acquire("k").wait(secs(9)).on_queued(of("acquire")).into_future();
    let campaign = seal.campaign("k").wait(secs(9)).on_queued(of("campaign")).into_future();
    let (tick, acquire, campaign) = tokio::join!(tick, acquire, campaign);
    assert!(matches!(tick, Ok(BeginOutcome::Skipped(Skipped::Busy { .. }))) && acquire.is_err() && campaign.is_err());
    let (mut names, mut places): (Vec<_>, Vec<_>) = seen.lock().unwrap().iter().copied().unzip();
    names.sort_unstable();
    places.sort_unstable();
    assert_eq!((names, places), (vec!["acquire", "campaign", "tick"], vec![0, 1, 2]));
}
