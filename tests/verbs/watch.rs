//! Watching what happens to a key.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::Stream;
use mongoseal::{
    Error, FencingToken, Mongoseal, Result,
    inspect::{Event, EventKind, EventStream, WatchItem},
};
use tokio::time::{Instant, timeout};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Runs a script from now on, which says whether to count a call and what goes wrong with it. Returns the count.
pub(crate) fn count(
    store: &Faulty,
    mut script: impl FnMut(&Call<'_>) -> (bool, Option<Fault>) + Send + 'static,
) -> impl Fn() -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    store.script(move |call| {
        let (is_counted, fault) = script(&call);
        counted.fetch_add(usize::from(is_counted), Ordering::Relaxed);
        fault
    });
    move || calls.load(Ordering::Relaxed)
}

/// The next event of the stream, which comes within a minute.
pub(crate) async fn next(events: &mut EventStream) -> Event {
    let next = poll_fn(|context| Pin::new(&mut *events).poll_next(context));
    let item = timeout(secs(60), next).await.expect("it comes within a minute").expect("it goes on").unwrap();
    item.into_event().expect("no event is missing")
}

/// The token and the kind of the next event.
async fn told(events: &mut EventStream) -> (FencingToken, EventKind) {
    let event = next(events).await;
    (event.token, event.kind)
}

/// The next item, which must be that events are missing.
pub(crate) async fn missed(events: &mut EventStream) {
    let item = timeout(secs(60), events.next()).await.expect("it comes within a minute").expect("it goes on").unwrap();
    assert!(matches!(item, WatchItem::Missed { since, until } if since <= until), "{item:?}");
}

/// That nothing happens for so many seconds.
pub(crate) async fn nothing(events: &mut EventStream, seconds: u64) {
    let told = timeout(secs(seconds), events.next()).await;
    assert!(told.is_err(), "{told:?}");
}

/// Watches a key, or each key.
pub(crate) async fn watch(seal: &Mongoseal, is_prefix: bool) -> Result<EventStream> {
    if is_prefix { seal.watch_prefix("").await } else { seal.watch("k").await }
}

fn is_granted(event: &Event, token: FencingToken) -> bool {
    event.token == token && matches!(&event.kind, EventKind::Granted { holding } if holding.token == token)
}

#[tokio::test(start_paused = true)]
async fn every_grant_is_told_in_order_and_followed_by_its_end_though_nobody_reads_meanwhile() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    let mut granted = Vec::new();
    for _ in 0..300 {
        let lease = seal.acquire("k").await.unwrap();
        granted.push(lease.token());
        lease.release().await.unwrap();
    }
    for token in granted {
        assert!(is_granted(&next(&mut events).await, token), "not {token}");
        assert_eq!(told(&mut events).await, (token, EventKind::Released));
    }
    nothing(&mut events, 1).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_goes_on_and_tells_nothing_twice_and_all_behind_what_was_missed() {
    // It breaks off after 5 seconds, and then fails for a while. A snapshot that is cut off is not forgotten.
    for (fault, last) in [(Fault::Fail, Some(Fault::LoseReply)), (Fault::LoseTail, None)] {
        let store = Faulty::new();
        store.follow_by(move |call| match call {
            1 => Some(Fault::Delay(secs(5))),
            2..5 => Some(fault),
            5 => last,
            _ => None,
        });
        let seal = store.seal();
        let first = seal.acquire("k").await.unwrap();
        let mut events = seal.watch("k").await.unwrap();
        assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
        tokio::time::sleep(millis(5_001)).await;
        let token = first.token();
        first.release().await.unwrap();
        let second = seal.acquire("k").await.unwrap();
        missed(&mut events).await;
        assert_eq!(told(&mut events).await, (token, EventKind::Released));
        assert!(is_granted(&next(&mut events).await, second.token()));
        nothing(&mut events, 100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_at_once_each_time_is_taken_up_ever_less_often() {
    let store = Faulty::new();
    let calls = count(&store, |call| {
        let is_follow = matches!(call, Call::Follow);
        (is_follow, is_follow.then_some(Fault::Delay(millis(1))))
    });
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
    let end = Instant::now() + secs(60);
    let mut interrupted = 0;
    while tokio::time::timeout_at(end, missed(&mut events)).await.is_ok() {
        interrupted += 1;
    }
    let asked = calls();
    assert!((60..=250).contains(&asked), "{asked} in 60 seconds");
    assert!(interrupted + 2 >= asked, "each interruption is reported: {interrupted} of {asked}");
    let lease = seal.acquire("k").await.unwrap();
    loop {
        let item = timeout(secs(60), events.next()).await.unwrap().unwrap().unwrap();
        if let Some(event) = item.into_event() {
            return assert!(is_granted(&event, lease.token()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_not_told_before_what_was_before_it() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Follow).then_some(Fault::DelayReply(secs(3))));
    let seal = store.seal();
    let lease = seal.acquire("k").shared().ttl(secs(10)).without_refresh().await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    // To be heard of at 11 seconds: somebody waits and goes away.
    tokio::time::sleep(secs(8)).await;
    assert!(matches!(seal.acquire("k").wait(millis(100)).await, Err(Error::Held { .. })));
    nothing(&mut events, 2).await;
    assert_eq!(told(&mut events).await, (lease.token(), EventKind::Expired));
    nothing(&mut events, 100).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_hears_nothing_any_more_without_an_error_is_begun_anew() {
    for is_prefix in [false, true] {
        let store = Faulty::new();
        store.first(1, |call| matches!(call, Call::Follow), Fault::Stale);
        let seal = store.seal();
        let lease = seal.acquire("k").ttl(secs(10)).await.unwrap();
        let mut events = watch(&seal, is_prefix).await.unwrap();
        assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
        // Kept alive, so it is not over when its first time is. A store may need minutes to go on where it was.
        nothing(&mut events, 600).await;
        missed(&mut events).await;
        let began = Instant::now();
        seal.revoke("k").await.unwrap();
        let event = next(&mut events).await;
        assert!(event.token == lease.token() && matches!(event.kind, EventKind::Revoked { .. }), "{event:?}");
        assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_tells_the_records_are_polled_once_a_second_and_not_once_nobody_listens() {
    for is_prefix in [false, true] {
        let store = Faulty::new();
        let asked = count(&store, move |call| {
            let is_poll = if is_prefix { matches!(call, Call::List) } else { matches!(call, Call::Read) };
            (is_poll, matches!(call, Call::Follow).then_some(Fault::Refuse))
        });
        let asked_in_100_s = async || {
            let before = asked();
            tokio::time::sleep(secs(100)).await;
            asked() - before
        };
        let seal = store.seal();
        let mut events = watch(&seal, is_prefix).await.unwrap();
        tokio::time::sleep(secs(10)).await;
        let lease = seal.acquire("k").await.unwrap();
        let began = Instant::now();
        assert!(is_granted(&next(&mut events).await, lease.token()));
        assert!(began.elapsed() <= millis(1_050), "{:?}", began.elapsed());
        let polls = asked_in_100_s().await;
        assert!((100..=210).contains(&polls), "{polls} in 100 seconds");
        let began = Instant::now();
        seal.revoke("k").by("alice").reason("drill").await.unwrap();
        assert_eq!(next(&mut events).await.kind, EventKind::Revoked { by: "alice".into(), reason: "drill".into() });
        assert!(began.elapsed() <= millis(1_050), "{:?}", began.elapsed());
        drop(events);
        tokio::time::sleep(millis(1)).await;
        assert_eq!(asked_in_100_s().await, 0);
    }
}

/// That it is one within the operation timeout is a row of `slow`.
#[tokio::test(start_paused = true)]
async fn one_that_cannot_begin_is_an_error_of_the_call() {
    for is_prefix in [false, true] {
        let (store, seal) = Faulty::open();
        for fault in [Fault::Fail, Fault::Hang] {
            store.always(fault);
            assert!(matches!(watch(&seal, is_prefix).await, Err(Error::Unavailable { .. })));
            store.heal();
            drop(watch(&seal, is_prefix).await.unwrap());
        }
        store.always(Fault::Refuse);
        assert!(matches!(watch(&seal, is_prefix).await, Err(Error::Invalid { .. })));
    }
    let seal = Mongoseal::in_memory();
    assert!(matches!(seal.watch("").await, Err(Error::Invalid { .. })));
    for prefix in ["a\0".to_owned(), "k".repeat(2_000)] {
        assert!(matches!(seal.watch_prefix(prefix).await, Err(Error::Invalid { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn away_for_an_hour_is_not_the_end_and_an_error_that_stays_is() {
    let store = Faulty::new();
    let follow = |fault| move |call: Call<'_>| matches!(call, Call::Follow | Call::Read).then_some(fault);
    store.script(follow(Fault::Delay(secs(1))));
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
    store.script(follow(Fault::Fail));
    nothing(&mut events, 3600).await;
    store.heal();
    let lease = seal.acquire("k").await.unwrap();
    missed(&mut events).await;
    assert!(is_granted(&next(&mut events).await, lease.token()));

    store.script(follow(Fault::Delay(secs(1))));
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    store.script(follow(Fault::Refuse));
    let last = timeout(secs(60), events.next()).await.unwrap();
    assert!(matches!(last, Some(Err(Error::Invalid { .. }))), "{last:?}");
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_it_after_what_was_told_and_waits_for_no_reader() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let mut events = seal.watch("k").await.unwrap();
    for _ in 0..100 {
        other.acquire("k").await.unwrap().release().await.unwrap();
    }
    tokio::time::sleep(millis(1)).await;
    let began = Instant::now();
    seal.shutdown().await;
    assert!(began.elapsed() < millis(1));
    let mut told = 0;
    let last = loop {
        match events.next().await.expect("it ends with an error") {
            Ok(_) => told += 1,
            Err(error) => break error,
        }
    };
    assert!(told >= 64 && last.to_string().contains("shut down"), "{told}, {last}");
    assert!(events.next().await.is_none());
    assert!(matches!(seal.watch("k").await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_failed_is_reported_as_missed_and_one_that_did_not_is_not() {
    let store = Faulty::new();
    let polls = |reads: Option<Fault>| {
        store.script(move |call| match call {
            Call::Follow => Some(Fault::Refuse),
            Call::Read => reads,
            _ => None,
        });
    };
    polls(None);
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
    // Whether the record is there or not.
    for _ in 0..2 {
        nothing(&mut events, 10).await;
        polls(Some(Fault::Fail));
        nothing(&mut events, 60).await;
        polls(None);
        let item = timeout(secs(2), events.next()).await.unwrap().unwrap().unwrap();
        let WatchItem::Missed { since, until } = item else { panic!("{item:?}") };
        let missing = until.since(since);
        assert!(missing >= secs(60) && missing < secs(63), "{missing:?}");
        let lease = seal.acquire("k").shared().ttl(secs(3600)).await.unwrap();
        assert!(is_granted(&next(&mut events).await, lease.token()));
        lease.orphan();
    }
}
