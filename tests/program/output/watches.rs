//! `watch`.

use std::{mem, time::Duration};

use mongodb::bson::doc;
use mongoseal::LeaseId;
use mongoseal_test_support::{ReplicaSet, eventually};
use nix::sys::signal::Signal::{SIGINT, SIGTERM};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

use crate::{Running, Sandbox, secs};

/// An event and its token.
fn named(event: &Value) -> (&str, u64) {
    (event["event"].as_str().unwrap(), event["token"].as_u64().unwrap())
}

/// The next events.
async fn events(watch: &mut Running, count: usize) -> Vec<Value> {
    let mut events = Vec::new();
    while events.len() < count {
        events.push(watch.next_event().await.expect("it goes on"));
    }
    events
}

#[tokio::test]
async fn watch_tells_of_a_key_who_holds_it_and_what_becomes_of_each_lease() {
    let sandbox = Sandbox::new("watch").await;
    let seal = sandbox.seal_of("alice");
    let first = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let mut watch = sandbox.start(&["watch", "k", "--json"]);
    let token = first.token().get();
    assert_eq!(watch.next("holds").await["token"], token);
    first.release().await.unwrap();
    let second = seal.acquire("k").ttl(secs(600)).await.unwrap();
    seal.revoke("k").by("olga").reason("stuck").await.unwrap();
    let third = seal.acquire("k").ttl(Duration::from_millis(500)).without_refresh().await.unwrap();
    let told = events(&mut watch, 5).await;
    let (second, third) = (second.token().get(), third.token().get());
    let expected =
        [("released", token), ("granted", second), ("revoked", second), ("granted", third), ("expired", third)];
    assert_eq!(told.iter().map(named).collect::<Vec<_>>(), expected);
    assert_eq!((&told[2]["by"], &told[2]["reason"]), (&"olga".into(), &"stuck".into()));
}

#[tokio::test]
async fn a_watch_of_many_keys_leaves_out_the_others_and_no_lease_and_names_a_transfer() {
    let sandbox = Sandbox::new("watch_many").await;
    let seal = sandbox.seal_of("alice");
    let held = seal.acquire("reports/a").ttl(secs(600)).await.unwrap();
    let other = seal.acquire("other").ttl(secs(600)).await.unwrap();
    let mut some = sandbox.start(&["watch", "reports/", "--prefix", "--json"]);
    let mut all = sandbox.start(&["watch", "--json"]);
    assert_eq!(some.next("holds").await["key"], "reports/a");
    let both = [all.next("holds").await, all.next("holds").await];
    other.release().await.unwrap();
    all.next("released").await;
    assert_eq!(both[1]["key"], "other");

    let mut expected = Vec::new();
    for number in 0..20 {
        let lease = seal.acquire(format!("reports/{number}")).await.unwrap();
        let token = lease.token().get();
        lease.release().await.unwrap();
        expected.extend([("granted", token), ("released", token)]);
    }
    let told = events(&mut some, expected.len()).await;
    assert_eq!(told.iter().map(named).collect::<Vec<_>>(), expected);
    let times: Vec<&str> = told.iter().map(|event| event["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");

    let token = held.token();
    let moved = held.transfer(LeaseId::random()).await.unwrap();
    let event = some.next("transferred").await;
    assert_eq!((&event["token"], &event["to"]), (&token.get().into(), &moved.get().into()));
    seal.revoke("reports/a").by("olga").reason("stuck").await.unwrap();
    let event = some.next("revoked").await;
    assert_eq!((&event["by"], &event["key"]), (&"olga".into(), &"reports/a".into()));
    let short = seal.acquire("reports/b").ttl(secs(1)).without_refresh().await.unwrap();
    assert_eq!(some.next("granted").await["token"], short.token().get());
    some.next("expired").await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_delay_the_end_by_a_signal() {
    let sandbox = Sandbox::new("watch_blocked").await;
    let seal = sandbox.seal_of("alice");
    // More than a pipe takes.
    let keys: Vec<String> = (0..250).map(|number| format!("{}/{number}", "k".repeat(300))).collect();
    let set = seal.acquire_all(keys.iter().map(String::as_str)).ttl(secs(600)).await.unwrap();
    for (sent, arguments) in [(SIGTERM, &["watch", "--json"][..]), (SIGINT, &["watch"])] {
        let mut watch = sandbox.start(arguments);
        // After the first line, in which nothing is cut, the test reads no more than its buffer takes.
        assert!(watch.line().await.contains(&keys[0][..300]), "{arguments:?}");
        let mut before = 0;
        eventually(secs(60), "the pipe is full", async || {
            let unread = rustix::io::ioctl_fionread(watch.lines.get_ref().get_ref()).unwrap();
            unread > 50_000 && mem::replace(&mut before, unread) == unread
        })
        .await;
        watch.signal(sent);
        let status = timeout(secs(60), watch.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(0), "{sent}");
    }
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_watch_reports_that_mongodb_does_not_answer_and_continues_when_it_does() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "watch_paused").await;
    let seal = &sandbox.seal;
    let mut watch = sandbox.start(&["watch", "--timeout", "10s"]);
    let mut messages = BufReader::new(watch.child.stderr.take().unwrap()).lines();
    let _first = seal.acquire("first").ttl(secs(600)).await.unwrap();
    assert!(watch.line().await.contains("first"));
    set.pause(0).await;
    let message = timeout(secs(60), messages.next_line()).await.expect("it comes").unwrap().unwrap();
    assert!(message.starts_with("mongoseal: MongoDB has not answered for "), "{message}");
    set.resume(0).await;
    let _second = seal.acquire("second").ttl(secs(600)).wait(secs(60)).await.unwrap();
    assert!(watch.line().await.contains("second"));
}

#[tokio::test]
async fn a_watch_says_that_events_may_be_missing_and_goes_on() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "watch_missing").await;
    let seal = &sandbox.seal;
    let uri = set.uri_with("appName=missing");
    let start = |arguments: &[&str]| Running::start(sandbox.mongoseal(arguments).env("MONGODB_URI", &uri));
    // Breaks the streams of the watch so many times.
    let lose = async |count: u32| {
        let error = doc! { "errorCode": 286, "errmsg": "the history is gone" };
        let lost = set.fail_command("missing", &["getMore", "aggregate"], error, count).await;
        lost.hit(count).await;
        lost.off().await;
    };
    for arguments in [&["watch", "k"][..], &["watch"]] {
        let held = seal.acquire("k").ttl(secs(600)).await.unwrap();
        let mut objects = start(&[arguments, &["--json"]].concat());
        objects.next("holds").await;
        lose(4).await;
        let missed = objects.next("missed").await;
        assert!(missed["since"].as_str() <= missed["at"].as_str() && missed.get("key").is_none(), "{missed}");
        held.release().await.unwrap();
        // Each interruption is reported.
        let mut next = missed;
        while next["event"] == "missed" {
            next = objects.next_event().await.unwrap();
        }
        assert_eq!(next["event"], "released");
        drop(objects);

        let mut words = start(arguments);
        let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
        let token = lease.token().to_string();
        assert!(words.line().await.contains(&token));
        lease.orphan();
        lose(2).await;
        let mut line = words.line().await;
        assert!(line.contains("  missed  ") && line.contains(" may be missing"), "{line}");
        seal.revoke("k").reason("over").await.unwrap();
        while line.contains("  missed  ") {
            line = words.line().await;
        }
        assert!(line.contains("  revoked  ") && line.contains(&token), "{line}");
    }
}
