//! If a reply is lost, the request is sent again, and the lease and its token stay the same.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mongoseal::{Error, FencingToken, Mongoseal, OnceOutcome, ReleaseOutcome, Result, Tick};
use mongoseal_test_support::{ReplicaSet, by_length, eventually};

use crate::{connect, millis, secs};

pub(super) async fn a_swallowed_reply_costs_a_second_send_and_nothing_else() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;
    for round in 0..5 {
        let key = format!("k{round}");
        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        let before = set.command_count(0, "findAndModify").await;
        let lease = seal.acquire(&key).ttl(secs(60)).await.unwrap();
        assert_eq!(hits.count(), 1, "the reply of the first send was lost");
        assert_eq!(set.command_count(0, "findAndModify").await - before, 2, "and it was executed");
        assert!(lease.remaining() > secs(58), "nobody waits for his own lost reply: {:?}", lease.remaining());
        match other.acquire(&key).await.unwrap_err() {
            Error::Held { token, .. } => assert_eq!(token, lease.token(), "one grant, one token"),
            error => panic!("{error}"),
        }

        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        lease.refresh().await.unwrap();
        assert_eq!(hits.count(), 1);

        let hits = set.proxy().swallow_reply("one", "update", 1);
        assert_eq!(
            lease.release().await.unwrap(),
            ReleaseOutcome::Released,
            "the release that was not heard of was ours"
        );
        assert_eq!(hits.count(), 1);
        other.acquire(&key).await.unwrap().release().await.unwrap();
    }
}

pub(super) async fn a_completion_whose_reply_is_lost_is_sent_again_and_its_tick_runs_once() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().owner("one"), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder().owner("two"), set.uri_with("appName=two")).await;
    for (round, waits) in [false, true, false, true].into_iter().enumerate() {
        let key = format!("k{round}");
        let once = |seal: &Mongoseal| seal.once(&key, Tick::number(1)).wait(secs(30));
        let mut lost = None;
        let first = once(&seal).run(async |tick| -> Result<_> {
            if waits {
                // The completion then hands the key over, so that its repetition finds another holder.
                let queued = async || !other.inspect(&key).await.unwrap().unwrap().queue.is_empty();
                eventually(secs(10), "another runner waits", queued).await;
            }
            let before = set.command_count(0, "findAndModify").await;
            lost = Some((set.proxy().swallow_reply("one", "findAndModify", 1), before));
            Ok(tick.token())
        });
        let second = async {
            if waits {
                let begun = async || other.inspect(&key).await.unwrap().is_some();
                eventually(secs(10), "the first runs", begun).await;
                Some(once(&other).run(async |_| -> Result<_> { panic!("the tick runs again") }).await.unwrap())
            } else {
                None
            }
        };
        let (first, second) = tokio::join!(first, second);
        let OnceOutcome::Ran(token) = first.unwrap() else { panic!("the first has run it") };
        let (hits, before) = lost.unwrap();
        assert_eq!(hits.count(), 1, "the reply of the first send was lost");
        assert!(set.command_count(0, "findAndModify").await - before >= 2, "and the request was sent again");
        let second: OnceOutcome<FencingToken> = match second {
            Some(second) => second,
            None => once(&other).run(async |_| -> Result<_> { panic!("the tick runs again") }).await.unwrap(),
        };
        assert!(matches!(&second, OnceOutcome::AlreadyDone { by, .. } if by == "one"), "{second:?}");
        let done = other.inspect(&key).await.unwrap().unwrap().done.unwrap();
        assert_eq!((done.tick, done.token), (1, token));
    }
}

pub(super) async fn a_completion_that_is_not_answered_in_time_says_that_it_is_not_known_and_the_tick_is_done() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(1)), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;
    let once = |seal: &Mongoseal| seal.once("k", Tick::number(1)).wait(secs(30));
    let ended = once(&seal).run(async |_| -> Result<()> {
        set.proxy().swallow_reply("one", "findAndModify update find", 1_000);
        Ok(())
    });
    let error = ended.await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    set.proxy().heal();
    let again = once(&other).run(async |_| -> Result<()> { panic!("the tick runs again") }).await.unwrap();
    assert!(matches!(again, OnceOutcome::AlreadyDone { .. }), "{again:?}");
}

pub(super) async fn one_who_gave_up_leaves_nothing_held_beyond_its_ttl() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(1)), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;

    // All that the caller sends arrives two seconds late: its requests, and the release with which
    // they are taken back, which has given up, too.
    let ghosts = set.proxy().delay("one", "findAndModify update", secs(2));
    let before = set.command_count(0, "findAndModify").await;
    let began = Instant::now();
    let error = seal.acquire("k").ttl(secs(3)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(began.elapsed() < millis(1250), "{:?}", began.elapsed());
    while set.command_count(0, "findAndModify").await == before {
        assert!(began.elapsed() < secs(4), "no ghost was executed");
        tokio::time::sleep(millis(20)).await;
    }
    assert!(ghosts.count() >= 1);

    let freed = async {
        while let Err(error) = other.acquire("k").await {
            assert!(matches!(error, Error::Held { .. }), "{error}");
            tokio::time::sleep(millis(20)).await;
        }
    };
    // The last ghost was sent before the caller gave up and arrives two seconds later.
    let longest = secs(1 + 2 + 3) + millis(500);
    tokio::time::timeout(longest.saturating_sub(began.elapsed()), freed).await.expect("the key is held by nobody");
}

pub(super) async fn a_deadline_is_counted_from_before_the_send() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let hits = set.proxy().delay("one", "findAndModify", millis(800));
    let lease = seal.acquire("k").ttl(secs(20)).without_refresh().await.unwrap();
    assert!(lease.remaining() <= millis(19_200), "{:?}", lease.remaining());
    lease.refresh().await.unwrap();
    assert!(lease.remaining() <= millis(19_200) && lease.remaining() > secs(18), "{:?}", lease.remaining());
    assert!(hits.count() >= 2);
}

pub(super) async fn a_reply_that_comes_after_the_deadline_of_what_it_grants_is_thrown_away() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(3)), set.uri_with("appName=one")).await;
    let hits = set.proxy().delay("one", "findAndModify", millis(700));
    let error = seal.acquire("k").ttl(millis(500)).await.unwrap_err();
    assert!(error.to_string().contains("choose a longer ttl"), "{error}");
    assert!(hits.count() >= 2, "it asked again");
    set.proxy().heal();
    let lease = seal.acquire("k").ttl(millis(500)).await;
    assert!(lease.is_ok() || matches!(lease, Err(Error::Held { .. })), "{lease:?}");
}

pub(super) async fn grants_go_on_while_replies_are_lost_and_sixty_callers_drop_their_acquires() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let (began, grants) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let lasts = by_length(secs(10), secs(20));
    let goes_on = move || began.elapsed() < lasts;
    let callers: Vec<_> = (0..60)
        .map(|_| {
            let (seal, grants) = (seal.clone(), Arc::clone(&grants));
            tokio::spawn(async move {
                while goes_on() {
                    let patience = millis(fastrand::u64(0..300));
                    let acquired = tokio::time::timeout(patience, seal.acquire("k").wait(secs(60))).await;
                    if let Ok(Ok(lease)) = acquired {
                        grants.lock().unwrap().push(began.elapsed());
                        drop(lease.release().await);
                    }
                }
            })
        })
        .collect();
    let mut lost = 0;
    for _ in 0..8 {
        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        tokio::time::sleep(lasts / 10).await;
        lost += hits.count();
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let mut grants = grants.lock().unwrap().clone();
    let count = grants.len();
    grants.insert(0, Duration::ZERO);
    grants.push(lasts);
    let longest = grants.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    println!("{count} grants while {lost} replies were lost, the longest gap is {longest:?}");
    assert!(lost > 4, "{lost} replies were lost");
    // A lost answer holds up the others for half a second.
    assert!(longest < secs(5), "{longest:?}");
}
