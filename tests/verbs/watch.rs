//! Watching what happens to a key.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_core::Stream;
use mongoseal::{
    Error, FencingToken, Mongoseal, Result,
    inspect::{Event, EventKind, EventStream, WatchItem},
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

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
async fn watch(seal: &Mongoseal, is_prefix: bool) -> Result<EventStream> {
    if is_prefix { seal.watch_prefix("").await } else { seal.watch("k").await }
}

fn is_granted(event: &Event, token: FencingToken) -> bool {
    event.token == token && matches!(&event.kind, EventKind::Granted { holding } if holding.token == token)
}

#[tokio::test(start_paused = true)]
async fn every_grant_of_a_fast_chain_is_told_in_order_and_followed_by_its_end() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    let mut chain = JoinSet::new();
    for _ in 0..30 {
        let seal = seal.clone();
        chain.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                let lease = seal.acquire("k").wait(secs(600)).await.unwrap();
                tokens.push(lease.token());
                lease.release().await.unwrap();
            }
            tokens
        });
    }
    let mut granted = chain.join_all().await.concat();
    granted.sort_unstable();
    // All of it has happened before any of it is read.
    for token in granted {
        assert!(is_granted(&next(&mut events).await, token), "not {token}");
        assert_eq!(told(&mut events).await, (token, EventKind::Released));
    }
    nothing(&mut events, 1).await;
}

#[tokio::test(start_paused = true)]
async fn of_several_holders_each_expires_in_its_time_and_one_without_expiry_does_not() {
    let seal = Mongoseal::in_memory();
    let mut tokens = Vec::new();
    for ttl in [30, 20, 10] {
        let lease = seal.acquire("k").shared().ttl(secs(ttl)).await.unwrap();
        tokens.insert(0, lease.token());
        lease.orphan();
    }
    let forever = seal.acquire("k").shared().without_expiry().await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    for _ in 0..4 {
        assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    }
    for token in tokens {
        assert_eq!(told(&mut events).await, (token, EventKind::Expired));
    }
    nothing(&mut events, 3600).await;
    seal.revoke("k").by("alice").reason("stuck").await.unwrap();
    let revoked = EventKind::Revoked { by: "alice".into(), reason: "stuck".into() };
    assert_eq!(told(&mut events).await, (forever.token(), revoked));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_goes_on_and_tells_nothing_twice() {
    let store = Faulty::new();
    // It breaks off after 5 seconds, and then fails for a while.
    store.follow_by(|call| match call {
        1 => Some(Fault::Delay(secs(5))),
        2..7 => Some(Fault::Fail),
        7 => Some(Fault::LoseReply),
        _ => None,
    });
    let seal = store.seal();
    let first = seal.acquire("k").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    tokio::time::sleep(millis(5_100)).await;
    let token = first.token();
    first.release().await.unwrap();
    let second = seal.acquire("k").await.unwrap();
    missed(&mut events).await;
    assert_eq!(told(&mut events).await, (token, EventKind::Released));
    assert!(is_granted(&next(&mut events).await, second.token()));
    nothing(&mut events, 100).await;
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
    let event = loop {
        let item = timeout(secs(60), events.next()).await.unwrap().unwrap().unwrap();
        if let Some(event) = item.into_event() {
            break event;
        }
    };
    assert!(is_granted(&event, lease.token()));
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
        tokio::time::sleep(secs(10)).await;
        let began = Instant::now();
        seal.revoke("k").by("alice").reason("drill").await.unwrap();
        assert_eq!(next(&mut events).await.kind, EventKind::Revoked { by: "alice".into(), reason: "drill".into() });
        assert!(began.elapsed() <= millis(1_050), "{:?}", began.elapsed());
        tokio::time::sleep(secs(10)).await;
        let polls = asked_in_100_s().await;
        assert!((100..=210).contains(&polls), "{polls} in 100 seconds");
        drop(events);
        tokio::time::sleep(millis(1)).await;
        assert_eq!(asked_in_100_s().await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_begin_is_an_error_of_the_call_within_the_operation_timeout() {
    for is_prefix in [false, true] {
        let (store, seal) = Faulty::open();
        for fault in [Fault::Fail, Fault::Hang] {
            store.always(fault);
            let began = Instant::now();
            assert!(matches!(watch(&seal, is_prefix).await, Err(Error::Unavailable { .. })));
            assert!(began.elapsed() <= secs(10), "{:?}", began.elapsed());
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
    let (mut told, mut last) = (0, None);
    while let Some(event) = events.next().await {
        match event {
            Ok(_) => told += 1,
            Err(error) => last = Some(error),
        }
    }
    assert!(told >= 64, "{told}");
    assert!(last.is_some_and(|last| last.to_string().contains("shut down")));
    assert!(matches!(seal.watch("k").await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_failed_is_reported_as_missed_and_one_that_did_not_is_not() {
    let store = Faulty::new();
    let refused = |call: &Call<'_>| matches!(call, Call::Follow).then_some(Fault::Refuse);
    store.script(move |call| refused(&call));
    let seal = store.seal();
    // Whether the record is there or not.
    for _ in 0..2 {
        let mut events = seal.watch("k").await.unwrap();
        while let Ok(first) = timeout(secs(10), events.next()).await {
            assert!(
                matches!(first, Some(Ok(WatchItem::Event(Event { kind: EventKind::Holds { .. }, .. })))),
                "{first:?}"
            );
        }
        store.script(move |call| refused(&call).or_else(|| matches!(call, Call::Read).then_some(Fault::Fail)));
        nothing(&mut events, 60).await;
        store.script(move |call| refused(&call));
        let item = timeout(secs(2), events.next()).await.unwrap().unwrap().unwrap();
        let WatchItem::Missed { since, until } = item else { panic!("{item:?}") };
        let missing = until.since(since);
        assert!(missing >= secs(60) && missing < secs(63), "{missing:?}");
        let lease = seal.acquire("k").shared().ttl(secs(3600)).await.unwrap();
        assert!(is_granted(&next(&mut events).await, lease.token()));
        lease.orphan();
    }
}

/// A snapshot that is cut off has not been reported, and so it is not forgotten.
#[tokio::test(start_paused = true)]
async fn what_a_broken_snapshot_has_shown_is_reported_behind_what_was_missed() {
    let store = Faulty::new();
    store.follow_by(|call| match call {
        1 => Some(Fault::Delay(secs(5))),
        2..5 => Some(Fault::LoseTail),
        _ => None,
    });
    let seal = store.seal();
    let lease = seal.acquire("k").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    tokio::time::sleep(millis(5_001)).await;
    let token = lease.token();
    lease.release().await.unwrap();
    missed(&mut events).await;
    assert_eq!(told(&mut events).await, (token, EventKind::Released));
    nothing(&mut events, 100).await;
}
