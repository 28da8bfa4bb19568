//! SIGKILL and SIGSTOP of the program and of its guard.

use std::fs;

use mongoseal::Clock;
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};

use crate::{
    millis,
    sandbox::{KEY, Sandbox, TTL, children, ended, gone, id, is_running, signal},
    secs,
};

/// A command with a child of its own, which leaves both their numbers.
const FAMILY: &str = r#"sleep 100 & echo $$ >"$F/new"; echo $! >>"$F/new"; mv "$F/new" "$F/ids"; wait"#;
/// A command whose processes ignore SIGTERM, SIGHUP and SIGINT.
pub(crate) const STUBBORN: &str = r#"
    trap '' TERM HUP INT
    sh -c 'while :; do sleep 0.05; done' & echo $$ >"$F/new"; echo $! >>"$F/new"; mv "$F/new" "$F/ids"
    while :; do sleep 0.05; done"#;
/// What an answer may come late, on a busy machine.
pub(crate) const SLACK: std::time::Duration = secs(3);

#[tokio::test]
async fn kill_9_of_the_binary_ends_the_command_and_the_next_gets_the_key_within_the_ttl() {
    for (script, name) in [(FAMILY, "killed"), (STUBBORN, "killed_stubborn")] {
        let sandbox = Sandbox::new(name).await;
        let run = sandbox.run(script).spawn().unwrap();
        let family = sandbox.processes("ids", 2).await;
        signal(id(&run), SIGKILL);
        let killed = Clock::Boot.now().since_origin();
        let last = gone(&family, TTL + SLACK).await;
        assert!(last < killed + TTL, "{:?} after it was killed", last - killed);
        let lease = sandbox.seal.acquire(KEY).wait(secs(30)).await.unwrap();
        let next = Clock::Boot.now().since_origin();
        println!("ended {:?} after, granted {:?} after", last - killed, next - killed);
        assert!(last < next && next - killed < TTL + SLACK, "{last:?} {next:?} {killed:?}");
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_binary_stopped_past_the_ttl_finds_its_command_ended_before_the_deadline() {
    for (script, name) in [(FAMILY, "stopped"), (STUBBORN, "stopped_stubborn")] {
        let sandbox = Sandbox::new(name).await;
        let run = sandbox.run(script).spawn().unwrap();
        let family = sandbox.processes("ids", 2).await;
        signal(id(&run), SIGSTOP);
        let stopped = Clock::Boot.now().since_origin();
        let last = gone(&family, TTL + SLACK).await;
        println!("ended {:?} after the binary was stopped", last - stopped);
        assert!(last < stopped + TTL, "{:?}", last - stopped);
        let lease = sandbox.seal.acquire(KEY).wait(secs(30)).await.unwrap();
        assert!(last < Clock::Boot.now().since_origin());
        lease.release().await.unwrap();
        signal(id(&run), SIGCONT);
        ended(run).await.says(122, "could not be refreshed in time, so the command was ended");
    }
}

#[tokio::test]
async fn kill_9_of_the_guard_ends_the_command_and_releases_the_lease() {
    let sandbox = Sandbox::new("unguarded").await;
    let run = sandbox.run(STUBBORN).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    let [guard] = *children(id(&run)) else { panic!("it has one child, the guard") };
    assert_eq!(children(guard), [family[0]], "the command is the guard's child");
    signal(guard, SIGKILL);
    ended(run).await.says(137, "the guard of the command was killed");
    gone(&family, millis(1)).await;
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_guard_that_was_stopped_does_not_keep_the_command_past_the_deadline() {
    let sandbox = Sandbox::new("guard_stopped").await;
    let run = sandbox.run(STUBBORN).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    let [guard] = *children(id(&run)) else { panic!("it has one child, the guard") };
    signal(guard, SIGSTOP);
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    let revoked = Clock::Boot.now().since_origin();
    let last = gone(&family, TTL + SLACK).await;
    assert!(last < revoked + TTL, "{:?}", last - revoked);
    ended(run).await.says(122, "revoked by \"test\" (reason: \"moved\")");
}

#[tokio::test]
async fn a_guard_that_was_stopped_does_not_keep_the_command_past_a_deadline_between_two_looks() {
    let sandbox = Sandbox::new("looks").await;
    // It looks every second, and kills 25 ms before the end.
    let times = ["--ttl=20s", "--term-before=4500ms", "--kill-before=50ms"];
    let arguments = [&["run", KEY], &times[..], &["--", "sh", "-c", STUBBORN]].concat();
    let run = sandbox.mongoseal(&arguments).env("F", sandbox.file("")).spawn().unwrap();
    let family = sandbox.processes("ids", 2).await;
    let [guard] = *children(id(&run)) else { panic!("it has one child, the guard") };
    signal(guard, SIGSTOP);
    // It listens for a revocation once it has held for a second.
    tokio::time::sleep(secs(2)).await;
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    let revoked = Clock::Boot.now().since_origin();
    let last = gone(&family, secs(20)).await;
    println!("ended {:?} after it was revoked", last - revoked);
    assert!(last < revoked + millis(4500 + 450), "{:?}", last - revoked);
    ended(run).await.says(122, "revoked by \"test\" (reason: \"moved\")");
}

#[tokio::test]
async fn a_guard_that_was_stopped_past_the_ttl_lets_a_command_whose_lease_was_refreshed_go_on() {
    let sandbox = Sandbox::new("guard_late").await;
    let run = sandbox.run(r#"echo $$ >"$F/id"; until [ -e "$F/go" ]; do sleep 0.05; done; exit 6"#).spawn().unwrap();
    let command = sandbox.processes("id", 1).await;
    let [guard] = *children(id(&run)) else { panic!("it has one child, the guard") };
    signal(guard, SIGSTOP);
    tokio::time::sleep(TTL + secs(1)).await;
    signal(guard, SIGCONT);
    tokio::time::sleep(secs(1)).await;
    assert!(is_running(command[0]));
    fs::write(sandbox.file("go"), "").unwrap();
    ended(run).await.is_quiet(6);
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_command_that_had_ended_before_its_lease_did_gives_its_status_also_where_the_binary_was_stopped() {
    let sandbox = Sandbox::new("ended_in_time").await;
    let run = sandbox.run(r#"echo $$ >"$F/id"; until [ -e "$F/go" ]; do sleep 0.05; done; exit 6"#).spawn().unwrap();
    let command = sandbox.processes("id", 1).await;
    signal(id(&run), SIGSTOP);
    fs::write(sandbox.file("go"), "").unwrap();
    gone(&command, secs(2)).await;
    tokio::time::sleep(TTL + secs(1)).await;
    signal(id(&run), SIGCONT);
    ended(run).await.is_quiet(6);
}

#[tokio::test]
async fn what_a_command_leaves_running_is_ended_before_the_key_is_free() {
    let sandbox = Sandbox::new("left").await;
    let script = r#"sleep 100 & echo $! >"$F/ids"; sh -c 'sleep 0.2; echo late' & exit 3"#;
    let run = ended(sandbox.run(script).spawn().unwrap()).await;
    run.is_quiet(3);
    assert_eq!(run.stdout, "late\n", "what ends by itself soon is not cut short");
    gone(&sandbox.processes("ids", 1).await, millis(1)).await;
    sandbox.is_free().await;
    assert!(fs::exists(sandbox.file("ids")).unwrap());
}
