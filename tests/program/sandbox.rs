//! The fixture of a test: a database and a folder of its own, and the program.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mongodb::{Collection, Database, bson::Document};
use mongoseal::{Lease, Mongoseal, inspect::HolderInfo, store::Clock};
use mongoseal_test_support::{ReplicaSet, shared};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

pub(crate) use crate::ended::*;
use crate::{eventually, secs};

/// The key that tests hold.
pub(crate) const KEY: &str = "reports/nightly";
/// The ttl of most of them: short enough to wait for a refresh, and long enough for a busy machine.
pub(crate) const TTL: Duration = secs(20);

/// A command whose processes ignore SIGTERM, SIGHUP and SIGINT.
pub(crate) const STUBBORN: &str = r#"
    trap '' TERM HUP INT
    sh -c 'while :; do sleep 0.05; done' & echo $$ >"$F/new"; echo $! >>"$F/new"; mv "$F/new" "$F/ids"
    while :; do sleep 0.05; done"#;

pub(crate) struct Sandbox {
    uri: String,
    pub(crate) database: Database,
    folder: PathBuf,
    pub(crate) seal: Mongoseal,
}

impl Sandbox {
    /// On the shared set, which has no faults.
    pub(crate) async fn new(name: &str) -> Self {
        Self::on(shared(1).await, name).await
    }

    pub(crate) async fn on(set: &ReplicaSet, name: &str) -> Self {
        let database = set.client().await.database(&format!("cli_{name}"));
        database.drop().await.unwrap();
        let seal = Mongoseal::builder().database(database.name()).connect(set.uri()).await.unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", database.name(), std::process::id()));
        // A process that was killed may have had this id and left its folder.
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        let uri = set.uri().replacen("/?", &format!("/{}?", database.name()), 1);
        Self { uri, database, folder, seal }
    }

    /// A handle of this owner.
    pub(crate) fn seal_of(&self, owner: &str) -> Mongoseal {
        // For many keys at once on a busy machine.
        let builder = Mongoseal::builder().owner(owner).operation_timeout(secs(120));
        builder.on_shared_client(&self.database).unwrap()
    }

    /// The records of the keys.
    pub(crate) fn records(&self) -> Collection<Document> {
        self.database.collection("mongoseal")
    }

    /// A connection string with the database.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The binary with these arguments, on this database.
    pub(crate) fn mongoseal(&self, arguments: &[&str]) -> Command {
        self.command(BINARY, arguments)
    }

    /// A program that can start the binary on this database. The sandbox's folder is `$F`.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = without_settings(program);
        command.args(arguments).env("F", &self.folder);
        command.env("MONGODB_URI", &self.uri).env("MONGOSEAL_DB", self.database.name());
        command
    }

    /// Runs the binary with these arguments to its end.
    pub(crate) async fn done(&self, arguments: &[&str]) -> Ended {
        done(self.mongoseal(arguments)).await
    }

    /// Starts the binary with these arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.mongoseal(arguments))
    }

    /// `mongoseal run` of this shell script under the key, with [`TTL`]. [`STUBBORN`] is `$STUBBORN`.
    pub(crate) fn run(&self, script: &str) -> Command {
        let ttl = format!("{}ms", TTL.as_millis());
        let mut run = self.mongoseal(&["run", KEY, "--ttl", &ttl, "--", "sh", "-c", script]);
        run.env("STUBBORN", STUBBORN);
        run
    }

    /// Runs this script of bash in the sandbox's folder. It ends with the last status of a pipeline that is not 0.
    pub(crate) async fn shell(&self, script: &str) -> Ended {
        let mut shell = self.command("bash", &["-o", "pipefail", "-c", script]);
        shell.current_dir(&self.folder);
        done(shell).await
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

    /// The processes whose numbers the file `ids` has, a line each.
    pub(crate) async fn processes(&self, count: usize) -> Vec<Pid> {
        self.lines("ids", count).await.iter().map(|line| Pid::from_raw(line.parse().unwrap())).collect()
    }

    /// Writes the empty file that a script waits for.
    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.file(name), "").unwrap();
    }

    /// The key, held by the test.
    pub(crate) async fn hold(&self) -> Lease {
        self.seal.acquire(KEY).ttl(secs(60)).await.unwrap()
    }

    /// Waits until the key is held.
    pub(crate) async fn held(&self) {
        eventually(secs(60), "it holds", async || self.holder().await.is_some()).await;
    }

    /// The holder of the key.
    pub(crate) async fn holder(&self) -> Option<HolderInfo> {
        self.seal.inspect(KEY).await.unwrap()?.holders.into_iter().next()
    }

    /// Waits until the lease on the key has been refreshed once more.
    pub(crate) async fn is_refreshed(&self) {
        let holder = async || self.holder().await.unwrap();
        let before = holder().await;
        eventually(secs(30), "the lease is refreshed", async || holder().await.last_seen > before.last_seen).await;
        assert_eq!(holder().await.token, before.token, "it is the same lease");
    }

    /// The key, had without waiting for it.
    pub(crate) async fn is_free(&self) {
        self.free(&[KEY]).await;
    }

    /// The keys, had without waiting for them.
    pub(crate) async fn free(&self, keys: &[&str]) {
        for key in keys {
            self.seal.acquire(*key).await.unwrap().release().await.unwrap();
        }
    }

    /// Waits until the key is free.
    pub(crate) async fn freed(&self, key: &str) {
        self.seal.acquire(key).wait(secs(60)).await.unwrap().release().await.unwrap();
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

/// The state of a process, such as `T` for a stopped one.
pub(crate) fn state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether it does anything any more; one that waits to be collected does not.
pub(crate) fn is_running(process: Pid) -> bool {
    !matches!(state(process), None | Some('Z' | 'X'))
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
