//! Looking at records and clearing them away, on paused time.

use std::{future::poll_fn, mem::forget, pin::Pin, time::Duration};

use futures_core::Stream;
use mongoseal::{
    Deadline, Error, FencingToken, Lease, LeaseId, Leases, ListedLease, Mongoseal, Result, Sharing,
    record::{self, Acquire, LeaseSpec, Request, Revoke, StoreTime, WaitSpec},
    store::{MemoryStore, Store},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

async fn all(leases: Leases) -> Result<Vec<ListedLease>> {
    let (mut leases, mut listed) = (leases.await?, Vec::new());
    while let Some(lease) = leases.next().await {
        listed.push(lease?);
    }
    Ok(listed)
}

async fn keys(leases: Leases) -> Vec<String> {
    all(leases).await.unwrap().into_iter().map(|lease| lease.key.to_string()).collect()
}

/// What an acquire of the engine asks, and what it has no setter for.
fn terms(number: u8, limit: u32, ttl: u64) -> LeaseSpec {
    LeaseSpec {
        lease: LeaseId::from_bytes([number; 16]),
        acquire_id: "0123456789abcdef/1".parse().unwrap(),
        owner: format!("owner-{number}").parse().unwrap(),
        sharing: Sharing::from_limit(limit),
        ttl,
        grace: 0,
        group: None,
        metadata: mongoseal::Metadata::default(),
        hold: mongoseal::record::HoldLimits::default(),
    }
}

async fn hold(store: &MemoryStore, key: &str, terms: LeaseSpec) {
    let request = Request::Acquire(Acquire { terms, wait: None });
    store.apply(&key.parse().unwrap(), request, Deadline::after(store.clock(), secs(1))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_inspection_tells_who_holds_and_who_waits_and_no_lease_id() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().owner("me"));
    assert_eq!(seal.inspect("k").await.unwrap(), None);
    let lease = seal.acquire("k").ttl(secs(30)).metadata("build", "1.4").without_refresh().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    for number in [1, 2] {
        let patience = Some(WaitSpec { ttl: 10_000, queue_limit: 10 });
        let request = Request::Acquire(Acquire { terms: terms(number, 3, 60_000), wait: patience });
        store.records.apply(lease.key(), request, Deadline::after(store.records.clock(), secs(1))).await.unwrap();
    }
    tokio::time::sleep(secs(4)).await;

    let seen = seal.inspect("k").await.unwrap().unwrap();
    assert_eq!((seen.key.as_str(), seen.version), ("k", lease.token()));
    let [holder] = seen.holders.as_slice() else { panic!("{seen:?}") };
    assert_eq!((holder.owner.as_str(), holder.token, holder.sharing), ("me", lease.token(), Sharing::Exclusive));
    assert_eq!(holder.metadata.get("build"), Some("1.4"));
    assert_eq!(holder.remaining, Some(secs(24) + GRACE));
    assert_eq!(seen.read_at.since(holder.since), secs(6));
    assert_eq!(seen.read_at.since(seen.last_seen), secs(4));
    let queue: Vec<_> = seen.queue.iter().map(|waiting| (waiting.owner.as_str(), waiting.position)).collect();
    assert_eq!(queue, [("owner-1", 0), ("owner-2", 1)]);
    assert!(seen.queue.iter().all(|waiting| (waiting.remaining, waiting.sharing) == (secs(6), Sharing::UpTo(3))));

    let revoke = Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX };
    store
        .records
        .apply(lease.key(), Request::Revoke(revoke), Deadline::after(store.records.clock(), secs(1)))
        .await
        .unwrap();
    let revoked = seal.inspect("k").await.unwrap().unwrap();
    let [past] = revoked.history.as_slice() else { panic!("{revoked:?}") };
    assert_eq!((past.by.as_str(), past.reason.as_str(), past.at), ("ops", "drill", seen.read_at));
    assert_eq!(past.tokens, [lease.token()]);
    for shown in [format!("{seen:?}"), format!("{revoked:?}")] {
        assert!(!shown.contains("LeaseId") && !shown.contains(&lease.id().to_string()), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_has_no_end_and_one_whose_time_is_over_has_nothing_left() {
    let store = Faulty::new();
    let seal = store.seal();
    hold(&store.records, "for-ever", terms(1, 0, 1 << 45)).await;
    hold(&store.records, "over", terms(2, 0, 100)).await;
    tokio::time::sleep(secs(1)).await;
    let holder = |key: &'static str| {
        let seal = seal.clone();
        async move { seal.inspect(key).await.unwrap().unwrap().holders.remove(0) }
    };
    assert_eq!(holder("for-ever").await.remaining, None);
    assert!(!holder("for-ever").await.is_expired());
    assert_eq!(holder("over").await.remaining, Some(Duration::ZERO));
    assert!(holder("over").await.is_expired());
    // It has more left than any bound, and never less.
    assert_eq!(keys(seal.leases().remaining_at_least(Duration::MAX)).await, ["for-ever"]);
    assert_eq!(keys(seal.leases().remaining_less_than(Duration::MAX)).await, [""; 0]);
}

/// Leases that differ in all that can be asked for, and the time between the first two and the others.
async fn various() -> (Faulty, Mongoseal, StoreTime, Vec<Lease>) {
    let store = Faulty::new();
    let (me, you) = (store.build(Mongoseal::builder().owner("me")), store.build(Mongoseal::builder().owner("you")));
    let mut held = Vec::new();
    for (seal, key, ttl) in [(&me, "a/1", 60), (&you, "a/2", 600)] {
        held.push(seal.acquire(key).ttl(secs(ttl)).without_refresh().await.unwrap());
    }
    tokio::time::sleep(secs(1)).await;
    let between = me.inspect("a/1").await.unwrap().unwrap().read_at;
    tokio::time::sleep(secs(1)).await;
    held.push(me.acquire("b/1").ttl(secs(600)).without_refresh().await.unwrap());
    hold(&store.records, "b/2", terms(7, 4, 60_000)).await;
    held.push(me.acquire("a/over").ttl(millis(10)).without_refresh().await.unwrap());
    tokio::time::sleep(secs(1)).await;
    (store, me, between, held)
}

#[tokio::test(start_paused = true)]
async fn each_filter_alone_and_any_two_together_hold() {
    let (_store, seal, between, _held) = various().await;
    let list = || seal.leases();
    assert_eq!(keys(list()).await, ["a/1", "a/2", "b/1", "b/2"]);
    assert_eq!(keys(list().key("a/2")).await, ["a/2"]);
    assert_eq!(keys(list().prefix("a/")).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().prefix(".*")).await, [""; 0]);
    assert_eq!(keys(list().owner("me")).await, ["a/1", "b/1"]);
    assert_eq!(keys(list().exclusive()).await, ["a/1", "a/2", "b/1"]);
    assert_eq!(keys(list().shared()).await, ["b/2"]);
    assert_eq!(keys(list().since_before(between)).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().since_after(between)).await, ["b/1", "b/2"]);
    assert_eq!(keys(list().remaining_less_than(secs(100))).await, ["a/1", "b/2"]);
    assert_eq!(keys(list().remaining_at_least(secs(100))).await, ["a/2", "b/1"]);

    assert_eq!(keys(list().prefix("a/").owner("me")).await, ["a/1"]);
    assert_eq!(keys(list().owner("me").prefix("a/")).await, ["a/1"]);
    assert_eq!(keys(list().since_after(between).exclusive()).await, ["b/1"]);
    assert_eq!(keys(list().key("a/2").owner("me")).await, [""; 0]);
    assert_eq!(keys(list().remaining_at_least(secs(10)).remaining_less_than(secs(100))).await, ["a/1", "b/2"]);
    // If a filter is set again, the last setting counts.
    assert_eq!(keys(list().prefix("a/1").prefix("a/")).await, ["a/1", "a/2"]);
    assert_eq!(keys(list().remaining_less_than(secs(9_000)).remaining_less_than(secs(100))).await, ["a/1", "b/2"]);
    assert_eq!(keys(list().owner("you").owner("me")).await, ["a/1", "b/1"]);
    assert_eq!(keys(list().exclusive().shared()).await, ["b/2"]);
    // What no lease matches is an empty list.
    assert_eq!(keys(list().key("a/1").prefix("b")).await, [""; 0]);
    assert_eq!(keys(list().since_after(between).since_before(between)).await, [""; 0]);
    assert_eq!(keys(list().remaining_less_than(secs(1)).remaining_at_least(secs(1))).await, [""; 0]);
    assert_eq!(keys(list().remaining_less_than(Duration::ZERO)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_holder_is_listed_only_where_it_is_asked_for() {
    let (_store, seal, _, _held) = various().await;
    assert_eq!(keys(seal.leases().key("a/over")).await, [""; 0]);
    assert_eq!(keys(seal.leases().key("a/over").with_expired()).await, ["a/over"]);
    let over = all(seal.leases().with_expired().remaining_less_than(millis(1))).await.unwrap();
    assert!(matches!(over.as_slice(), [lease] if lease.holder.is_expired()), "{over:?}");
    assert_eq!(keys(seal.leases().with_expired().remaining_at_least(Duration::ZERO)).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_is_not_valid_is_refused_with_what_to_do() {
    let seal = Mongoseal::in_memory();
    for (leases, says) in [
        (seal.leases().key(""), "must not be empty"),
        (seal.leases().owner(""), "must not be empty"),
        (seal.leases().prefix("a\0"), "no NUL"),
        (seal.leases().prefix("k".repeat(1025)), "at most 1024"),
    ] {
        let error = leases.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(seal.leases().prefix("k".repeat(1024)).await.unwrap().next().await.is_none());
    assert!(matches!(seal.inspect("").await, Err(Error::Invalid { .. })));
    seal.shutdown().await;
    assert!(matches!(seal.leases().await, Err(Error::Invalid { .. })));
    assert!(matches!(seal.inspect("k").await, Err(Error::Invalid { .. })));
    assert!(matches!(seal.purge().await, Err(Error::Invalid { .. })));
}

/// So many leases, held in an order that is none of their keys'.
async fn many(seal: &Mongoseal, count: u32) -> Vec<Lease> {
    let mut held = Vec::new();
    for number in 0..count {
        let key = format!("{:08x}", number.wrapping_mul(2_654_435_761));
        held.push(seal.acquire(key).ttl(secs(3600)).without_refresh().await.unwrap());
    }
    held
}

#[tokio::test(start_paused = true)]
async fn a_long_list_is_in_the_order_of_keys_page_by_page() {
    let store = Faulty::new();
    let held = many(&store.seal(), 2_600).await;
    let pages = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = pages.clone();
    store.script(move |call| {
        if matches!(call, Call::List) {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        None
    });
    let listed = all(store.seal().leases()).await.unwrap();
    assert_eq!(pages.load(std::sync::atomic::Ordering::Relaxed), 3);
    let mut expected: Vec<_> = held.iter().map(|lease| (lease.key().clone(), lease.token())).collect();
    expected.sort();
    assert_eq!(listed.iter().map(|lease| (lease.key.clone(), lease.holder.token)).collect::<Vec<_>>(), expected);

    // The same as a stream.
    let mut stream = store.seal().leases().await.unwrap();
    let mut streamed = Vec::new();
    while let Some(lease) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
        streamed.push(lease.unwrap());
    }
    assert_eq!(streamed, listed);
}

#[tokio::test(start_paused = true)]
async fn leases_with_one_token_on_many_keys_are_each_listed_once() {
    let store = MemoryStore::default();
    let seal = Mongoseal::builder().on_store(std::sync::Arc::new(store.clone())).unwrap();
    forget(seal.acquire("k").ttl(secs(3600)).without_refresh().await.unwrap());
    let Some(mongoseal::store::Snapshot { record, .. }) =
        store.read(&"k".parse().unwrap(), Deadline::after(store.clock(), secs(1))).await.unwrap()
    else {
        panic!("it is there")
    };
    for number in 0..1_500 {
        store.restore(format!("{number:04}").parse().unwrap(), record::Record::clone(&record));
    }
    let listed = keys(seal.leases()).await;
    assert_eq!(listed.len(), 1_501);
    assert!(listed.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_next_loses_no_lease_and_an_error_ends_the_list() {
    let store = Faulty::new();
    let held = many(&store.seal(), 700).await;
    let mut leases = store.seal().leases().await.unwrap();
    let mut listed = 0;
    store.always(Fault::DelayReply(millis(50)));
    loop {
        match tokio::time::timeout(millis(1), leases.next()).await {
            Ok(Some(lease)) => {
                lease.unwrap();
                listed += 1;
            }
            Ok(None) => break,
            Err(_dropped) => {}
        }
    }
    assert_eq!(listed, held.len());

    store.heal();
    let mut leases = store.seal().leases().await.unwrap();
    store.script(|call| matches!(call, Call::List).then_some(Fault::Refuse));
    let mut given = 0;
    let error = loop {
        match leases.next().await.unwrap() {
            Ok(_) => given += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(given, 500, "the first page");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(leases.next().await.is_none());
    assert!(leases.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_and_an_inspection_are_asked_for_until_they_are_answered() {
    let store = Faulty::new();
    let _lease = store.seal().acquire("k").ttl(secs(3600)).without_refresh().await.unwrap();
    let mut failures = 3;
    store.script(move |call| {
        let fails = matches!(call, Call::List | Call::Read) && failures > 0;
        failures -= u32::from(fails);
        fails.then_some(Fault::Fail)
    });
    assert_eq!(keys(store.seal().leases()).await, ["k"]);
    store.always(Fault::Fail);
    assert!(matches!(store.seal().leases().await, Err(Error::Unavailable { .. })));
    assert!(matches!(store.seal().inspect("k").await, Err(Error::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_purge_removes_expired_holders_tells_which_and_hands_over() {
    let (store, seal, _, held) = various().await;
    // Behind a holder whose time is over, somebody waits.
    let behind = store.seal();
    forget(behind.acquire("c").ttl(millis(500)).without_refresh().await.unwrap());
    let patience = Some(WaitSpec { ttl: 60_000, queue_limit: 9 });
    let request = Request::Acquire(Acquire { terms: terms(9, 0, 60_000), wait: patience });
    store.records.apply(&"c".parse().unwrap(), request, Deadline::after(store.records.clock(), secs(1))).await.unwrap();
    tokio::time::sleep(secs(1)).await;

    let before = all(seal.leases().with_expired()).await.unwrap();
    let purged = seal.purge().await.unwrap();
    let gone: Vec<_> = purged.iter().map(|lease| lease.key.as_str()).collect();
    assert_eq!(gone, ["a/over", "c"]);
    assert_eq!(purged[0].holder.token, held[3].token());
    // A purge does not count waiters.
    assert_eq!(before.iter().map(|lease| lease.waiting).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1]);
    let is_listed =
        |lease: &ListedLease| before.iter().any(|listed| (&listed.key, &listed.holder) == (&lease.key, &lease.holder));
    assert!(purged.iter().all(is_listed), "as they were listed: {purged:?}");
    assert_eq!(seal.inspect("c").await.unwrap().unwrap().holders[0].owner.as_str(), "owner-9");
    assert_eq!(keys(seal.leases().with_expired()).await, ["a/1", "a/2", "b/1", "b/2", "c"]);
    assert_eq!(seal.purge().await.unwrap(), [], "nothing is left");
}

/// The holder stays in its record until the minimum hold ends. Then it has expired.
#[tokio::test(start_paused = true)]
async fn a_purge_removes_a_released_minimum_hold_when_it_has_ended_and_not_before() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").min_hold(secs(60)).await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    assert_eq!(seal.purge().await.unwrap(), []);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    tokio::time::sleep(secs(61)).await;
    let purged = seal.purge().await.unwrap();
    assert_eq!(purged.iter().map(|lease| lease.holder.token).collect::<Vec<_>>(), [token]);
    assert!(seal.acquire("k").await.unwrap().token() > token);
}

/// Of one key, in one request.
#[tokio::test(start_paused = true)]
async fn a_purge_removes_the_expired_sharers_of_a_key_and_leaves_the_live_ones() {
    let store = Faulty::new();
    let seal = store.seal();
    for _ in 0..40 {
        forget(seal.acquire("k").shared().ttl(millis(10)).without_refresh().await.unwrap());
    }
    let live = seal.acquire("k").shared().ttl(secs(60)).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    let prunes = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = prunes.clone();
    store.script(move |call| {
        counted.fetch_add(u32::from(matches!(call, Call::Apply(Request::Prune))), std::sync::atomic::Ordering::Relaxed);
        None
    });
    assert_eq!(seal.purge().await.unwrap().len(), 40);
    assert_eq!(prunes.load(std::sync::atomic::Ordering::Relaxed), 1);
    live.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_meets_an_error_says_so_and_can_be_called_again() {
    let (store, seal, _, _held) = various().await;
    for fault in [Fault::Fail, Fault::Hang] {
        store.script(move |call| matches!(call, Call::Apply(Request::Prune)).then_some(fault));
        assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })), "{fault:?}");
    }
    store.script(|call| matches!(call, Call::List).then_some(Fault::Fail));
    assert!(matches!(seal.purge().await, Err(Error::Unavailable { .. })));
    store.heal();
    assert_eq!(seal.purge().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_purge_stops_at_the_record_it_has_come_to() {
    let store = Faulty::new();
    let seal = store.seal();
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
