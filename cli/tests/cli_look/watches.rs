//! `watch`.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
};

use crate::{Console, program, secs};

struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(console: &Console, arguments: &[&str]) -> Self {
        Self::command(console, "watch", arguments)
    }

    fn command(console: &Console, command: &str, arguments: &[&str]) -> Self {
        let mut child = program().arg(command).args(arguments).env("MONGODB_URI", &console.uri).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(secs(20), self.lines.next_line()).await.expect("something is told");
        line.unwrap().expect("it goes on")
    }

    async fn event(&mut self) -> Value {
        serde_json::from_str(&self.line().await).expect("an object a line")
    }

    /// Tells it to end, and gives the status it ends with.
    async fn end(mut self, signal: Signal) -> Option<i32> {
        let id = self.child.id().expect("it runs").try_into().unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
        tokio::time::timeout(secs(20), self.child.wait()).await.expect("it ends").unwrap().code()
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
    let third = seal.acquire("k").ttl(Duration::from_millis(50)).without_refresh().await.unwrap();
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
    let short = seal.acquire("reports/b").ttl(secs(5)).without_refresh().await.unwrap();
    let event = some.event().await;
    assert_eq!((event["event"].as_str(), event["token"].as_u64()), (Some("granted"), Some(short.token().get())));
    assert_eq!(some.event().await["event"], "expired");
    assert_eq!(some.end(Signal::SIGTERM).await, Some(0));
    assert_eq!(all.end(Signal::SIGINT).await, Some(0));
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
