//! Processes that leave the command's process group, and processes that end while it runs.

use std::{
    fs,
    io::{BufRead, BufReader, IoSlice},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Stdio,
};

use futures_util::future::join_all;
use mongoseal::store::Clock;
use nix::{
    sys::{
        signal::{
            Signal::{SIGCONT, SIGKILL, SIGSTOP},
            kill,
        },
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::Pid,
};
use serde_json::json;

use crate::{
    by_length, eventually, millis,
    sandbox::{BINARY, Sandbox, TTL, children, ended, gone, guard, id, signal},
    secs,
};

/// Ways to leave the process group for the script `$STUBBORN`, which stays.
pub(crate) const WAYS: [(&str, &str); 4] = [
    ("timeout", r#"timeout 100 sh -c "$STUBBORN""#),
    ("bash_m", r#"exec bash -c 'set -m; sh -c "$STUBBORN" & wait'"#),
    ("setsid", r#"setsid sh -c "$STUBBORN" & wait"#),
    ("daemon", r#"setsid -f sh -c "$STUBBORN"; sleep 100"#),
];

#[tokio::test]
async fn what_has_left_the_group_is_ended_before_the_key_is_free() {
    let frees = WAYS.map(async |(name, script)| {
        let sandbox = Sandbox::new(&format!("escaped_free_{name}")).await;
        // The command itself ends at once.
        let script =
            script.replace("; sleep 100", "").replace("& wait", "& while [ ! -e \"$F/ids\" ]; do sleep 0.02; done");
        let script = format!("({script}) & until [ -e \"$F/ids\" ]; do sleep 0.02; done");
        let run = ended(sandbox.run(&script).spawn().unwrap()).await;
        run.is_quiet(0);
        gone(&sandbox.processes(2).await, millis(1)).await;
        sandbox.is_free().await;
    });
    join_all(frees).await;
}

/// The guard is stopped in the moment in which it starts the command, mostly before it has reported that.
#[tokio::test]
async fn a_guard_that_is_killed_at_the_start_leaves_a_command_that_was_ended_or_did_not_begin() {
    let mut unreported = 0;
    let rounds = by_length(3, 10);
    for round in 0..rounds {
        let sandbox = Sandbox::new(&format!("escaped_start_{round}")).await;
        let run = sandbox.run(WAYS[2].1).spawn().unwrap();
        let program = id(&run);
        let guard = tokio::task::spawn_blocking(move || {
            loop {
                if let [guard, ..] = *children(program)
                    && !children(guard).is_empty()
                {
                    kill(guard, SIGSTOP).unwrap();
                    return guard;
                }
            }
        });
        let guard = tokio::time::timeout(secs(60), guard).await.expect("it starts its command").unwrap();
        // A command that has begun writes its file.
        tokio::time::sleep(millis(200)).await;
        signal(guard, SIGKILL);
        let ended = ended(run).await;
        if ended.code == 125 {
            ended.says(125, "the guard of the command was ended (signal: 9 (SIGKILL)) before the command began");
            assert!(!sandbox.file("ids").exists(), "nothing of the command has run");
            unreported += 1;
        } else {
            ended.says(137, "the guard of the command was killed");
            if sandbox.file("ids").exists() {
                gone(&sandbox.processes(2).await, millis(1)).await;
            }
        }
        sandbox.is_free().await;
    }
    println!("{unreported} of {rounds} commands had not begun");
}

/// The children of all threads of a process.
fn all_children(process: Pid) -> usize {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap().split_whitespace().count()).sum()
}

#[tokio::test]
async fn orphans_that_end_while_the_command_runs_do_not_pile_up() {
    let sandbox = Sandbox::new("zombies").await;
    let script = r#"
        i=0; while [ $i -lt 50 ]; do (true &); setsid -f true; i=$((i + 1)); done
        echo $$ >"$F/ids"; until [ -e "$F/go" ]; do sleep 0.02; done"#;
    let run = sandbox.run(script).spawn().unwrap();
    sandbox.processes(1).await;
    let guard = guard(&run);
    eventually(secs(30), "the command is the guard's only child", async || all_children(guard) == 1).await;
    sandbox.touch("go");
    ended(run).await.is_quiet(0);
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn a_command_that_is_stopped_again_and_again_does_not_outlive_the_lease_of_a_stopped_program() {
    let sandbox = Sandbox::new("flooded").await;
    let run = sandbox.run(r#"echo $$ >"$F/ids"; while :; do sleep 0.01; done"#).spawn().unwrap();
    let command = sandbox.processes(1).await;
    signal(id(&run), SIGSTOP);
    let stopped = Clock::Boot.now().since_origin();
    let mut count = 0;
    while crate::sandbox::is_running(command[0]) && Clock::Boot.now().since_origin() < stopped + TTL + secs(3) {
        for sent in [SIGSTOP, SIGCONT] {
            kill(command[0], sent).ok();
            tokio::time::sleep(millis(2)).await;
        }
        count += 1;
    }
    let last = Clock::Boot.now().since_origin();
    println!("ended {:?} after the program was stopped, and after {count} stops", last - stopped);
    assert!(last < stopped + TTL && count > 50, "{:?}, {count}", last - stopped);
    signal(id(&run), SIGCONT);
    ended(run).await.says(122, "could not be refreshed in time, so the command was ended");
}

#[test]
fn a_guard_whose_lease_is_about_to_end_starts_no_command() {
    let (holder, guard) = UnixStream::pair().unwrap();
    let mut command = std::process::Command::new(BINARY);
    let guard = command.args(["__guard", "0", "echo", "began"]).stdin(OwnedFd::from(guard)).stdout(Stdio::piped());
    let guard = guard.spawn().unwrap();
    drop(command);
    let until = Clock::Boot.now().since_origin() + secs(3);
    let times = json!({ "term_before": secs(5), "kill_before": secs(1) });
    let begin = format!("{}\n", json!({ "Begin": { "until": until, "times": times, "is_nested": false } }));
    let input = [std::io::stdin().as_raw_fd()];
    let (text, rights) = ([IoSlice::new(begin.as_bytes())], [ControlMessage::ScmRights(&input)]);
    sendmsg::<()>(holder.as_raw_fd(), &text, &rights, MsgFlags::empty(), None).unwrap();
    let report = BufReader::new(holder).lines().next().unwrap().unwrap();
    assert_eq!(report, r#"{"Ended":{"exit":{"Code":0},"signalled":true}}"#);
    let output = guard.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), Vec::new()));
}
