//! Watching what happens to a key.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_core::Stream;
use mongoseal::{
    Deadline, Error, Event, EventKind, EventStream, FencingToken, LeaseId, Mongoseal, Sharing, WatchItem,
    store::{Snapshot, Store},
};
use tokio::time::{Instant, timeout};

use crate::faulty::{Call, Fault, Faulty};
use crate::{GRACE, millis, secs};

/// The next event, which comes within a minute.
pub(crate) async fn next(events: &mut EventStream) -> Event {
    let item = timeout(secs(60), events.next()).await.expect("it comes within a minute").expect("it goes on").unwrap();
    item.into_event().expect("no event is missing")
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

fn is_granted(event: &Event, token: FencingToken) -> bool {
    event.token == token && matches!(&event.kind, EventKind::Granted { holding } if holding.token == token)
}

#[tokio::test(start_paused = true)]
async fn it_begins_with_who_holds_the_key_and_goes_on_with_what_happens() {
    let seal = Mongoseal::in_memory();
    let first = seal.acquire("k").metadata("job", "7").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    let event = next(&mut events).await;
    assert_eq!((event.token, &event.owner), (first.token(), seal.owner()));
    let EventKind::Holds { holding } = event.kind else { panic!("{event:?}") };
    assert_eq!(
        (holding.token, holding.sharing, holding.metadata.get("job")),
        (first.token(), Sharing::Exclusive, Some("7"))
    );
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    let _beside = seal.acquire("k/beside").await.unwrap();
    nothing(&mut events, 30).await;
    let token = first.token();
    first.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    let event = next(&mut events).await;
    assert_eq!((event.token, &event.kind), (token, &EventKind::Released));
    assert!(is_granted(&next(&mut events).await, second.token()));
    nothing(&mut events, 600).await;
}

#[tokio::test(start_paused = true)]
async fn every_grant_of_a_fast_chain_is_told_in_order_and_followed_by_its_end() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    let chain = (0..30).map(|_| {
        let seal = seal.clone();
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                let lease = seal.acquire("k").wait(secs(600)).await.unwrap();
                tokens.push(lease.token());
                lease.release().await.unwrap();
            }
            tokens
        })
    });
    let mut granted = Vec::new();
    for one in chain.collect::<Vec<_>>() {
        granted.extend(one.await.unwrap());
    }
    granted.sort_unstable();
    // All of it has happened before any of it is read.
    for token in granted {
        let event = next(&mut events).await;
        assert!(is_granted(&event, token), "{event:?} and not {token}");
        let event = next(&mut events).await;
        assert_eq!((event.token, event.kind), (token, EventKind::Released));
    }
    nothing(&mut events, 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_told_when_it_comes_and_once() {
    for polled in [false, true] {
        let store = Faulty::new();
        if polled {
            store.script(|call| matches!(call, Call::Follow).then_some(Fault::Refuse));
        }
        let seal = store.seal();
        let mut events = seal.watch("k").await.unwrap();
        let lease = seal.acquire("k").ttl(secs(10)).without_refresh().await.unwrap();
        let began = Instant::now();
        assert!(is_granted(&next(&mut events).await, lease.token()));
        let event = next(&mut events).await;
        assert_eq!((event.token, &event.kind), (lease.token(), &EventKind::Expired));
        let took = began.elapsed();
        assert!(took >= secs(10) + GRACE && took < millis(10_050) + GRACE, "{took:?}");
        // It is still in the record, and dropped from there by the next grant.
        let Some(Snapshot { record, .. }) =
            store.records.read(lease.key(), Deadline::after(store.records.clock(), secs(1))).await.unwrap()
        else {
            panic!()
        };
        assert_eq!(record.holders[0].expires_at, event.at);
        nothing(&mut events, 100).await;
        let second = seal.acquire("k").await.unwrap();
        assert!(is_granted(&next(&mut events).await, second.token()));
        nothing(&mut events, 100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_holders_each_expires_in_its_time_and_one_without_expiry_does_not() {
    let seal = Mongoseal::in_memory();
    let mut tokens = Vec::new();
    let mut leases = Vec::new();
    for ttl in [30, 20, 10] {
        let lease = seal.acquire("k").shared().ttl(secs(ttl)).without_refresh().await.unwrap();
        tokens.insert(0, lease.token());
        leases.push(lease);
    }
    let forever = seal.acquire("k").shared().without_expiry().await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    for _ in 0..4 {
        assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    }
    for token in tokens {
        let event = next(&mut events).await;
        assert_eq!((event.token, event.kind), (token, EventKind::Expired));
    }
    nothing(&mut events, 3600).await;
    seal.revoke("k").by("alice").reason("stuck").await.unwrap();
    let event = next(&mut events).await;
    assert_eq!(event.token, forever.token());
    assert_eq!(event.kind, EventKind::Revoked { by: "alice".into(), reason: "stuck".into() });
}

#[tokio::test(start_paused = true)]
async fn who_is_over_when_it_begins_is_nobody() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").ttl(secs(10)).without_refresh().await.unwrap();
    tokio::time::sleep(secs(11)).await;
    let mut events = seal.watch("k").await.unwrap();
    drop(lease);
    let next_lease = seal.acquire("k").await.unwrap();
    assert!(is_granted(&next(&mut events).await, next_lease.token()));
}

#[tokio::test(start_paused = true)]
async fn a_transfer_tells_both_tokens() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let (old, id) = (lease.token(), LeaseId::random());
    lease.transfer(id).await.unwrap();
    assert!(is_granted(&next(&mut events).await, old));
    let event = next(&mut events).await;
    let EventKind::Transferred { to } = event.kind else { panic!("{event:?}") };
    assert!(event.token == old && to.token > old);
    let taken_up = seal.resume("k", id, to.token).await.unwrap();
    nothing(&mut events, 60).await;
    taken_up.release().await.unwrap();
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (to.token, EventKind::Released));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_record_and_one_that_was_put_back_are_told() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    let Some(Snapshot { record: copy, .. }) =
        store.records.read(lease.key(), Deadline::after(store.records.clock(), secs(1))).await.unwrap()
    else {
        panic!()
    };
    store.records.remove(lease.key());
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (lease.token(), EventKind::Removed));
    let second = seal.acquire("k").await.unwrap();
    assert!(is_granted(&next(&mut events).await, second.token()));
    store.records.restore(lease.key().clone(), *copy);
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (second.token(), EventKind::Removed));
    let event = next(&mut events).await;
    assert!(event.token == lease.token() && matches!(event.kind, EventKind::Holds { .. }));
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
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (token, EventKind::Released));
    assert!(is_granted(&next(&mut events).await, second.token()));
    nothing(&mut events, 100).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_at_once_each_time_is_taken_up_ever_less_often() {
    let store = Faulty::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    store.script(move |call| match call {
        Call::Follow => {
            counted.fetch_add(1, Ordering::Relaxed);
            Some(Fault::Delay(millis(1)))
        }
        _ => None,
    });
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
    let end = Instant::now() + secs(60);
    let mut interrupted = 0;
    while tokio::time::timeout_at(end, missed(&mut events)).await.is_ok() {
        interrupted += 1;
    }
    let asked = calls.load(Ordering::Relaxed);
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
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (lease.token(), EventKind::Expired));
    nothing(&mut events, 100).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_hears_nothing_any_more_without_an_error_is_begun_anew() {
    let store = Faulty::new();
    let mut calls = 0;
    store.script(move |call| match call {
        Call::Follow => {
            calls += 1;
            (calls == 1).then_some(Fault::Stale)
        }
        _ => None,
    });
    let seal = store.seal();
    let lease = seal.acquire("k").ttl(secs(10)).await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    // Kept alive, so it is not over when its first time is. A store may need minutes to go on where it was.
    nothing(&mut events, 600).await;
    missed(&mut events).await;
    let began = Instant::now();
    seal.revoke("k").by("alice").reason("drill").await.unwrap();
    let event = next(&mut events).await;
    assert_eq!(event.token, lease.token());
    assert_eq!(event.kind, EventKind::Revoked { by: "alice".into(), reason: "drill".into() });
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn where_nobody_tells_the_record_is_polled() {
    let store = Faulty::new();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    store.script(move |call| match call {
        Call::Follow => Some(Fault::Refuse),
        Call::Read => {
            counted.fetch_add(1, Ordering::Relaxed);
            None
        }
        _ => None,
    });
    let seal = store.seal();
    let mut events = seal.watch("k").await.unwrap();
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
    // It does not ask all the time, and not once nobody listens.
    let before = reads.load(Ordering::Relaxed);
    tokio::time::sleep(secs(100)).await;
    let asked = reads.load(Ordering::Relaxed) - before;
    assert!((100..=210).contains(&asked), "{asked} in 100 seconds");
    drop(events);
    tokio::time::sleep(millis(1)).await;
    let before = reads.load(Ordering::Relaxed);
    tokio::time::sleep(secs(100)).await;
    assert_eq!(reads.load(Ordering::Relaxed), before);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_when_it_begins_is_unavailable_within_the_operation_timeout() {
    for fault in [Fault::Fail, Fault::Hang] {
        let store = Faulty::new();
        store.always(fault);
        let seal = store.seal();
        let began = Instant::now();
        assert!(matches!(seal.watch("k").await, Err(Error::Unavailable { .. })));
        assert!(began.elapsed() <= secs(10), "{:?}", began.elapsed());
        store.heal();
        drop(seal.watch("k").await.unwrap());
    }
    let store = Faulty::new();
    store.always(Fault::Refuse);
    assert!(matches!(store.seal().watch("k").await, Err(Error::Invalid { .. })));
    assert!(matches!(Faulty::new().seal().watch("").await, Err(Error::Invalid { .. })));
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
async fn it_is_a_stream_too() {
    let seal = Mongoseal::in_memory();
    let mut events = seal.watch("k").await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let mut pinned = std::pin::Pin::new(&mut events);
    let event = std::future::poll_fn(|context| pinned.as_mut().poll_next(context)).await;
    assert!(is_granted(&event.unwrap().unwrap().into_event().unwrap(), lease.token()));
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
    let event = next(&mut events).await;
    assert_eq!((event.token, event.kind), (token, EventKind::Released));
    nothing(&mut events, 100).await;
}
