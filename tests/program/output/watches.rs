//! `watch`.

use std::{mem, time::Duration};

use mongodb::bson::doc;
use mongoseal::{Lease, LeaseId, Mongoseal};
use mongoseal_test_support::{ReplicaSet, TestDatabase, eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

use crate::{Console, mongoseal, secs, shell};

struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(console: &Console, arguments: &[&str]) -> Self {
        Self::command(console, "watch", arguments)
    }

    fn command(console: &Console, command: &str, arguments: &[&str]) -> Self {
        let mut child = mongoseal(&[]).arg(command).args(arguments).env("MONGODB_URI", &console.uri).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(secs(60), self.lines.next_line()).await.expect("something is told");
        line.unwrap().expect("it goes on")
    }

    async fn event(&mut self) -> Value {
        serde_json::from_str(&self.line().await).expect("an object a line")
    }

    /// Tells it to end, and gives the status it ends with.
    async fn end(mut self, signal: Signal) -> Option<i32> {
        let id = self.child.id().expect("it runs").try_into().unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
        tokio::time::timeout(secs(60), self.child.wait()).await.expect("it ends").unwrap().code()
    }
}

#[tokio::test]
async fn watch_tells_of_a_key_who_holds_it_and_what_becomes_of_each_lease() {
    let console = Console::new("watch").await;
    let seal = console.seal("alice");
    let first = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let mut words = Watch::start(&console, &["k"]);
    let mut objects = Watch::start(&console, &["k", "--json"]);
    let holds = words.line().await;
    let cells: Vec<&str> = holds.split_whitespace().collect();
    assert_eq!(cells[1..5], ["holds", "k", &first.token().to_string(), "alice"], "{holds}");
    assert!(cells[0].ends_with('Z') && cells[0].len() == "2020-01-01T00:00:00.123Z".len(), "{holds}");
    assert_eq!(objects.event().await["event"], "holds");

    let token = first.token().get();
    first.release().await.unwrap();
    let second = seal.acquire("k").ttl(secs(600)).await.unwrap();
    seal.revoke("k").by("olga").reason("stuck").await.unwrap();
    let third = seal.acquire("k").ttl(Duration::from_millis(500)).without_refresh().await.unwrap();
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(objects.event().await);
    }
    let heard: Vec<(&str, u64)> =
        told.iter().map(|event| (event["event"].as_str().unwrap(), event["token"].as_u64().unwrap())).collect();
    let (second, third) = (second.token().get(), third.token().get());
    assert_eq!(
        heard,
        [("released", token), ("granted", second), ("revoked", second), ("granted", third), ("expired", third)]
    );
    assert_eq!((&told[2]["by"], &told[2]["reason"]), (&"olga".into(), &"stuck".into()));
    assert!(words.line().await.contains("  released  "));
    assert_eq!(words.end(Signal::SIGINT).await, Some(0));
    assert_eq!(objects.end(Signal::SIGTERM).await, Some(0));
}

#[tokio::test]
async fn watch_tells_of_many_keys_and_leaves_out_the_others() {
    let console = Console::new("watch_many").await;
    let seal = console.seal("alice");
    let held = seal.acquire("reports/a").ttl(secs(600)).await.unwrap();
    let other = seal.acquire("other").ttl(secs(600)).await.unwrap();
    let mut some = Watch::start(&console, &["reports/", "--prefix", "--json"]);
    let mut all = Watch::start(&console, &["--json"]);
    assert_eq!(some.event().await["key"], "reports/a");
    let both = [all.event().await, all.event().await];
    assert!(both.iter().all(|event| event["event"] == "holds"));
    other.release().await.unwrap();
    assert_eq!((all.event().await["event"].as_str(), both[1]["key"].as_str()), (Some("released"), Some("other")));
    seal.revoke("reports/a").by("olga").reason("stuck").await.unwrap();
    held.cancelled().await;
    let event = some.event().await;
    assert_eq!(
        (&event["event"], &event["by"], &event["key"]),
        (&"revoked".into(), &"olga".into(), &"reports/a".into())
    );
    let short = seal.acquire("reports/b").ttl(secs(1)).without_refresh().await.unwrap();
    let event = some.event().await;
    assert_eq!((event["event"].as_str(), event["token"].as_u64()), (Some("granted"), Some(short.token().get())));
    assert_eq!(some.event().await["event"], "expired");
    assert_eq!(some.end(Signal::SIGTERM).await, Some(0));
    assert_eq!(all.end(Signal::SIGINT).await, Some(0));
}

#[tokio::test]
async fn a_watch_of_many_keys_leaves_out_no_lease_and_names_a_transfer() {
    let console = Console::new("watch_short").await;
    let seal = console.seal("alice");
    let mut watch = Watch::start(&console, &["reports/", "--prefix", "--json"]);
    // The first event shows that the watch has begun.
    let held = watch_begins(&seal, &mut watch).await;
    let mut expected = Vec::new();
    for number in 0..20 {
        let lease = seal.acquire(format!("reports/{number}")).await.unwrap();
        let token = lease.token().get();
        lease.release().await.unwrap();
        expected.extend([("granted".to_owned(), token), ("released".to_owned(), token)]);
    }
    let mut events = Vec::new();
    for _ in 0..expected.len() {
        events.push(watch.event().await);
    }
    let named = |event: &Value| (event["event"].as_str().unwrap().to_owned(), event["token"].as_u64().unwrap());
    assert_eq!(events.iter().map(named).collect::<Vec<_>>(), expected);
    let times: Vec<&str> = events.iter().map(|event| event["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");

    let token = held.token();
    let moved = held.transfer(LeaseId::random()).await.unwrap();
    let event = watch.event().await;
    assert_eq!((event["event"].as_str(), event["token"].as_u64()), (Some("transferred"), Some(token.get())));
    assert_eq!(event["to"].as_u64(), Some(moved.get()));
    assert_eq!(watch.end(Signal::SIGTERM).await, Some(0));
}

/// Acquires a key of the watch until the watch reports it.
async fn watch_begins(seal: &Mongoseal, watch: &mut Watch) -> Lease {
    let held = seal.acquire("reports/held").ttl(secs(600)).await.unwrap();
    assert_eq!(watch.event().await["token"].as_u64(), Some(held.token().get()));
    held
}

#[tokio::test]
async fn the_columns_of_a_pipe_are_fixed_and_a_longer_cell_moves_the_rest() {
    let console = Console::new("watch_columns").await;
    let seal = console.seal("alice");
    let _short = seal.acquire("short").ttl(secs(600)).await.unwrap();
    let long = "l".repeat(100);
    let _long = seal.acquire(long.as_str()).without_expiry().await.unwrap();
    let mut watch = Watch::start(&console, &[]);
    let (first, second) = (watch.line().await, watch.line().await);
    assert_eq!(first.find("alice"), Some(24 + 2 + 11 + 2 + 24 + 2 + 15 + 2), "{first}");
    assert!(first.contains("  9 m 5") || first.ends_with("  10 m remaining"), "{first}");
    assert!(
        second.contains(&format!("  {long}  ")) && second.ends_with("alice             without expiry"),
        "{second}"
    );
    assert_eq!(watch.end(Signal::SIGINT).await, Some(0));
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_delay_the_end_by_a_signal() {
    let console = Console::new("watch_blocked").await;
    let seal = console.db.build(Mongoseal::builder().owner("alice").operation_timeout(secs(60)));
    // More than a pipe takes.
    let keys: Vec<String> = (0..250).map(|number| format!("{}/{number}", "k".repeat(300))).collect();
    let set = seal.acquire_all(keys.iter().map(String::as_str)).ttl(secs(600)).await.unwrap();
    for (signal, arguments) in [(Signal::SIGTERM, &["--json"][..]), (Signal::SIGINT, &[])] {
        let mut watch = Watch::start(&console, arguments);
        // After the first line, the test reads no more than its buffer takes.
        watch.line().await;
        let mut before = 0;
        eventually(secs(60), "the pipe is full", async || {
            let unread = rustix::io::ioctl_fionread(watch.lines.get_ref().get_ref()).unwrap();
            unread > 50_000 && mem::replace(&mut before, unread) == unread
        })
        .await;
        let status = timeout(secs(60), watch.end(signal)).await.expect("it ends");
        assert_eq!(status, Some(0), "{signal}");
    }
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_watch_reports_that_mongodb_does_not_answer_and_continues_when_it_does() {
    let set = ReplicaSet::start(1).await;
    let mut program = mongoseal(&["watch", "--timeout", "10s"]);
    program.env("MONGODB_URI", set.uri());
    let mut child = program.spawn().unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
    let seal = Mongoseal::builder().database("mongoseal").connect(set.uri()).await.unwrap();
    let mut next = async || timeout(secs(60), events.next_line()).await.expect("it comes").unwrap().unwrap();
    let _first = seal.acquire("first").ttl(secs(600)).await.unwrap();
    assert!(next().await.contains("first"));
    set.pause(0).await;
    let message = timeout(secs(60), messages.next_line()).await.expect("it comes").unwrap().unwrap();
    assert!(message.starts_with("mongoseal: MongoDB has not answered for "), "{message}");
    set.resume(0).await;
    let _second = seal.acquire("second").ttl(secs(600)).wait(secs(60)).await.unwrap();
    assert!(next().await.contains("second"));
}

#[tokio::test]
async fn a_watch_says_that_events_may_be_missing_and_goes_on() {
    let set = ReplicaSet::start(1).await;
    let seal = Mongoseal::builder().database("mongoseal").connect(set.uri()).await.unwrap();
    let console = Console { db: TestDatabase::new("cli_watch_missing").await, uri: set.uri_with("appName=missing") };
    for arguments in [&["k"][..], &[]] {
        let held = seal.acquire("k").ttl(secs(600)).await.unwrap();
        let mut objects = Watch::start(&console, &[arguments, &["--json"]].concat());
        assert_eq!(objects.event().await["event"], "holds");
        let error = doc! { "errorCode": 286, "errmsg": "the history is gone" };
        let lost = set.fail_command("missing", &["getMore", "aggregate"], error, 4).await;
        lost.hit(4).await;
        lost.off().await;
        let missed = objects.event().await;
        assert_eq!(missed["event"], "missed");
        assert!(missed["since"].as_str() <= missed["at"].as_str() && missed.get("key").is_none(), "{missed}");
        held.release().await.unwrap();
        // Each interruption is reported.
        let mut next = objects.event().await;
        while next["event"] == "missed" {
            next = objects.event().await;
        }
        assert_eq!(next["event"], "released");
        objects.end(Signal::SIGTERM).await;

        let mut words = Watch::start(&console, arguments);
        let token = words_of_grant(&seal, &mut words).await;
        let error = doc! { "errorCode": 286, "errmsg": "the history is gone" };
        let lost = set.fail_command("missing", &["getMore", "aggregate"], error, 2).await;
        lost.hit(2).await;
        lost.off().await;
        let mut line = words.line().await;
        assert!(line.contains("  missed  ") && line.contains(" may be missing"), "{line}");
        seal.revoke("k").reason("over").await.unwrap();
        while line.contains("  missed  ") {
            line = words.line().await;
        }
        assert!(line.contains("  revoked  ") && line.contains(&token), "{line}");
        words.end(Signal::SIGTERM).await;
    }
}

/// Has the key granted once the watch prints grants. Returns the token.
async fn words_of_grant(seal: &Mongoseal, words: &mut Watch) -> String {
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let line = words.line().await;
    let token = lease.token().to_string();
    assert!(line.contains(&token), "{line}");
    lease.orphan();
    token
}

#[tokio::test]
async fn an_output_that_cannot_be_written_is_an_error() {
    let console = Console::new("watch_full").await;
    let _lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let said = shell(&console.uri, "mongoseal watch >/dev/full").await;
    assert!(
        said.status() == 125 && said.stderr.contains("No space left on device"),
        "{} {}",
        said.status(),
        said.stderr
    );
}

#[tokio::test]
async fn who_follows_the_leader_ends_with_status_0_on_a_signal_as_watch_does() {
    let console = Console::new("follow_signals").await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut follow = Watch::command(&console, "leader", &["scheduler", "--follow"]);
        assert_eq!(follow.line().await, "-\t-\t-\t-");
        assert_eq!(follow.end(signal).await, Some(0));
    }
}
