//! Signals to the program, and how a command ends.

use std::process::Stdio;

use nix::sys::signal::{
    Signal::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGUSR1},
    killpg,
};
use tokio::process::Command;

use crate::{
    by_length, millis,
    sandbox::{KEY, Sandbox, TTL, children, done, ended, gone, id, signal},
    secs,
};

#[tokio::test]
async fn sigint_and_sigterm_are_passed_on_and_the_lease_is_released_before_it_leaves() {
    let sandbox = Sandbox::new("told").await;
    for sent in [SIGINT, SIGQUIT, SIGTERM, SIGALRM] {
        let run = sandbox.run(r#"echo $$ >"$F/id"; exec sleep 100"#).spawn().unwrap();
        let command = sandbox.processes("id", 1).await;
        signal(id(&run), sent);
        let run = ended(run).await;
        if [SIGTERM, SIGALRM].contains(&sent) {
            run.is_quiet(128 + sent as i32);
        } else {
            run.is_ended_by(sent);
        }
        gone(&command, millis(1)).await;
        sandbox.is_free().await;
        std::fs::remove_file(sandbox.file("id")).unwrap();
    }
    // A command that tidies up is waited for, and ends as it wants.
    let script = r#"
        exec 2>/dev/null; trap 'sleep 0.3; echo tidied; exit 7' TERM; trap 'echo heard >>"$F/heard"' USR1
        echo $$ >"$F/id"; while :; do sleep 0.05; done"#;
    let run = sandbox.run(script).spawn().unwrap();
    sandbox.processes("id", 1).await;
    signal(id(&run), SIGUSR1);
    sandbox.lines("heard", 1).await;
    signal(id(&run), SIGTERM);
    let run = ended(run).await;
    run.is_quiet(7);
    assert_eq!(run.stdout, "tidied\n");
    sandbox.is_free().await;
}

#[tokio::test]
async fn sigint_ends_the_loop_of_a_shell_and_not_only_one_of_its_commands() {
    let sandbox = Sandbox::new("shell_loop").await;
    for shell in ["sh", "bash"] {
        let script =
            r#"for i in 1 2 3; do "$M" run k -- sh -c 'echo $$ >>"$F/ids"; exec sleep 100'; done; echo went on"#;
        let mut looping = Command::new(shell);
        looping.args(["-c", script]).env("M", env!("CARGO_BIN_EXE_mongoseal")).env("F", sandbox.file(""));
        for (name, value) in sandbox.mongoseal(&[]).as_std().get_envs() {
            looping.env(name, value.unwrap_or_default());
        }
        looping.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let looping = looping.spawn().unwrap();
        sandbox.processes("ids", 1).await;
        // As Ctrl-C does, without the terminal.
        killpg(id(&looping), SIGINT).unwrap();
        let looping = ended(looping).await;
        assert_eq!((looping.signal, looping.stdout.as_str()), (Some(SIGINT as i32), ""), "{shell}: {:?}", looping.code);
        assert_eq!(sandbox.lines("ids", 1).await.len(), 1, "{shell}");
        std::fs::remove_file(sandbox.file("ids")).unwrap();
    }
}

#[tokio::test]
async fn one_that_is_told_to_end_while_it_waits_leaves_the_queue() {
    let sandbox = Sandbox::new("withdrawn").await;
    let lease = sandbox.hold().await;
    for (sent, code) in [(SIGINT, None), (SIGQUIT, None), (SIGTERM, Some(143)), (SIGHUP, Some(129))] {
        let run = sandbox.run("echo never").spawn().unwrap();
        sandbox.queued(1).await;
        signal(id(&run), sent);
        let run = ended(run).await;
        code.map_or_else(|| run.is_ended_by(sent), |code| run.is_quiet(code));
        assert_eq!(run.stdout, "");
        sandbox.queued(0).await;
    }
    // Told twice at once, it leaves it too.
    let run = sandbox.run("echo never").spawn().unwrap();
    sandbox.queued(1).await;
    for sent in [SIGSTOP, SIGINT, SIGTERM, SIGCONT] {
        signal(id(&run), sent);
    }
    let run = ended(run).await;
    assert!(run.code == Some(143) || run.signal == Some(SIGINT as i32), "{:?} {:?}", run.code, run.signal);
    sandbox.queued(0).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn one_that_is_told_to_end_in_the_moment_of_release_releases_before_it_leaves() {
    let sandbox = Sandbox::new("release_told").await;
    for _ in 0..by_length(3, 6) {
        let run = sandbox.run(r#"echo $$ >"$F/id"; until [ -e "$F/go" ]; do sleep 0.02; done"#).spawn().unwrap();
        let command = sandbox.processes("id", 1).await;
        let [guard] = *children(id(&run)) else { panic!("it has one child, the guard") };
        signal(id(&run), SIGSTOP);
        std::fs::write(sandbox.file("go"), "").unwrap();
        gone(&[command[0], guard], secs(30)).await;
        // That its command has ended and that it is to end, it finds at once.
        for sent in [SIGTERM, SIGINT, SIGCONT] {
            signal(id(&run), sent);
        }
        ended(run).await.is_quiet(0);
        sandbox.is_free().await;
        std::fs::remove_file(sandbox.file("id")).unwrap();
        std::fs::remove_file(sandbox.file("go")).unwrap();
    }
}

/// The same, begun by one that ignores this signal.
fn ignoring(signal: &str, run: &Command) -> Command {
    let mut outer = Command::new("env");
    outer.args([&format!("--ignore-signal={signal}"), env!("CARGO_BIN_EXE_mongoseal")]);
    outer.args(run.as_std().get_args());
    for (name, value) in run.as_std().get_envs() {
        outer.env(name, value.unwrap_or_default());
    }
    outer
}

#[tokio::test]
async fn a_signal_that_was_ignored_before_is_ignored_by_the_command() {
    let sandbox = Sandbox::new("nohup").await;
    let inner = r#"echo $$ >"$F/id"; until [ -e "$F/go" ]; do sleep 0.05; done; echo done"#;
    let mut outer = ignoring("HUP", &sandbox.run(inner));
    let run = outer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sandbox.processes("id", 1).await;
    signal(id(&run), SIGHUP);
    signal(sandbox.processes("id", 1).await[0], SIGHUP);
    tokio::time::sleep(millis(200)).await;
    std::fs::write(sandbox.file("go"), "").unwrap();
    let run = ended(run).await;
    run.is_quiet(0);
    assert_eq!(run.stdout, "done\n");
}

#[tokio::test]
async fn a_signal_that_was_blocked_before_is_blocked_in_the_command_and_no_other() {
    let sandbox = Sandbox::new("blocked").await;
    // Not by dash(1), which unblocks all signals. With --uri the program executes itself again.
    let uri = sandbox.uri();
    let run = sandbox.mongoseal(&["run", KEY, "--uri", uri, "--", "grep", "SigBlk", "/proc/self/status"]);
    let mut outer = Command::new("env");
    outer.args(["--block-signal=USR1", env!("CARGO_BIN_EXE_mongoseal")]).args(run.as_std().get_args());
    for (name, value) in run.as_std().get_envs() {
        outer.env(name, value.unwrap_or_default());
    }
    let run = outer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let run = ended(run).await;
    run.is_quiet(0);
    let usr1 = 1_u64 << (SIGUSR1 as i32 - 1);
    assert_eq!(run.stdout.split_whitespace().last(), Some(format!("{usr1:016x}").as_str()));
}

#[tokio::test]
async fn the_status_is_that_of_the_command_where_the_ends_of_children_were_ignored_before() {
    let sandbox = Sandbox::new("ignored_ends").await;
    let mut outer = ignoring("CHLD", &sandbox.run("sh -c 'exit 6'; exit $(($? + 1))"));
    let run = outer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(run).await.is_quiet(7);
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_revoked_lease_ends_the_command_at_once_and_says_why() {
    let sandbox = Sandbox::new("revoked").await;
    // No refresh is due in the time of the test.
    let script = "touch $F/begun; exec sleep 100";
    let mut run = sandbox.mongoseal(&["run", KEY, "--ttl", "30m", "--", "sh", "-c", script]);
    let run = run.env("F", sandbox.file("")).spawn().unwrap();
    sandbox.exists("begun").await;
    sandbox.seal.revoke(KEY).by("ops").reason("the host is going away").await.unwrap();
    ended(run).await.says(
        122,
        "was lost, so the command was ended: it was revoked by \"ops\" (reason: \"the host is going away\")",
    );
}

#[tokio::test]
async fn a_command_is_given_its_input_and_its_lease_and_nothing_else_is_on_the_output() {
    use tokio::io::AsyncWriteExt;
    let sandbox = Sandbox::new("given").await;
    let mut command = sandbox.run(
        r#"cat; echo "$MONGOSEAL_KEY $MONGOSEAL_TOKEN $MONGOSEAL_LEASE_ID $MONGOSEAL_DEADLINE"
           cut -d' ' -f1 /proc/uptime; ls -l /proc/self/fd | grep -c socket; grep SigBlk /proc/self/status; exit 3"#,
    );
    let mut run = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = run.stdin.take().unwrap();
    input.write_all(b"from outside\n").await.unwrap();
    drop(input);
    let run = ended(run).await;
    run.is_quiet(3);
    let lines: Vec<_> = run.stdout.lines().collect();
    let [first, lease, uptime, sockets, blocked] = lines[..] else { panic!("{lines:?}") };
    assert_eq!((first, blocked.split_whitespace().last()), ("from outside", Some("0000000000000000")));
    assert_eq!(sockets, "0", "what holder and guard tell each other by is theirs");
    let [key, token, id, deadline] = lease.split(' ').collect::<Vec<_>>()[..] else { panic!("{lease}") };
    assert_eq!((key, id.len()), (KEY, 36));
    let newest = sandbox.seal.inspect(KEY).await.unwrap().unwrap().version;
    assert_eq!(token, newest.to_string());
    let left = deadline.parse::<f64>().unwrap() / 1000.0 - uptime.parse::<f64>().unwrap();
    assert!(left > 0.0 && left <= TTL.as_secs_f64(), "{left}");
}

#[tokio::test]
async fn the_status_is_that_of_the_command_or_says_why_there_was_none() {
    let sandbox = Sandbox::new("status").await;
    sandbox.run("exit 42").spawn().map(ended).unwrap().await.is_quiet(42);
    sandbox.run("exit 130").spawn().map(ended).unwrap().await.is_quiet(130);
    sandbox.run("kill -9 $$").spawn().map(ended).unwrap().await.is_quiet(137);
    let run = |command: &str| sandbox.mongoseal(&["run", KEY, "--", command]);
    done(run("/no/such/command")).await.says(127, "cannot run /no/such/command: ");
    done(run("no-such-command")).await.says(127, "cannot run no-such-command: ");
    done(run("/etc/passwd")).await.says(126, "cannot run /etc/passwd: ");
    sandbox.is_free().await;
}
