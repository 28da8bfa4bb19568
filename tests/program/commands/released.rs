//! SIGKILL of the program frees its key as soon as no process of its command is left, long before the ttl.

use std::time::{Duration, Instant};

use mongoseal_test_support::{How, Peer, ReplicaSet};
use nix::sys::signal::Signal::SIGKILL;

use crate::{
    eventually,
    killed::STUBBORN,
    sandbox::{KEY, Sandbox, children, gone, id, is_running, signal},
    secs,
};

/// The ttl of these leases: nothing here waits for it.
const LONG: &str = "--ttl=10m";
/// A command that SIGTERM ends.
const MEEK: &str = r#"echo $$ >"$F/ids"; echo $$ >>"$F/ids"; exec sleep 100"#;
/// Much less than that ttl.
const SOON: Duration = secs(60);

/// Kills a program with these arguments while its command runs. Returns when it was killed.
async fn kill(sandbox: &Sandbox, arguments: &[&str], script: &str) -> Instant {
    let arguments = [arguments, &["--", "sh", "-c", script]].concat();
    let program = sandbox.mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    signal(id(&program), SIGKILL);
    let killed = Instant::now();
    gone(&family, SOON).await;
    killed
}

/// Acquires the key, which must be free soon.
async fn free(sandbox: &Sandbox, key: &str, killed: Instant) {
    let lease = sandbox.seal.acquire(key).wait(SOON).await.unwrap();
    println!("{key:?} was free {:?} after the kill", killed.elapsed());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_killed_program_s_key_is_free_when_its_command_has_ended() {
    for (name, script) in [("released_meek", MEEK), ("released_stubborn", STUBBORN)] {
        let sandbox = Sandbox::new(name).await;
        let arguments = ["run", KEY, LONG, "--term-before=1s", "--kill-before=200ms"];
        let killed = kill(&sandbox, &arguments, script).await;
        free(&sandbox, KEY, killed).await;
    }
}

/// A waiter is granted the key when the last process of the command has ended, and not before.
#[tokio::test]
async fn the_key_of_a_killed_program_is_granted_to_a_waiter_after_the_last_process_of_its_command() {
    let sandbox = Sandbox::new("released_to_a_waiter").await;
    let arguments = ["run", KEY, LONG, "--term-before=1s", "--kill-before=200ms", "--", "sh", "-c", STUBBORN];
    let program = sandbox.mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    let waiting = tokio::spawn(sandbox.seal.acquire(KEY).wait(SOON).into_future());
    sandbox.queued(1).await;
    signal(id(&program), SIGKILL);
    let granted = waiting.await.unwrap().unwrap();
    assert!(!family.iter().any(|process| is_running(*process)), "a process of the command runs beside the next holder");
    granted.release().await.unwrap();
}

#[tokio::test]
async fn each_key_of_a_killed_program_is_free() {
    let sandbox = Sandbox::new("released_set").await;
    let killed = kill(&sandbox, &["run", "a", "b", "c", LONG], MEEK).await;
    for key in ["a", "b", "c"] {
        free(&sandbox, key, killed).await;
    }
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_of_a_killed_program() {
    let sandbox = Sandbox::new("released_hold").await;
    kill(&sandbox, &["run", KEY, LONG, "--min-hold=5m"], MEEK).await;
    let is_released = async || {
        let record = sandbox.seal.inspect(KEY).await.unwrap().unwrap();
        record.holders[0].released_at.is_some()
    };
    eventually(SOON, "the lease is released", is_released).await;
    assert!(sandbox.seal.acquire(KEY).await.is_err(), "the minimum hold is not over");
}

/// The program got the connection string as an argument, which its command does not see.
#[tokio::test]
async fn the_order_has_the_connection_string_and_the_command_has_no_descriptor_of_it() {
    let sandbox = Sandbox::new("released_uri").await;
    let script = r#"ls -l /proc/$$/fd >"$F/fds"; env >"$F/env"; echo $$ >"$F/ids"; echo $$ >>"$F/ids"; exec sleep 100"#;
    let database = sandbox
        .mongoseal(&[])
        .as_std()
        .get_envs()
        .find_map(|(name, value)| (name == "MONGOSEAL_DB").then(|| value.unwrap().to_str().unwrap().to_owned()));
    let arguments = ["--uri", sandbox.uri(), "--db", &database.unwrap(), "run", KEY, LONG, "--", "sh", "-c", script];
    let program = crate::sandbox::mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    sandbox.processes("ids", 2).await;
    let inherited = std::fs::read_to_string(sandbox.file("fds")).unwrap();
    // The order is in a pipe, which is read.
    let is_order = |line: &str| line.starts_with("lr") && line.contains("pipe:");
    assert!(!inherited.lines().any(is_order), "{inherited}");
    assert!(!std::fs::read_to_string(sandbox.file("env")).unwrap().contains(sandbox.uri()));
    signal(id(&program), SIGKILL);
    free(&sandbox, KEY, Instant::now()).await;
}

/// The release gives up after the operation timeout, and the ttl frees the key.
#[tokio::test]
async fn a_release_that_the_server_does_not_answer_ends() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let sandbox = Sandbox::on(&set, "released_silent").await;
    let arguments = ["run", KEY, LONG, "--timeout=10s", "--", "sh", "-c", MEEK];
    let program = sandbox.mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    let [guard] = *children(id(&program)) else { panic!("it has one child, the guard") };
    set.proxy().cut_both(&Peer::Member(0), &Peer::Anyone, How::Blackhole);
    signal(id(&program), SIGKILL);
    gone(&[family[0], guard], SOON).await;
    // Another test has releases, too: that of this one has its database in the environment.
    let releases = || {
        let text =
            |path: std::path::PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let is_ours = |process: &std::path::Path| {
            text(process.join("cmdline")).ends_with("\0__release\0")
                && text(process.join("environ")).contains("MONGOSEAL_DB=cli_released_silent\0")
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter(|process| is_ours(&process.path())).count()
    };
    eventually(SOON, "the release has begun", async || releases() == 1).await;
    eventually(SOON, "the release has ended", async || releases() == 0).await;
    set.proxy().heal();
    assert!(sandbox.seal.inspect(KEY).await.unwrap().unwrap().holders[0].released_at.is_none());
}
