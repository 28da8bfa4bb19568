//! The program as process 1 of a container.
#![cfg(target_os = "linux")]

use nix::{
    sys::signal::Signal::{self, SIGINT, SIGQUIT, SIGTERM},
    unistd::{Pid, Uid},
};
use tokio::process::Child;

use crate::{
    eventually,
    sandbox::{BINARY, KEY, Sandbox, children, ended, id, signal},
    secs,
};

/// Starts the program in a namespace of process ids of its own, by `unshare` with these options.
fn contained(sandbox: &Sandbox, options: &[&str], arguments: &[&str]) -> Child {
    // Other users than root need a namespace of users, which some systems refuse: then this test fails.
    let namespaces = if Uid::effective().is_root() { "-pf" } else { "-Urpf" };
    let arguments = [&[namespaces], options, &[BINARY], arguments].concat();
    sandbox.command("unshare", &arguments).spawn().expect("unshare(1) is installed")
}

/// Whether a process has a handler of this signal.
fn handles(process: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    caught & (1 << (signal as i32 - 1)) != 0
}

/// The system does not deliver to process 1 the signal by which the program would end. A signal can also come before
/// the runtime knows that the socket of the guard takes data.
#[tokio::test]
async fn as_process_1_it_ends_after_sigint_and_sigquit_with_128_and_the_number_and_releases_the_key() {
    let sandbox = Sandbox::new("init").await;
    let commands: [&[&str]; 3] = [
        &["run", KEY, "--", "sleep", "100"],
        &["once", KEY, "--tick", "7", "--", "sleep", "100"],
        &["doctor", "--deep"],
    ];
    for arguments in commands {
        for sent in [SIGINT, SIGQUIT, SIGTERM] {
            let run = contained(&sandbox, &["--mount-proc"], arguments);
            if arguments[0] == "doctor" {
                // Before that, process 1 ignores the signal.
                eventually(secs(60), "it handles signals", async || {
                    children(id(&run)).first().is_some_and(|inside| handles(*inside, sent))
                })
                .await;
            } else {
                sandbox.held().await;
            }
            let [inside] = children(id(&run))[..] else { panic!("unshare could not start the program") };
            signal(inside, sent);
            let run = ended(run).await;
            assert_eq!(run.code, 128 + sent as i32, "{arguments:?} {sent}: {}", run.stderr);
            sandbox.is_free().await;
        }
    }
}

/// There `run` would read a wrong list of its children, and could signal other processes.
#[tokio::test]
async fn with_the_numbers_of_another_namespace_in_proc_no_command_is_started() {
    let sandbox = Sandbox::new("numbers").await;
    let commands: [&[&str]; 2] = [&["run", KEY, "--", "true"], &["once", KEY, "--tick", "7", "--", "true"]];
    for arguments in commands {
        ended(contained(&sandbox, &[], arguments)).await.fails(125, "--mount-proc");
        sandbox.is_free().await;
    }
}
