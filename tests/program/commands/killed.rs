//! The end of a lease under its command: by SIGKILL and SIGSTOP of the program and of its guard, by a revocation, and by an
//! outage of MongoDB.

use std::time::Duration;

use futures_util::future::join_all;
use mongoseal::store::Clock;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};

use crate::{
    escapees::WAYS,
    millis,
    sandbox::{KEY, STUBBORN, Sandbox, TTL, ended, gone, guard, id, is_running, signal},
    secs,
};

/// A command with a child of its own, which leaves both their numbers.
const FAMILY: &str = r#"sleep 100 & echo $$ >"$F/new"; echo $! >>"$F/new"; mv "$F/new" "$F/ids"; wait"#;
/// The inner lease has a long grace after SIGTERM.
const NESTED: &str =
    r#"trap "" TERM; "$M" run inner --ttl 60s --term-before 30s --kill-before 1s -- sh -c "$STUBBORN" & wait; wait"#;

#[derive(Clone, Copy, PartialEq)]
enum Cause {
    ProgramKilled,
    ProgramStopped,
    Revoked,
    RevokedWhileTheGuardIsStopped,
}

/// A command, and how its lease ends. Beside these, a process may have left the group of the command.
const ENDS: [(&str, &str, Cause); 11] = [
    ("killed", FAMILY, Cause::ProgramKilled),
    ("killed_stubborn", STUBBORN, Cause::ProgramKilled),
    ("killed_nested", NESTED, Cause::ProgramKilled),
    ("stopped", FAMILY, Cause::ProgramStopped),
    ("stopped_stubborn", STUBBORN, Cause::ProgramStopped),
    ("guard_stopped", STUBBORN, Cause::RevokedWhileTheGuardIsStopped),
    ("revoked_nested", NESTED, Cause::Revoked),
    ("revoked_timeout", WAYS[0].1, Cause::Revoked),
    ("revoked_bash_m", WAYS[1].1, Cause::Revoked),
    ("revoked_setsid", WAYS[2].1, Cause::Revoked),
    ("revoked_daemon", WAYS[3].1, Cause::Revoked),
];

/// Ends the lease of a command. Returns how long after that the last process of the command was seen.
async fn end_lease((name, script, cause): (&str, &str, Cause)) -> Duration {
    let sandbox = Sandbox::new(name).await;
    let run = sandbox.run(script).spawn().unwrap();
    let family = sandbox.processes(2).await;
    match cause {
        Cause::ProgramKilled => signal(id(&run), SIGKILL),
        Cause::ProgramStopped => signal(id(&run), SIGSTOP),
        Cause::RevokedWhileTheGuardIsStopped => signal(guard(&run), SIGSTOP),
        Cause::Revoked => {}
    }
    if matches!(cause, Cause::Revoked | Cause::RevokedWhileTheGuardIsStopped) {
        sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    }
    let began = Clock::Boot.now().since_origin();
    let last = gone(&family, secs(60)).await;
    sandbox.freed(KEY).await;
    if cause == Cause::ProgramStopped {
        signal(id(&run), SIGCONT);
    }
    let run = ended(run).await;
    match cause {
        Cause::ProgramKilled => assert_eq!(run.code, -(SIGKILL as i32), "{name}"),
        Cause::ProgramStopped => run.says(122, "could not be refreshed in time, so the command was ended"),
        Cause::Revoked | Cause::RevokedWhileTheGuardIsStopped => {
            run.says(122, "revoked by \"test\" (reason: \"moved\")");
        }
    }
    last.saturating_sub(began)
}

#[tokio::test]
async fn no_process_of_a_command_is_left_when_its_lease_has_ended() {
    join_all(ENDS.map(end_lease)).await;
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn each_process_of_a_command_is_ended_before_its_lease_could_be_granted_to_another() {
    for case in ENDS {
        let last = end_lease(case).await;
        println!("{}: ended {last:?} after the cause", case.0);
        assert!(last < TTL, "{}: {last:?}", case.0);
    }
}

#[tokio::test]
async fn kill_9_of_the_guard_ends_the_command_and_what_has_left_its_group_and_releases_the_lease() {
    for (name, script) in [("unguarded", STUBBORN), ("escaped_unguarded", WAYS[2].1)] {
        let sandbox = Sandbox::new(name).await;
        let run = sandbox.run(script).spawn().unwrap();
        let family = sandbox.processes(2).await;
        signal(guard(&run), SIGKILL);
        ended(run).await.says(137, "the guard of the command was killed");
        gone(&family, millis(1)).await;
        sandbox.is_free().await;
    }
}

#[tokio::test]
#[ignore = "night: judges milliseconds"]
async fn a_guard_that_was_stopped_does_not_keep_the_command_past_a_deadline_between_two_looks() {
    let sandbox = Sandbox::new("two_looks").await;
    // It looks every second, and kills 25 ms before the end.
    let times = ["--ttl=20s", "--term-before=4500ms", "--kill-before=50ms"];
    let arguments = [&["run", KEY], &times[..], &["--", "sh", "-c", STUBBORN]].concat();
    let run = sandbox.mongoseal(&arguments).spawn().unwrap();
    let family = sandbox.processes(2).await;
    signal(guard(&run), SIGSTOP);
    // It listens for a revocation once it has held for a second.
    tokio::time::sleep(secs(2)).await;
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    let revoked = Clock::Boot.now().since_origin();
    let last = gone(&family, secs(20)).await;
    println!("ended {:?} after it was revoked", last - revoked);
    assert!(last < revoked + millis(4500 + 450), "{:?}", last - revoked);
    ended(run).await.says(122, "revoked by \"test\" (reason: \"moved\")");
}

/// Ends when the file `go` exists.
const BRIEF: &str = r#"echo $$ >"$F/ids"; until [ -e "$F/go" ]; do sleep 0.05; done; exit 6"#;

/// The lease was refreshed while the guard was stopped. Under the program that was stopped, the command had ended in time.
#[tokio::test]
#[ignore = "night: waits past a short ttl, within which refreshes must be confirmed and the command must end"]
async fn what_was_stopped_past_the_ttl_gives_the_status_of_a_command_that_did_not_outlive_its_lease() {
    for is_guard in [true, false] {
        let sandbox = Sandbox::new("stopped_late").await;
        let run = sandbox.run(BRIEF).spawn().unwrap();
        let command = sandbox.processes(1).await;
        let stopped = if is_guard { guard(&run) } else { id(&run) };
        signal(stopped, SIGSTOP);
        if !is_guard {
            sandbox.touch("go");
            gone(&command, secs(2)).await;
        }
        tokio::time::sleep(TTL + secs(1)).await;
        signal(stopped, SIGCONT);
        if is_guard {
            tokio::time::sleep(secs(1)).await;
            assert!(is_running(command[0]));
            sandbox.touch("go");
        }
        ended(run).await.is_quiet(6);
        sandbox.freed(KEY).await;
    }
}

#[tokio::test]
async fn what_a_command_leaves_running_is_ended_before_the_key_is_free() {
    let sandbox = Sandbox::new("left").await;
    let script = r#"sleep 100 & echo $! >"$F/ids"; sh -c 'sleep 0.05; echo late' & exit 3"#;
    let run = ended(sandbox.run(script).spawn().unwrap()).await;
    run.is_quiet(3);
    assert_eq!(run.stdout, "late\n", "what ends by itself soon is not cut short");
    gone(&sandbox.processes(1).await, millis(1)).await;
    sandbox.is_free().await;
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn a_command_is_ended_before_the_deadline_when_the_database_goes_away_and_goes_on_if_it_is_back_in_time() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "gone").await;
    let obedient = r#"exec 2>/dev/null; trap 'echo told >"$F/told"; exit 0' TERM; echo $$ >"$F/ids"; while :; do sleep 0.05; done"#;
    for (script, count) in [(obedient, 1), (STUBBORN, 2)] {
        let run = sandbox.run(script).spawn().unwrap();
        let family = sandbox.processes(count).await;
        if count == 1 {
            // For longer than from one refresh to the next. As it is back in time, the command goes on.
            set.pause(0).await;
            tokio::time::sleep(TTL / 2).await;
            set.resume(0).await;
            sandbox.is_refreshed().await;
            assert!(is_running(family[0]), "the command goes on");
            set.pause(0).await;
        } else {
            // Past its first refresh.
            tokio::time::sleep(TTL / 2).await;
            set.kill(0).await;
        }
        let away = Clock::Boot.now().since_origin();
        let last = gone(&family, TTL + secs(1)).await;
        println!("ended {:?} after the database went away, of {TTL:?}", last - away);
        assert!(last < away + TTL, "{:?}", last - away);
        ended(run).await.says(122, "could not be refreshed in time, so the command was ended");
        std::fs::remove_file(sandbox.file("ids")).unwrap();
        if count == 1 {
            sandbox.lines("told", 1).await;
            set.resume(0).await;
            // Until the set answers again and the lease has expired.
            drop(sandbox.seal.acquire(KEY).wait(secs(30)).await.unwrap());
        }
    }
}
