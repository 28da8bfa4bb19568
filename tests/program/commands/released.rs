//! SIGKILL of the program frees its key as soon as no process of its command is left, long before the ttl.

use std::{fs, time::Duration};

use mongoseal_test_support::{How, Peer, ReplicaSet};
use nix::{sys::signal::Signal::SIGKILL, unistd::Pid};
use tokio::process::Child;

use crate::{
    eventually,
    sandbox::{KEY, STUBBORN, Sandbox, gone, guard, id, is_running, mongoseal, signal},
    secs,
};

/// The ttl of these leases: nothing here waits for it.
const LONG: &str = "--ttl=10m";
/// A command that SIGTERM ends.
const MEEK: &str = r#"echo $$ >"$F/ids"; echo $$ >>"$F/ids"; exec sleep 100"#;
/// Much less than that ttl.
const SOON: Duration = secs(60);

/// Starts a program with these arguments, whose command has two processes.
async fn start(sandbox: &Sandbox, arguments: &[&str], script: &str) -> (Child, Vec<Pid>) {
    let arguments = [arguments, &["--", "sh", "-c", script]].concat();
    let program = sandbox.mongoseal(&arguments).spawn().unwrap();
    let family = sandbox.processes(2).await;
    (program, family)
}

/// A waiter is granted the key when the last process of the command has ended, and not before. The other keys are free, too.
#[tokio::test]
async fn the_key_of_a_killed_program_is_granted_to_a_waiter_after_the_last_process_of_its_command() {
    let sandbox = Sandbox::new("released_to_a_waiter").await;
    let arguments = ["run", "a", KEY, "z", LONG, "--term-before=1s", "--kill-before=200ms"];
    let (program, family) = start(&sandbox, &arguments, STUBBORN).await;
    let waiting = tokio::spawn(sandbox.seal.acquire(KEY).wait(SOON).into_future());
    sandbox.queued(1).await;
    signal(id(&program), SIGKILL);
    let granted = waiting.await.unwrap().unwrap();
    assert!(!family.iter().any(|process| is_running(*process)), "a process of the command runs beside the next holder");
    granted.release().await.unwrap();
    for key in ["a", "z"] {
        sandbox.freed(key).await;
    }
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_of_a_killed_program() {
    let sandbox = Sandbox::new("released_hold").await;
    let (program, _) = start(&sandbox, &["run", KEY, LONG, "--min-hold=5m"], MEEK).await;
    signal(id(&program), SIGKILL);
    let is_released = async || sandbox.holder().await.unwrap().released_at.is_some();
    eventually(SOON, "the lease is released", is_released).await;
    assert!(sandbox.seal.acquire(KEY).await.is_err(), "the minimum hold is not over");
}

/// The program got the connection string as an argument, which its command does not see.
#[tokio::test]
async fn the_order_has_the_connection_string_and_the_command_has_no_descriptor_of_it() {
    let sandbox = Sandbox::new("released_uri").await;
    let script = r#"ls -l /proc/$$/fd >"$F/fds"; env >"$F/env"; echo $$ >"$F/ids"; echo $$ >>"$F/ids"; exec sleep 100"#;
    let options = ["--uri", sandbox.uri(), "--db", "cli_released_uri"];
    let arguments = [&options[..], &["run", KEY, LONG, "--", "sh", "-c", script]].concat();
    let program = mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    sandbox.processes(2).await;
    let inherited = fs::read_to_string(sandbox.file("fds")).unwrap();
    // The order is in a pipe, which is read.
    let is_order = |line: &str| line.starts_with("lr") && line.contains("pipe:");
    assert!(!inherited.lines().any(is_order), "{inherited}");
    assert!(!fs::read_to_string(sandbox.file("env")).unwrap().contains(sandbox.uri()));
    signal(id(&program), SIGKILL);
    sandbox.freed(KEY).await;
}

/// The release gives up after the operation timeout, and the ttl frees the key.
#[tokio::test]
async fn a_release_that_the_server_does_not_answer_ends() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let sandbox = Sandbox::on(&set, "released_silent").await;
    let (program, family) = start(&sandbox, &["run", KEY, LONG, "--timeout=10s"], MEEK).await;
    let guard = guard(&program);
    set.proxy().cut_both(&Peer::Member(0), &Peer::Anyone, How::Blackhole);
    signal(id(&program), SIGKILL);
    gone(&[family[0], guard], SOON).await;
    // Another test has releases, too: that of this one has its database in the environment.
    let releases = || {
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let is_ours = |process: &fs::DirEntry| {
            text(process.path().join("cmdline")).ends_with("\0__release\0")
                && text(process.path().join("environ")).contains("MONGOSEAL_DB=cli_released_silent\0")
        };
        fs::read_dir("/proc").unwrap().flatten().filter(is_ours).count()
    };
    eventually(SOON, "the release has begun", async || releases() == 1).await;
    eventually(SOON, "the release has ended", async || releases() == 0).await;
    set.proxy().heal();
    assert!(sandbox.holder().await.unwrap().released_at.is_none());
}
