//! Three processes of each example, one of which is killed in its work, and one of which is stopped. Each tick has one report.

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

use mongoseal::mongodb::{
    Collection,
    bson::{Document, doc},
};
use mongoseal_test_support::{TestDatabase, secs};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};

/// For all that a process can take on a busy machine.
const PATIENCE: Duration = secs(120);

/// What a process said.
#[derive(Debug, PartialEq)]
enum Said {
    Begins { tick: i64, token: i64 },
    Completed { tick: i64 },
    Failed,
}

impl Said {
    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        match words[1..] {
            ["begins", tick, "with", "token", token] => {
                Self::Begins { tick: tick.parse().unwrap(), token: token.parse().unwrap() }
            }
            ["completed", tick] => Self::Completed { tick: tick.parse().unwrap() },
            ["failed:", ..] => Self::Failed,
            _ => panic!("{line}"),
        }
    }
}

/// The processes of an example, by their names, and what they say.
struct Processes {
    example: &'static str,
    uri: String,
    running: BTreeMap<String, Child>,
    started: u32,
    says: UnboundedSender<(String, Said)>,
    said: UnboundedReceiver<(String, Said)>,
    completed: Vec<i64>,
}

impl Processes {
    fn new(example: &'static str, uri: String) -> Self {
        let (says, said) = unbounded_channel();
        Self { example, uri, running: BTreeMap::new(), started: 0, says, said, completed: Vec::new() }
    }

    fn start(&mut self) {
        self.started += 1;
        let name = format!("process-{}", self.started);
        let mut child = Command::new(self.example)
            .arg(&name)
            .env("MONGODB_URI", &self.uri)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        self.running.insert(name.clone(), child);
        let says = self.says.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                println!("  {line}");
                says.send((name.clone(), Said::parse(&line))).ok();
            }
        });
    }

    fn signal(&self, name: &str, signal: Signal) {
        let id = self.running[name].id().expect("it was not waited for yet");
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }

    /// Ends all processes as Ctrl-C does, and those that were killed already.
    async fn end(&mut self) {
        for child in self.running.values() {
            if let Some(id) = child.id() {
                kill(Pid::from_raw(id.try_into().unwrap()), Signal::SIGINT).ok();
            }
        }
        for (name, child) in &mut self.running {
            let ended = timeout(PATIENCE, child.wait()).await.unwrap_or_else(|_| panic!("{name} ends")).unwrap();
            assert!(ended.success() || ended.signal() == Some(Signal::SIGKILL as i32), "{name}: {ended}");
        }
    }

    async fn next(&mut self) -> (String, Said) {
        let next = timeout(PATIENCE, self.said.recv()).await.expect("the schedule goes on").unwrap();
        if let Said::Completed { tick } = next.1 {
            self.completed.push(tick);
        }
        next
    }

    /// Hits processes that begin a tick, one after the other, until another process completes the tick of one that was hit.
    /// Returns the process that was hit, the tick, and the token of that process.
    ///
    /// If no other process has come to the tick when its holder is hit, the tick stays open, and a later one is completed.
    async fn hit(&mut self, signal: Signal) -> (String, i64, i64) {
        loop {
            let (victim, Said::Begins { tick, token }) = self.next().await else { continue };
            self.signal(&victim, signal);
            let (by, completed) = loop {
                if let (by, Said::Completed { tick }) = self.next().await {
                    break (by, tick);
                }
            };
            if completed == tick && by != victim {
                return (victim, tick, token);
            }
            self.signal(&victim, Signal::SIGKILL);
            self.start();
        }
    }
}

async fn each_tick_has_one_report(example: &'static str, database: &str) {
    let db = TestDatabase::new(database).await;
    let mut processes = Processes::new(example, db.uri());
    for _ in 0..3 {
        processes.start();
    }

    let (_, killed, _) = processes.hit(Signal::SIGKILL).await;
    processes.start();
    let (victim, stopped, token) = processes.hit(Signal::SIGSTOP).await;
    processes.signal(&victim, Signal::SIGCONT);
    while processes.next().await != (victim.clone(), Said::Failed) {}
    let before = processes.completed.len();
    while processes.completed.len() < before + 2 {
        processes.next().await;
    }
    processes.end().await;

    let reports: Collection<Document> = db.database.collection("reports");
    let mut found = reports.find(doc! { "written": { "$exists": true } }).sort(doc! { "_id": 1 }).await.unwrap();
    let (mut written, mut tokens) = (Vec::new(), Vec::new());
    while found.advance().await.unwrap() {
        let report = found.deserialize_current().unwrap();
        let entries = report.get_array("written").unwrap();
        assert_eq!(entries.len(), 1, "written once: {report}");
        written.push(report.get_i64("_id").unwrap());
        tokens.push(entries[0].as_document().unwrap().get_i64("token").unwrap());
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "each by a later lease: {tokens:?}");
    let at = |tick| written.iter().position(|written| *written == tick).expect("the tick has a report");
    assert!(tokens[at(stopped)] > token, "by the process that took it over");
    assert!(tokens[at(killed)] < token, "before the other one was stopped");
    processes.completed.sort_unstable();
    let mut distinct = processes.completed.clone();
    distinct.dedup();
    assert_eq!(processes.completed, distinct, "no tick is completed twice");
    assert!(distinct.iter().all(|tick| written.contains(tick)), "{distinct:?} of {written:?}");
    println!("{} ticks have one report each, of {} processes", written.len(), processes.started);
}

#[tokio::test]
async fn tokio_cron_scheduler_runs_each_tick_once_though_a_process_is_killed_and_one_is_stopped() {
    each_tick_has_one_report(env!("CARGO_BIN_EXE_with_tokio_cron_scheduler"), "schedulers_tokio_cron").await;
}

#[tokio::test]
async fn apalis_runs_each_tick_once_though_a_process_is_killed_and_one_is_stopped() {
    each_tick_has_one_report(env!("CARGO_BIN_EXE_with_apalis"), "schedulers_apalis").await;
}
