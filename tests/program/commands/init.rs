//! The program as process 1 of a container.
#![cfg(target_os = "linux")]

use nix::{
    sys::signal::Signal::{self, SIGINT, SIGQUIT, SIGTERM},
    unistd::{Pid, Uid},
};
use tokio::process::Command;

use crate::{
    sandbox::{KEY, Sandbox, children, ended, id, signal},
    secs,
};

/// `unshare` with options that give a program a namespace of process ids of its own.
fn contained(sandbox: &Sandbox, arguments: &[&str], has_own_proc: bool) -> Command {
    let mut unshare = Command::new("unshare");
    let inside = sandbox.mongoseal(arguments);
    // Other users than root need a namespace of users, which some systems refuse: then this test fails.
    unshare.arg(if Uid::effective().is_root() { "-pf" } else { "-Urpf" });
    unshare.args(has_own_proc.then_some("--mount-proc"));
    unshare.arg(inside.as_std().get_program()).args(inside.as_std().get_args());
    for (name, value) in inside.as_std().get_envs() {
        unshare.env(name, value.unwrap_or_default());
    }
    unshare.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    unshare.stderr(std::process::Stdio::piped()).kill_on_drop(true);
    unshare
}

/// Whether a process has a handler of this signal.
fn handles(process: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    caught & (1 << (signal as i32 - 1)) != 0
}

#[tokio::test]
async fn as_process_1_it_ends_after_sigint_and_sigquit_with_128_and_the_number_and_releases_the_key() {
    let sandbox = Sandbox::new("init").await;
    let commands: [&[&str]; 3] =
        [&["run", KEY, "--", "sleep", "100"], &["once", KEY, "--tick", "7", "--", "sleep", "100"], &["conform"]];
    for arguments in commands {
        for sent in [SIGINT, SIGQUIT, SIGTERM] {
            let run = contained(&sandbox, arguments, true).spawn().expect("unshare(1) is installed");
            if arguments[0] == "conform" {
                // Before that, process 1 ignores the signal.
                mongoseal_test_support::eventually(secs(20), "it handles signals", async || {
                    children(id(&run)).first().is_some_and(|inside| handles(*inside, sent))
                })
                .await;
            } else {
                mongoseal_test_support::eventually(secs(20), "the key is held", async || {
                    sandbox.seal.inspect(KEY).await.unwrap().is_some_and(|record| !record.holders.is_empty())
                })
                .await;
            }
            let [inside] = children(id(&run))[..] else { panic!("unshare could not start the program") };
            signal(inside, sent);
            let run = ended(run).await;
            assert_eq!((run.code, run.signal), (Some(128 + sent as i32), None), "{arguments:?} {sent}: {}", run.stderr);
            sandbox.is_free().await;
        }
    }
}

#[tokio::test]
async fn with_the_numbers_of_another_namespace_in_proc_no_command_is_started() {
    let sandbox = Sandbox::new("numbers").await;
    let commands: [&[&str]; 2] = [&["run", KEY, "--", "true"], &["once", KEY, "--tick", "7", "--", "true"]];
    for arguments in commands {
        let run = ended(contained(&sandbox, arguments, false).spawn().expect("unshare(1) is installed")).await;
        assert_eq!(run.code, Some(125), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains("--mount-proc"), "{arguments:?}: {}", run.stderr);
        sandbox.is_free().await;
    }
}
