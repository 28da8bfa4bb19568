//! A watch continues when the primary changes.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::{
    FencingToken, Mongoseal,
    inspect::{EventKind, EventStream, WatchItem},
};
use mongoseal_test_support::{How, Peer, ReplicaSet, by_length, eventually};
use tokio::{sync::Barrier, time::timeout};

use crate::{connect, secs};

pub(super) async fn no_grant_is_left_out_over_step_down_and_kill_of_the_primary() {
    let set = ReplicaSet::start(3).await;
    let builder = || Mongoseal::builder().operation_timeout(secs(120));
    let (watching, working) = (connect(builder(), set.uri()).await, connect(builder(), set.uri()).await);
    let mut stream = watching.watch("k").await.unwrap();
    // Read as they come: a watch keeps 4,096 changes that are not read yet, and a fast machine makes more.
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        while let Some(event) = stream.next().await
            && told.send(event).is_ok()
        {}
    });
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let (granting, grants) = tokio::sync::watch::channel(0_usize);
    let worker = tokio::spawn({
        let mut end = end;
        async move {
            let mut tokens = Vec::new();
            // Until told, and then one that comes after all.
            loop {
                let last = end.try_recv().is_ok();
                let lease = working.acquire("k").ttl(secs(60)).wait(secs(60)).await.unwrap();
                tokens.push(lease.token());
                granting.send_replace(tokens.len());
                lease.release().await.unwrap();
                if last {
                    return tokens;
                }
            }
        }
    });
    let some_grants = async || {
        let enough = *grants.borrow() + 5;
        eventually(secs(120), "grants go on", async || *grants.borrow() >= enough).await;
    };
    some_grants().await;
    set.step_down().await;
    set.settled().await;
    some_grants().await;
    let killed = set.primary().await;
    set.kill(killed).await;
    some_grants().await;
    set.restart(killed).await;
    set.settled().await;
    ended.send(()).unwrap();
    let granted = worker.await.unwrap();
    let mut told = Vec::new();
    while told.last() != granted.last() {
        let item = timeout(secs(60), events.recv()).await.expect("it is told").expect("it goes on").unwrap();
        let WatchItem::Event(event) = item else { panic!("{item:?}") };
        match event.kind {
            EventKind::Granted { .. } => told.push(event.token),
            // An acquire whose answer was lost is asked for again: it has its token already.
            EventKind::Released => assert_eq!(Some(&event.token), told.last()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, granted);
    watching.shutdown().await;
    reader.abort();
}

/// The names of the three watches of a test, beside the key `k/watched`.
const WATCHED: [&str; 3] = ["a key", "a prefix", "all keys"];

/// Watches of a key, of a prefix, and of all keys.
async fn watches(seal: &Mongoseal) -> [EventStream; 3] {
    [
        seal.watch("k/watched").await.unwrap(),
        seal.watch_prefix("k/").await.unwrap(),
        seal.watch_prefix("").await.unwrap(),
    ]
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

/// Each of these grants must be reported in order, each followed by its release, and nothing else.
async fn each_grant_is_reported(streams: [EventStream; 3], granted: &[FencingToken]) {
    each_grant_is_reported_within(secs(60), streams, granted).await;
}

/// The same, with the longest time between two events.
async fn each_grant_is_reported_within(longest: Duration, streams: [EventStream; 3], granted: &[FencingToken]) {
    let mut findings = Vec::new();
    for (mut stream, watched) in streams.into_iter().zip(WATCHED) {
        let mut missing = 0;
        let mut unexpected = Vec::new();
        let mut expected = granted.iter().flat_map(|token| [(*token, true), (*token, false)]);
        while let Ok(Some(item)) = timeout(longest, stream.next()).await {
            match item.unwrap() {
                WatchItem::Event(event) => {
                    let seen = (event.token, matches!(event.kind, EventKind::Granted { .. }));
                    let skipped = expected.clone().position(|one| one == seen);
                    match skipped {
                        Some(skipped) => {
                            missing += skipped;
                            expected.nth(skipped);
                        }
                        None => unexpected.push(format!("{event:?}")),
                    }
                }
                missed => unexpected.push(format!("{missed:?}")),
            }
            if expected.clone().next().is_none() {
                break;
            }
        }
        missing += expected.count();
        println!("{watched}: {missing} of {} events are missing, unexpected: {unexpected:?}", granted.len() * 2);
        if missing > 0 || !unexpected.is_empty() {
            findings.push(watched);
        }
    }
    assert!(findings.is_empty(), "events are missing from the watch of {findings:?}");
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
        each_grant_is_reported(streams, &granted).await;
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
    each_grant_is_reported(streams, &granted).await;
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
        each_grant_is_reported(streams, &granted).await;
        watching.shutdown().await;
    }
}

/// The server says that the history is gone: once in the open stream, and twice at the resume.
pub(super) async fn lost_history_is_reported_as_missed_and_followed_by_what_has_changed() {
    let set = ReplicaSet::builder().members(1).start().await;
    let working = connect(Mongoseal::builder(), set.uri()).await;
    // The last one is a code of no meaning, with the label of older servers.
    for (number, code) in [136, 260, 280, 286, 10334, 2].into_iter().enumerate() {
        // One watch at a time: the fail point counts commands, and one stream could use up the errors of another.
        // The three watches share what the codes come to, so a push meets each code once.
        let watches = by_length(number % 3..number % 3 + 1, 0..3);
        for (which, watched) in WATCHED.into_iter().enumerate().filter(|(which, _)| watches.contains(which)) {
            let app = format!("lost{code}-{which}");
            let watching = connect(Mongoseal::builder(), set.uri_with(&format!("appName={app}"))).await;
            let ended = working.acquire("k/watched").ttl(secs(60)).await.unwrap();
            let mut stream = match which {
                0 => watching.watch("k/watched").await.unwrap(),
                1 => watching.watch_prefix("k/").await.unwrap(),
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
            let unseen = working.acquire("k/watched").await.unwrap();
            unseen.release().await.unwrap();
            let lease = working.acquire("k/watched").ttl(secs(60)).await.unwrap();
            lost.hit(3).await;
            lost.off().await;
            let mut seen = Vec::new();
            let mut missed = 0;
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
    each_grant_is_reported_within(secs(40), streams, &granted).await;
    let silent = since.elapsed();
    println!("all events were reported {silent:?} after the request that is held");
    assert!(silent > secs(15), "the request that is held cannot have been that of the stream: {silent:?}");
    watching.shutdown().await;
}
