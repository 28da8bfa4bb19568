//! What a lease does by itself: refreshes, the grace, its end.

use std::{
    collections::HashSet,
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use futures_util::Stream;
use mongoseal::{EndReason, Error, LeaseState, LossCause, Metadata, Mongoseal, record::Request, store::MemoryStore};
use tokio::time::{Instant, timeout};

use crate::{
    GRACE, by_length,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn people_see_whose_lease_it_is_and_where_it_stands_and_not_its_secret() {
    let seal = Mongoseal::builder().owner("alice").in_memory().unwrap();
    let lease = seal.acquire("k").await.unwrap();
    // A token that it gave does not end it.
    lease.cancellation_token().cancel();
    assert!(lease.is_valid() && !lease.cancellation_token().is_cancelled());
    let shown = format!("{lease:?}");
    for part in ["Lease {", "\"k\"", "alice", &lease.token().to_string(), "Held"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains(&lease.id().expose()), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn the_background_refreshes_at_a_third_of_the_ttl_or_at_the_chosen_interval_if_the_ttl_allows_it() {
    let (store, seal) = Faulty::open();
    let sent = async |after| {
        let before = store.requests().len();
        tokio::time::sleep(after).await;
        store.requests().len() - before
    };
    let acquire = || seal.acquire("k").ttl(secs(30));
    let lease = acquire().await.unwrap();
    assert_eq!((sent(millis(9_900)).await, sent(millis(200)).await, sent(secs(30)).await), (0, 1, 3));
    lease.release().await.unwrap();
    let lease = acquire().refresh_every(secs(1)).await.unwrap();
    assert_eq!(sent(millis(10_500)).await, 10);
    lease.release().await.unwrap();
    let lease = acquire().refresh_every(secs(15)).await.unwrap();
    lease.extend(secs(10)).await.unwrap();
    assert!(sent(secs(300)).await > 20 && lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn without_refresh_a_lease_ends_with_its_ttl_which_is_seen_at_once_and_told_when_its_task_runs() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").ttl(secs(10)).without_refresh().await.unwrap();
    tokio::time::sleep(secs(8)).await;
    lease.refresh().await.unwrap();
    tokio::time::sleep(secs(8)).await;
    assert!(lease.is_valid());
    let mut states = lease.watch_state();
    let waiting = tokio::spawn(async move { (states.changed().await, states) });
    tokio::time::advance(secs(2)).await;
    assert!(!lease.is_valid() && lease.remaining().is_zero());
    let expired = LeaseState::Lost { cause: LossCause::Expired };
    assert_eq!(lease.watch_state().get(), expired);
    let (told, mut states) = waiting.await.unwrap();
    assert_eq!(told, Some(expired));
    assert!(poll_fn(|context| Pin::new(&mut states).poll_next(context)).await.is_none());
    assert!(matches!(lease.refresh().await, Err(Error::Lost { cause: LossCause::Expired, .. })));
}

#[tokio::test(start_paused = true)]
async fn extend_changes_the_ttl_of_this_and_later_refreshes_and_never_shortens() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(3)).await.unwrap();
    lease.extend(secs(60)).await.unwrap();
    assert!(lease.remaining() > secs(59));
    let asked = store.requests().len();
    tokio::time::sleep(secs(19)).await;
    assert_eq!(store.requests().len(), asked, "a third of 60 seconds");
    lease.extend(secs(3)).await.unwrap();
    assert!(lease.remaining() > secs(40));
    assert!(matches!(lease.extend(secs(0)).await, Err(Error::Invalid { .. })));
}

/// At the operation timeout, the call must not give up just before its task replies with that error.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_not_confirmed_returns_the_error_of_its_last_attempt() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    store.always(Fault::Fail);
    let mut refresh = pin!(lease.refresh());
    assert!(timeout(secs(1), &mut refresh).await.is_err());
    assert_eq!(lease.state(), LeaseState::AtRisk, "its first attempt has failed");
    let error = refresh.await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().contains("the store is away"), "{error}");
    store.heal();
    lease.refresh().await.unwrap();
    store.always(Fault::Hang);
    let error = lease.refresh().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && !error.to_string().contains("drive the runtime"), "{error}");
}

/// The drop needs the lock that a borrow of the state would keep.
#[tokio::test(start_paused = true)]
async fn a_lease_can_be_dropped_by_a_match_on_its_state_and_the_stream_gives_the_end_once() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").ttl(secs(1)).without_refresh().await.unwrap();
    let mut states = lease.watch_state();
    match states.get() {
        LeaseState::Held => drop(lease),
        other => panic!("it is held: {other:?}"),
    }
    assert_eq!(states.get(), LeaseState::Ended { reason: EndReason::Released });
    assert_eq!(states.changed().await, Some(LeaseState::Ended { reason: EndReason::Released }));
    assert_eq!([states.changed().await, states.changed().await], [None, None]);
}

/// A drop sends the release in the background.
#[tokio::test(start_paused = true)]
async fn an_acquire_waits_for_the_release_of_a_lease_that_its_own_handle_has_just_dropped() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let is_release = |call: Call<'_>| matches!(call, Call::Apply(Request::Release(_)));
    store.script(move |call| is_release(call).then_some(Fault::Delay(millis(500))));
    for shared in [false, true] {
        let acquire = |seal: &Mongoseal| {
            if shared { seal.acquire("k").shared_up_to(1) } else { seal.acquire("k") }
        };
        drop(acquire(&seal).await.unwrap());
        let began = Instant::now();
        assert!(matches!(acquire(&other).await, Err(Error::Held { .. })), "another handle does not wait");
        assert_eq!(began.elapsed(), Duration::ZERO);
        let lease = acquire(&seal).await.unwrap();
        assert_eq!(began.elapsed(), millis(500));
        lease.release().await.unwrap();
    }
    drop(seal.acquire_all(["k", "l"]).await.unwrap());
    drop(seal.acquire("l").await.unwrap());
    // One whose release does not come to an end is waited for no longer than a call may take.
    store.script(move |call| is_release(call).then_some(Fault::Hang));
    drop(seal.acquire("k").await.unwrap());
    let began = Instant::now();
    let error = seal.acquire("k").await.unwrap_err();
    assert!(error.to_string().contains("an earlier release of the key"), "{error}");
    assert_eq!(began.elapsed(), secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_dropped_and_acquired_again_is_never_refused() {
    let seal = Mongoseal::in_memory();
    for _ in 0..by_length(200, 1_000) {
        drop(seal.acquire("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn each_acquire_has_a_lease_id_and_an_acquire_id_of_its_own_also_if_the_one_before_ended_unavailable() {
    let (store, seal) = Faulty::open();
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::LoseReply));
    assert!(matches!(seal.acquire("k").await, Err(Error::Unavailable { .. })));
    store.heal();
    seal.acquire("k").wait(secs(1)).await.unwrap().release().await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    let sent = store.requests();
    let acquires = sent.iter().filter_map(|request| match request {
        Request::Acquire(acquire) => Some((acquire.terms.lease, acquire.terms.acquire_id)),
        _ => None,
    });
    let mut acquires: Vec<_> = acquires.collect();
    acquires.dedup();
    let leases: HashSet<_> = acquires.iter().map(|(lease, _)| lease).collect();
    let acquire_ids: HashSet<_> = acquires.iter().map(|(_, acquire_id)| acquire_id).collect();
    assert_eq!((acquires.len(), leases.len(), acquire_ids.len()), (3, 3, 3), "{acquires:?}");
}

#[test]
fn every_public_future_can_be_sent_to_another_thread() {
    fn sent<T: Send>(_: T) {}
    #[allow(dead_code, reason = "only compiled: the types are what is tested. Other tests spawn the rest")]
    fn table(seal: &Mongoseal, lease: &mongoseal::Lease, mut events: mongoseal::inspect::EventStream) {
        sent(seal.prepare());
        sent(seal.watch("k"));
        sent(events.next());
        sent(lease.cancelled());
        sent(lease.verify());
        sent(lease.refresh());
        sent(lease.extend(secs(1)));
        sent(mongoseal::store::Clock::Boot.sleep_until(mongoseal::store::Instant::at(secs(1))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_says_other_words_and_stays_the_same_lease() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").ttl(secs(30)).metadata("value", "one").metadata("other", "x").await.unwrap();
    let seen = || async { seal.inspect("k").await.unwrap().unwrap().holders.remove(0) };
    let words = |text: &str| {
        let mut words = Metadata::default();
        words.insert("value", text).unwrap();
        words
    };
    tokio::time::sleep(secs(5)).await;
    lease.update_metadata(words("two")).await.unwrap();
    assert!(lease.remaining() > secs(29), "it is a refresh, too");
    let holder = seen().await;
    assert_eq!((holder.token, holder.metadata), (lease.token(), words("two")), "in place of all it said before");
    // Each refresh says again what was confirmed, and words that arrive late do not stand.
    for fault in [Fault::LoseReply, Fault::Delay(secs(12))] {
        store.script(move |call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(fault));
        assert!(matches!(lease.update_metadata(words("late")).await, Err(Error::Unavailable { .. })));
        store.heal();
        tokio::time::sleep(secs(60)).await;
        assert_eq!(seen().await.metadata, words("two"), "{fault:?}");
    }
    store.seal().revoke("k").await.unwrap();
    assert!(matches!(lease.update_metadata(words("three")).await, Err(Error::Lost { .. })));
    assert!(seal.inspect("k").await.unwrap().unwrap().holders.is_empty(), "it is never created again");
}

#[tokio::test(start_paused = true)]
async fn by_default_the_store_keeps_a_key_longer_than_its_ttl_by_a_tenth_of_it_and_half_a_second_at_most() {
    let store = Faulty::new();
    let (holder, other) = (store.seal(), store.seal());
    for (ttl, grace) in [(secs(600), GRACE), (secs(5), GRACE), (secs(2), millis(200)), (millis(50), millis(5))] {
        let lease = holder.acquire("k").ttl(ttl).without_refresh().await.unwrap();
        let Err(Error::Held { key, owner, token, free_in, .. }) = other.acquire("k").await else { panic!("{ttl:?}") };
        assert_eq!((&key, &owner, token, free_in), (lease.key(), lease.owner(), lease.token(), ttl + grace));
        tokio::time::sleep(ttl).await;
        assert!(!lease.is_valid(), "the grace is not the holder's");
        let Err(Error::Held { free_in, .. }) = other.acquire("k").await else { panic!("the key is kept: {ttl:?}") };
        assert!(free_in <= grace && free_in + millis(1) >= grace, "{free_in:?}");
        tokio::time::sleep(grace + millis(1)).await;
        let next = other.acquire("k").await.unwrap();
        assert!(next.token() > lease.token());
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_default_grace_never_exceeds_the_retention_and_an_explicit_one_stays_as_it_is() {
    let free_in = async |seal: &Mongoseal| seal.inspect("k").await.unwrap().unwrap().holders[0].free_in;
    let short = || Mongoseal::builder().retention(secs(60));
    for (builder, ttl, grace) in [
        (short(), secs(30), GRACE),
        (short(), millis(59_800), millis(200)),
        (short(), secs(60), Duration::ZERO),
        (short().grace(Duration::ZERO), secs(30), Duration::ZERO),
        (Mongoseal::builder().grace(secs(1)), secs(30), secs(1)),
    ] {
        let seal = builder.in_memory().unwrap();
        let _lease = seal.acquire("k").ttl(ttl).await.unwrap();
        assert_eq!(free_in(&seal).await, ttl + grace);
    }
    assert!(matches!(short().in_memory().unwrap().acquire("k").ttl(secs(61)).await, Err(Error::Invalid { .. })));
    // That of a lease counts before that of its handle, and its refreshes keep to it.
    let seal = Mongoseal::builder().grace(secs(1)).in_memory().unwrap();
    let lease = seal.acquire("k").ttl(secs(30)).grace(secs(10)).await.unwrap();
    assert!(free_in(&seal).await == secs(40) && lease.remaining() <= secs(30));
    tokio::time::sleep(millis(10_001)).await;
    assert_eq!(free_in(&seal).await, millis(39_999));
    lease.extend(secs(60)).await.unwrap();
    assert_eq!(free_in(&seal).await, secs(70));
    let error = seal.acquire("l").grace(secs(24 * 3600)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    // The offer of a lease without expiry has the ttl of its handle, and so that one's grace.
    let all = short().ttl(secs(60)).in_memory().unwrap();
    drop(all.acquire("k").without_expiry().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_outlasts_outages_and_the_retention_and_is_refreshed_to_find_its_loss() {
    let mut store = Faulty::new();
    store.records = MemoryStore::new(secs(600));
    let seal = store.build(Mongoseal::builder());
    // The clock does not begin now.
    tokio::time::sleep(secs(60)).await;
    let lease = seal.acquire("k").without_expiry().await.unwrap();
    assert_eq!(store.requests().len(), 2, "one grants the key for a while, and one makes it for ever");
    tokio::time::sleep(millis(9_990)).await;
    assert_eq!(store.requests().len(), 2);
    let error = seal.acquire("k").await.unwrap_err();
    assert!(error.to_string().contains("without expiry"), "{error}");
    assert!(matches!(lease.extend(secs(5)).await, Err(Error::Invalid { .. })));
    for fault in [Fault::Fail, Fault::Refuse] {
        store.always(fault);
        tokio::time::sleep(secs(3600)).await;
        assert_eq!((lease.is_valid(), lease.state()), (true, LeaseState::AtRisk), "{fault:?}");
        store.heal();
        tokio::time::sleep(secs(20)).await;
        assert_eq!(lease.state(), LeaseState::Held, "{fault:?}");
    }
    let sent = store.requests().len();
    tokio::time::sleep(secs(60)).await;
    let later = store.requests().len() - sent;
    assert!((5..=7).contains(&later), "one each ten seconds, a third of the default ttl: {later}");
    store.records.remove(lease.key());
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Removed });
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_for_a_lease_without_expiry_is_given_one() {
    let (store, holder) = Faulty::held().await;
    let waiting = tokio::spawn(store.seal().acquire("k").without_expiry().wait(secs(60)).into_future());
    tokio::time::sleep(secs(5)).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    // Not only for as long as a waiter keeps what it was handed.
    store.always(Fault::Hang);
    tokio::time::sleep(secs(3600)).await;
    store.heal();
    assert!(lease.is_valid());
    lease.verify().await.unwrap();
}

/// The acquire itself requests no expiry, and can arrive after its caller has given up.
#[tokio::test(start_paused = true)]
async fn an_acquire_without_expiry_that_is_lost_or_late_holds_nothing_for_ever() {
    for fault in [Fault::LoseReply, Fault::Delay(secs(30))] {
        let store = Faulty::new();
        let mut asked = false;
        store.script(move |call| match call {
            Call::Apply(Request::Acquire(_)) if !std::mem::replace(&mut asked, true) => Some(fault),
            Call::Prepare => None,
            _ => Some(Fault::Fail),
        });
        assert!(store.seal().acquire("k").without_expiry().await.is_err());
        tokio::time::sleep(secs(60)).await;
        store.heal();
        tokio::time::sleep(secs(60)).await;
        drop(store.seal().acquire("k").await.unwrap());
    }
}
