//! Looking at records and clearing them away, on paused time.

use std::{future::poll_fn, mem::forget, pin::Pin};

use futures_util::Stream;
use mongoseal::{
    Error, Mongoseal, Sharing,
    action::Leases,
    inspect::ListedLease,
    record::{Request, StoreTime},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

async fn keys(leases: Leases) -> Vec<String> {
    leases.await.unwrap().collect().await.unwrap().iter().map(|lease| lease.key.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_inspection_tells_who_holds_and_who_waits_and_no_lease_id() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().owner("me"));
    assert_eq!(seal.inspect("k").await.unwrap(), None);
    let lease = seal.acquire("k").ttl(secs(30)).metadata("build", "1.4").without_refresh().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    for owner in ["first", "second"] {
        let waiter = store.build(Mongoseal::builder().owner(owner)).acquire("k").shared_up_to(3).ttl(secs(60));
        tokio::spawn(waiter.wait(secs(600)).into_future());
    }
    tokio::time::sleep(secs(4)).await;

    let seen = seal.inspect("k").await.unwrap().unwrap();
    assert_eq!((seen.key.as_str(), seen.version), ("k", lease.token()));
    let [holder] = seen.holders.as_slice() else { panic!("{seen:?}") };
    assert_eq!((holder.owner.as_str(), holder.token, holder.sharing), ("me", lease.token(), Sharing::Exclusive));
    assert_eq!(holder.metadata.get("build"), Some("1.4"));
    assert_eq!(holder.free_in, secs(24) + GRACE);
    assert_eq!(seen.read_at.since(holder.since), secs(6));
    assert_eq!(seen.read_at.since(seen.last_seen), secs(4));
    let queue: Vec<_> = seen.queue.iter().map(|waiting| (waiting.owner.as_str(), waiting.position)).collect();
    assert_eq!(queue, [("first", 0), ("second", 1)]);
    assert!(seen.queue.iter().all(|waiting| (waiting.remaining, waiting.sharing) == (secs(56), Sharing::UpTo(3))));

    seal.revoke("k").by("ops").reason("drill").await.unwrap();
    let revoked = seal.inspect("k").await.unwrap().unwrap();
    let [past] = revoked.history.as_slice() else { panic!("{revoked:?}") };
    assert_eq!((past.by.as_str(), past.reason.as_str(), past.at), ("ops", "drill", seen.read_at));
    assert_eq!(past.tokens, [lease.token()]);
    for shown in [format!("{seen:?}"), format!("{revoked:?}")] {
        assert!(!shown.contains("LeaseId") && !shown.contains(&lease.id().to_string()), "{shown}");
    }
}

/// Leases that differ in all that can be asked for, and the time between the first two and the others.
async fn various() -> (Faulty, Mongoseal, StoreTime) {
    let store = Faulty::new();
    let (me, you) = (store.build(Mongoseal::builder().owner("me")), store.build(Mongoseal::builder().owner("you")));
    let orphan = async |seal: &Mongoseal, key, ttl| seal.acquire(key).ttl(ttl).await.unwrap().orphan();
    orphan(&me, "a/1", secs(60)).await;
    orphan(&you, "a/2", secs(600)).await;
    tokio::time::sleep(secs(1)).await;
    let between = me.now().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    orphan(&me, "b/1", secs(600)).await;
    you.acquire("b/2").shared_up_to(4).ttl(secs(60)).await.unwrap().orphan();
    orphan(&me, "a/over", millis(10)).await;
    tokio::time::sleep(secs(1)).await;
    (store, me, between)
}

#[tokio::test(start_paused = true)]
async fn each_filter_alone_and_all_together_hold_and_of_one_the_last_setting() {
    let (_store, seal, between) = various().await;
    let list = || seal.leases();
    assert_eq!(keys(list()).await, ["a/1", "a/2", "b/1", "b/2"]);
    assert_eq!(keys(list().with_expired()).await, ["a/1", "a/2", "a/over", "b/1", "b/2"]);
    assert_eq!(keys(list().key("a/2")).await, ["a/2"]);
    assert_eq!(keys(list().prefix("a/")).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().prefix(".*")).await, [""; 0]);
    assert_eq!(keys(list().owner("me")).await, ["a/1", "b/1"]);
    assert_eq!(keys(list().exclusive()).await, ["a/1", "a/2", "b/1"]);
    assert_eq!(keys(list().shared()).await, ["b/2"]);
    assert_eq!(keys(list().since_before(between)).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().since_after(between)).await, ["b/1", "b/2"]);
    assert_eq!(keys(list().free_in_less_than(secs(100))).await, ["a/1", "b/2"]);
    assert_eq!(keys(list().free_in_at_least(secs(100))).await, ["a/2", "b/1"]);

    let times = list().since_after(between).free_in_at_least(secs(10)).free_in_less_than(secs(100));
    assert_eq!(keys(times.prefix("b").owner("you").shared()).await, ["b/2"]);

    assert_eq!(keys(list().prefix("a/1").prefix("a/")).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().free_in_less_than(secs(9_000)).free_in_less_than(secs(100))).await, ["a/1", "b/2"]);
    assert_eq!(keys(list().owner("you").owner("me")).await, ["a/1", "b/1"]);
    assert_eq!(keys(list().exclusive().shared()).await, ["b/2"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_in_the_order_of_keys_over_its_pages_and_a_dropped_next_loses_no_lease() {
    let store = Faulty::new();
    let (seal, mut held) = (store.seal(), Vec::new());
    for number in 0..700_u32 {
        let key = format!("{:08x}", number.wrapping_mul(2_654_435_761));
        held.push(seal.acquire(key).ttl(secs(3600)).without_refresh().await.unwrap());
    }
    held.sort_by_key(|lease| lease.key().clone());
    let mut leases = seal.leases().await.unwrap();
    let mut listed = Vec::new();
    store.always(Fault::DelayReply(millis(50)));
    loop {
        match tokio::time::timeout(millis(1), leases.next()).await {
            Ok(Some(lease)) => listed.push(lease.unwrap()),
            Ok(None) => break,
            Err(_dropped) => {}
        }
    }
    let named = |listed: &ListedLease| (listed.key.clone(), listed.holder.token);
    let held: Vec<_> = held.iter().map(|lease| (lease.key().clone(), lease.token())).collect();
    assert_eq!(listed.iter().map(named).collect::<Vec<_>>(), held);

    // An error ends the list, which is a stream, too.
    store.heal();
    let mut leases = seal.leases().await.unwrap();
    store.script(|call| matches!(call, Call::List).then_some(Fault::Refuse));
    let mut next = async || poll_fn(|context| Pin::new(&mut leases).poll_next(context)).await;
    for expected in &held[..500] {
        assert_eq!(named(&next().await.unwrap().unwrap()), *expected);
    }
    assert!(matches!(next().await.unwrap(), Err(Error::Invalid { .. })));
    assert!(next().await.is_none());
    assert!(next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_and_an_inspection_are_asked_for_until_they_are_answered() {
    let store = Faulty::new();
    let _lease = store.seal().acquire("k").ttl(secs(3600)).without_refresh().await.unwrap();
    store.first(3, |call| matches!(call, Call::List), Fault::Fail);
    assert_eq!(keys(store.seal().leases()).await, ["k"]);
    store.first(3, |call| matches!(call, Call::Read), Fault::Fail);
    assert!(store.seal().inspect("k").await.unwrap().is_some());
    store.always(Fault::Fail);
    assert!(matches!(store.seal().leases().await, Err(Error::Unavailable { .. })));
    assert!(matches!(store.seal().inspect("k").await, Err(Error::Unavailable { .. })));
}

/// The holder stays in its record until the minimum hold ends. Then it has expired.
#[tokio::test(start_paused = true)]
async fn a_purge_removes_a_released_minimum_hold_when_it_has_ended_and_not_before() {
    let seal = Mongoseal::in_memory();
    seal.acquire("k").min_hold(secs(60)).await.unwrap().release().await.unwrap();
    assert_eq!(seal.purge().await.unwrap(), []);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    tokio::time::sleep(secs(61)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 1);
}

/// Of one key, in one request.
#[tokio::test(start_paused = true)]
async fn a_purge_removes_the_expired_sharers_of_a_key_and_leaves_the_live_ones() {
    let (store, seal) = Faulty::open();
    for _ in 0..40 {
        forget(seal.acquire("k").shared().ttl(millis(10)).without_refresh().await.unwrap());
    }
    let live = seal.acquire("k").shared().ttl(secs(60)).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 40);
    assert_eq!(store.requests().iter().filter(|request| matches!(request, Request::Prune)).count(), 1);
    live.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_purge_returns_expired_holders_as_they_were_listed_and_one_that_meets_an_error_can_be_called_again() {
    let (store, seal, _) = various().await;
    for fault in [Fault::Fail, Fault::Hang] {
        store.script(move |call| matches!(call, Call::Apply(Request::Prune)).then_some(fault));
        assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })), "{fault:?}");
    }
    store.script(|call| matches!(call, Call::List).then_some(Fault::Fail));
    assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })));
    store.heal();
    let over = seal.leases().key("a/over").with_expired().await.unwrap().collect().await.unwrap();
    assert!(over[0].holder.is_expired());
    assert_eq!(seal.purge().await.unwrap(), over);
    assert_eq!(keys(seal.leases().with_expired()).await, ["a/1", "a/2", "b/1", "b/2"]);
    assert_eq!(seal.purge().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_purge_stops_at_the_record_it_has_come_to() {
    let (store, seal) = Faulty::open();
    for key in ["a", "b", "c"] {
        forget(seal.acquire(key).ttl(millis(10)).without_refresh().await.unwrap());
    }
    tokio::time::sleep(secs(1)).await;
    let mut asked = 0;
    store.script(move |call| {
        asked += u32::from(matches!(call, Call::Apply(Request::Prune)));
        (asked == 2).then_some(Fault::DelayReply(secs(1)))
    });
    assert!(tokio::time::timeout(millis(100), seal.purge()).await.is_err());
    tokio::time::sleep(secs(2)).await;
    store.heal();
    // The one under way was removed, too.
    assert_eq!(keys(seal.leases().with_expired()).await, ["c"]);
    assert_eq!(seal.purge().await.unwrap().len(), 1);
}
