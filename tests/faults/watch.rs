//! A watch continues when the primary changes.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use mongodb::bson::doc;
use mongoseal::{
    FencingToken, Mongoseal, ReleaseOutcome,
    inspect::{EventKind, EventStream, WatchItem},
};
use mongoseal_test_support::{How, Peer, ReplicaSet, by_length, eventually};
use tokio::{sync::Barrier, time::timeout};

use crate::{connect, millis, secs};

pub(super) async fn tokens_grow_a_lease_lives_on_and_no_grant_is_left_out_over_step_down_and_kill_of_the_primary() {
    let set = ReplicaSet::start(3).await;
    let handle = async || connect(Mongoseal::builder().operation_timeout(secs(120)), set.uri()).await;
    let (watching, working) = (handle().await, handle().await);
    let streams = watches(&watching).await;
    let kept = working.acquire("kept").ttl(secs(120)).await.unwrap();
    let (count, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let granting = async {
        let mut tokens = Vec::new();
        // Until told, and then one that comes after all.
        while !is_over.load(Ordering::Relaxed) {
            tokens.extend(hold(&working, 1).await);
            count.store(tokens.len(), Ordering::Relaxed);
            // A watch keeps 4,096 changes that are not read yet.
            tokio::time::sleep(millis(100)).await;
        }
        tokens.extend(hold(&working, 1).await);
        tokens
    };
    let some_grants = async || {
        let enough = count.load(Ordering::Relaxed) + 5;
        eventually(secs(120), "grants go on", async || count.load(Ordering::Relaxed) >= enough).await;
    };
    let hurting = async {
        some_grants().await;
        set.step_down().await;
        set.settled().await;
        some_grants().await;
        let killed = set.primary().await;
        set.kill(killed).await;
        some_grants().await;
        set.restart(killed).await;
        set.settled().await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (granted, ()) = tokio::join!(granting, hurting);
    assert!(granted.is_sorted_by(|one, next| one < next), "{granted:?}");
    kept.verify().await.unwrap();
    assert_eq!(kept.release().await.unwrap(), ReleaseOutcome::Released);
    each_grant_is_reported(secs(60), streams, &granted).await;
    watching.shutdown().await;
}

/// The names of the three watches of a test, beside the key `k/watched`.
const WATCHED: [&str; 3] = ["a key", "a prefix", "all keys"];

/// Watches of a key, of a prefix, and of all keys.
async fn watches(seal: &Mongoseal) -> [EventStream; 3] {
    let (key, prefix, all) = tokio::join!(seal.watch("k/watched"), seal.watch_prefix("k/"), seal.watch_prefix(""));
    [key, prefix, all].map(Result::unwrap)
}

/// Acquires and releases the key so often. Returns the tokens.
async fn hold(seal: &Mongoseal, times: usize) -> Vec<FencingToken> {
    let mut tokens = Vec::new();
    for _ in 0..times {
        let lease = seal.acquire("k/watched").wait(secs(60)).await.unwrap();
        tokens.push(lease.token());
        lease.release().await.unwrap();
    }
    tokens
}

/// Each of these grants must be reported in order, each followed by its release, and nothing else, with at most so long between
/// two events.
async fn each_grant_is_reported(longest: Duration, streams: [EventStream; 3], granted: &[FencingToken]) {
    let expected: Vec<_> = granted.iter().flat_map(|token| [(*token, true), (*token, false)]).collect();
    for (mut stream, watched) in streams.into_iter().zip(WATCHED) {
        let mut seen = Vec::new();
        while seen.len() < expected.len()
            && let Ok(Some(item)) = timeout(longest, stream.next()).await
        {
            let WatchItem::Event(event) = item.unwrap() else { panic!("{watched}: events are missing after {seen:?}") };
            // The watch of all keys tells of another one, too.
            if event.key.as_str() != "k/watched" {
                continue;
            }
            assert!(matches!(event.kind, EventKind::Granted { .. } | EventKind::Released), "{watched}: {event:?}");
            seen.push((event.token, matches!(event.kind, EventKind::Granted { .. })));
        }
        assert_eq!(seen, expected, "the watch of {watched}");
    }
}

/// If a resume fails, its resume token must be kept: the next stream would begin at the present.
pub(super) async fn no_event_is_left_out_while_the_watcher_cannot_reach_the_server_for_20_seconds() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let both = Barrier::new(2);
    let cut_off = async |how: How, database: &str| {
        let handle = async |name: &str| {
            connect(Mongoseal::builder().database(database), set.uri_with(&format!("appName={name}"))).await
        };
        let watcher = format!("watching-{database}");
        let (watching, working) = (handle(&watcher).await, handle("working").await);
        let streams = watches(&watching).await;
        let mut granted = hold(&working, 2).await;
        set.proxy().cut_both(&Peer::client(&watcher), &Peer::Member(0), how);
        let cut = Instant::now();
        while cut.elapsed() < secs(20) {
            granted.extend(hold(&working, 1).await);
            tokio::time::sleep(secs(1)).await;
        }
        // The proxy heals both cuts at once.
        if both.wait().await.is_leader() {
            set.proxy().heal();
        }
        both.wait().await;
        granted.extend(hold(&working, 2).await);
        println!("{how:?}:");
        each_grant_is_reported(secs(60), streams, &granted).await;
        watching.shutdown().await;
    };
    tokio::join!(cut_off(How::Reset, "reset"), cut_off(How::Blackhole, "blackhole"));
}

pub(super) async fn no_event_is_left_out_over_kill_and_restart_of_the_only_member() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let builder = || Mongoseal::builder().operation_timeout(secs(120));
    let watching = connect(builder(), set.uri_with("appName=watching")).await;
    let working = connect(builder(), set.uri_with("appName=working")).await;
    let streams = watches(&watching).await;
    let mut granted = hold(&working, 3).await;
    set.kill(0).await;
    // So that the watches connect later than the worker.
    set.proxy().cut_both(&Peer::client("watching"), &Peer::Member(0), How::Reset);
    set.restart(0).await;
    granted.extend(hold(&working, by_length(10, 30)).await);
    set.proxy().heal();
    each_grant_is_reported(secs(60), streams, &granted).await;
    watching.shutdown().await;
}

/// A server that is no longer the primary ends its streams with one of these codes.
pub(super) async fn a_stream_that_an_election_ends_is_opened_again_where_it_was() {
    let set = ReplicaSet::builder().members(1).start().await;
    let working = connect(Mongoseal::builder(), set.uri()).await;
    for code in [189, 11600, 11602, 10107] {
        let watching = connect(Mongoseal::builder(), set.uri_with(&format!("appName=ended{code}"))).await;
        let streams = watches(&watching).await;
        let mut granted = hold(&working, 2).await;
        let error = doc! { "errorCode": code, "errmsg": "this member is no longer the primary" };
        // More than the driver resumes by itself.
        let ended = set.fail_command(&format!("ended{code}"), &["getMore", "aggregate"], error, 6).await;
        granted.extend(hold(&working, 2).await);
        ended.hit(6).await;
        ended.off().await;
        granted.extend(hold(&working, 2).await);
        each_grant_is_reported(secs(60), streams, &granted).await;
        watching.shutdown().await;
    }
}

/// The server says that the history is gone: once in the open stream, and twice at the resume. The three watches share what
/// the codes come to, so each code is met by one of them.
pub(super) async fn lost_history_is_reported_as_missed_and_followed_by_what_has_changed() {
    let set = ReplicaSet::builder().members(1).start().await;
    let working = connect(Mongoseal::builder(), set.uri()).await;
    // The last one is a code of no meaning, with the label of older servers.
    for (number, code) in [136, 260, 280, 286, 10334, 2].into_iter().enumerate() {
        let watched = WATCHED[number % 3];
        let app = format!("lost{code}");
        let watching = connect(Mongoseal::builder(), set.uri_with(&format!("appName={app}"))).await;
        let ended = working.acquire("k/watched").ttl(secs(60)).await.unwrap();
        // One watch at a time: the fail point counts commands, and one stream could use up the errors of another.
        let mut stream = match watched {
            "a key" => watching.watch("k/watched").await.unwrap(),
            "a prefix" => watching.watch_prefix("k/").await.unwrap(),
            _ => watching.watch_prefix("").await.unwrap(),
        };
        let mut error = doc! { "errorCode": code, "errmsg": "the history is gone" };
        if code == 2 {
            error.insert("errorLabels", vec!["NonResumableChangeStreamError"]);
        }
        let lost = set.fail_command(&app, &["getMore", "aggregate"], error, 3).await;
        lost.hit(2).await;
        let token = ended.token();
        ended.release().await.unwrap();
        // The watch does not see this one.
        hold(&working, 1).await;
        let lease = working.acquire("k/watched").ttl(secs(60)).await.unwrap();
        lost.hit(3).await;
        lost.off().await;
        let (mut seen, mut missed) = (Vec::new(), 0);
        while !seen.contains(&("granted", lease.token())) {
            let item = timeout(secs(60), stream.next()).await.expect("it is reported").expect("it goes on");
            match item.unwrap() {
                WatchItem::Missed { since, until } => {
                    assert!(since <= until, "{watched}: {since:?} to {until:?}");
                    missed += 1;
                }
                WatchItem::Event(event) => match event.kind {
                    EventKind::Holds { .. } => seen.push(("holds", event.token)),
                    EventKind::Granted { .. } => seen.push(("granted", event.token)),
                    EventKind::Released => seen.push(("released", event.token)),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
        assert!(missed > 0, "{watched}: the lost history is not reported as missed: {seen:?}");
        assert_eq!(&seen[..2], &[("holds", token), ("released", token)], "{watched}, code {code}");
        lease.release().await.unwrap();
        watching.shutdown().await;
    }
}

/// The proxy holds a request of the stream for good, and answers nothing. Later requests of the handle pass.
pub(super) async fn a_stream_that_is_silent_for_20_seconds_is_opened_again_where_it_was() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let watching = connect(Mongoseal::builder(), set.uri_with("appName=watching")).await;
    let working = connect(Mongoseal::builder(), set.uri_with("appName=working")).await;
    let streams = watches(&watching).await;
    let mut granted = hold(&working, 2).await;
    let held = set.proxy().delay("watching", "getMore", secs(3600));
    eventually(secs(60), "a request of the stream is held", async || held.count() >= 1).await;
    let since = Instant::now();
    // The proxy still holds that request, and delays no other.
    set.proxy().heal();
    granted.extend(hold(&working, 2).await);
    each_grant_is_reported(secs(40), streams, &granted).await;
    let silent = since.elapsed();
    println!("all events were reported {silent:?} after the request that is held");
    assert!(silent > secs(15), "the request that is held cannot have been that of the stream: {silent:?}");
    watching.shutdown().await;
}
