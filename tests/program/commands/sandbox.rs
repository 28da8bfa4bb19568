//! The fixture of a test: a database and a folder of its own, and the program.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mongoseal::{Clock, Lease, Mongoseal};
use mongoseal_test_support::{ReplicaSet, shared};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

pub(crate) use crate::ended::{Ended, bash, done, ended, mongoseal};
use crate::{eventually, secs};

/// The key that tests hold.
pub(crate) const KEY: &str = "reports/nightly";
/// The ttl of most of them: short enough to wait for a refresh, and long enough for a busy machine.
pub(crate) const TTL: Duration = secs(20);

pub(crate) struct Sandbox {
    uri: String,
    database: String,
    folder: PathBuf,
    pub(crate) seal: Mongoseal,
}

impl Sandbox {
    /// On the shared set, which has no faults.
    pub(crate) async fn new(name: &str) -> Self {
        Self::on(shared(1).await, name).await
    }

    pub(crate) async fn on(set: &ReplicaSet, name: &str) -> Self {
        let database = format!("cli_{name}");
        set.client().await.database(&database).drop().await.unwrap();
        let seal = Mongoseal::builder().database(&database).connect(set.uri()).await.unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{database}-{}", std::process::id()));
        // A process that was killed may have had this id and left its folder.
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        Self { uri: set.uri(), database, folder, seal }
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The binary with these arguments, on this database.
    pub(crate) fn mongoseal(&self, arguments: &[&str]) -> Command {
        let mut command = mongoseal(arguments);
        command.env("MONGODB_URI", &self.uri).env("MONGOSEAL_DB", &self.database);
        command
    }

    /// `mongoseal run` of this shell script under the key, with [`TTL`]. `$F` is the sandbox's folder.
    pub(crate) fn run(&self, script: &str) -> Command {
        let ttl = format!("{}ms", TTL.as_millis());
        let mut command = self.mongoseal(&["run", KEY, "--ttl", &ttl, "--", "sh", "-c", script]);
        command.env("F", &self.folder);
        command
    }

    /// This script of bash, in the sandbox's folder and with the binary on its path.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut shell = bash(script);
        shell.current_dir(&self.folder);
        shell.env("MONGODB_URI", &self.uri).env("MONGOSEAL_DB", &self.database);
        shell
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Waits until the file exists.
    pub(crate) async fn exists(&self, name: &str) {
        eventually(secs(60), &format!("{name} exists"), async || self.file(name).exists()).await;
    }

    /// What the file has, when it has so many lines.
    pub(crate) async fn lines(&self, name: &str, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        eventually(secs(60), &format!("{name} has {count} lines"), async || {
            let text = fs::read_to_string(self.file(name)).unwrap_or_default();
            lines = text.lines().map(str::to_owned).collect();
            lines.len() >= count && text.ends_with('\n')
        })
        .await;
        lines
    }

    /// The processes whose numbers the file has, a line each.
    pub(crate) async fn processes(&self, name: &str, count: usize) -> Vec<Pid> {
        self.lines(name, count).await.iter().map(|line| Pid::from_raw(line.parse().unwrap())).collect()
    }

    /// The key, held by the test.
    pub(crate) async fn hold(&self) -> Lease {
        self.seal.acquire(KEY).ttl(secs(60)).await.unwrap()
    }

    /// Waits until the key is held.
    pub(crate) async fn held(&self) {
        let record = async || self.seal.inspect(KEY).await.unwrap();
        eventually(secs(60), "it holds", async || record().await.is_some_and(|record| !record.holders.is_empty()))
            .await;
    }

    /// Waits until the lease on the key has been refreshed once more.
    pub(crate) async fn is_refreshed(&self) {
        let seen = async || {
            let record = self.seal.inspect(KEY).await.unwrap().unwrap();
            (record.holders[0].token, record.holders[0].last_seen)
        };
        let before = seen().await;
        eventually(secs(30), "the lease is refreshed", async || seen().await.1 > before.1).await;
        assert_eq!(seen().await.0, before.0, "it is the same lease");
    }

    /// The key, had without waiting for it.
    pub(crate) async fn is_free(&self) {
        self.seal.acquire(KEY).await.unwrap().release().await.unwrap();
    }

    /// A handle of another owner.
    pub(crate) async fn seal_of(&self, owner: &str) -> Mongoseal {
        Mongoseal::builder().owner(owner).database(&self.database).connect(&self.uri).await.unwrap()
    }

    /// Waits until so many wait for the key.
    pub(crate) async fn queued(&self, count: usize) {
        self.queued_on(KEY, count).await;
    }

    pub(crate) async fn queued_on(&self, key: &str, count: usize) {
        let waiting = async || self.seal.inspect(key).await.unwrap().map_or(0, |record| record.queue.len());
        eventually(secs(60), &format!("{count} wait"), async || waiting().await == count).await;
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Copies a file to where it can be executed. Another process copies: processes that other tests start at this moment would
/// inherit a descriptor for writing, and a file that is open for writing cannot be executed.
pub(crate) fn install(from: &Path, to: &Path) {
    let status = std::process::Command::new("install").args(["-m", "755"]).args([from, to]).status().unwrap();
    assert!(status.success(), "{}: {status}", to.display());
}

/// Writes a script for `sh` that can be executed.
pub(crate) fn install_script(path: &Path, script: &str) {
    let source = path.with_extension("source");
    fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
    install(&source, path);
    fs::remove_file(source).unwrap();
}

pub(crate) fn id(child: &Child) -> Pid {
    Pid::from_raw(child.id().expect("it was not waited for yet").try_into().unwrap())
}

pub(crate) fn signal(process: Pid, signal: Signal) {
    kill(process, signal).unwrap();
}

/// The guard of a run.
pub(crate) fn guard(run: &Child) -> Pid {
    let [guard] = *children(id(run)) else { panic!("it has one child, the guard") };
    guard
}

/// The children of the only thread of a process that has any.
pub(crate) fn children(process: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    children.split_whitespace().map(|child| Pid::from_raw(child.parse().unwrap())).collect()
}

/// Whether it does anything any more; one that waits to be collected does not.
pub(crate) fn is_running(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Waits until none of them runs. Gives when, on the clock of leases, the last was seen.
pub(crate) async fn gone(processes: &[Pid], within: Duration) -> Duration {
    let mut last = Clock::Boot.now().since_origin();
    eventually(within, &format!("{processes:?} have ended"), async || {
        let now = Clock::Boot.now().since_origin();
        let any = processes.iter().any(|process| is_running(*process));
        if any {
            last = now;
        }
        !any
    })
    .await;
    last
}
