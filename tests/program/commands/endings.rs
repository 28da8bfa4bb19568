//! Signals to the program, and how a command ends.

use nix::sys::signal::{
    Signal::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGUSR1},
    killpg,
};
use tokio::io::AsyncWriteExt;

use crate::{
    by_length, millis,
    sandbox::{BINARY, KEY, Sandbox, TTL, done, ended, gone, guard, id, signal},
    secs,
};

#[tokio::test]
async fn sigint_and_sigterm_are_passed_on_and_the_lease_is_released_before_it_leaves() {
    let sandbox = Sandbox::new("told").await;
    for sent in [SIGINT, SIGQUIT, SIGTERM, SIGALRM] {
        let run = sandbox.run(r#"echo $$ >"$F/ids"; exec sleep 100"#).spawn().unwrap();
        let command = sandbox.processes(1).await;
        signal(id(&run), sent);
        let run = ended(run).await;
        let code = if [SIGTERM, SIGALRM].contains(&sent) { 128 + sent as i32 } else { -(sent as i32) };
        run.is_quiet(code);
        gone(&command, millis(1)).await;
        sandbox.is_free().await;
        std::fs::remove_file(sandbox.file("ids")).unwrap();
    }
    // A command that tidies up is waited for, and ends as it wants.
    let script = r#"
        exec 2>/dev/null; trap 'sleep 0.3; echo tidied; exit 7' TERM; trap 'echo heard >>"$F/heard"' USR1
        echo $$ >"$F/ids"; while :; do sleep 0.05; done"#;
    let run = sandbox.run(script).spawn().unwrap();
    sandbox.processes(1).await;
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
        let looping = sandbox.command(shell, &["-c", script]).process_group(0).spawn().unwrap();
        sandbox.processes(1).await;
        // As Ctrl-C does, without the terminal.
        killpg(id(&looping), SIGINT).unwrap();
        let looping = ended(looping).await;
        assert_eq!((looping.code, looping.stdout.as_str()), (-(SIGINT as i32), ""), "{shell}");
        assert_eq!(sandbox.lines("ids", 1).await.len(), 1, "{shell}");
        std::fs::remove_file(sandbox.file("ids")).unwrap();
    }
}

#[tokio::test]
async fn one_that_is_told_to_end_while_it_waits_leaves_the_queue() {
    let sandbox = Sandbox::new("withdrawn").await;
    let lease = sandbox.hold().await;
    for (sent, code) in [(SIGINT, -2), (SIGQUIT, -3), (SIGTERM, 143), (SIGHUP, 129)] {
        let run = sandbox.run("echo never").spawn().unwrap();
        sandbox.queued(1).await;
        signal(id(&run), sent);
        let run = ended(run).await;
        run.is_quiet(code);
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
    assert!([143, -2].contains(&run.code), "{}", run.code);
    sandbox.queued(0).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn one_that_is_told_to_end_in_the_moment_of_release_releases_before_it_leaves() {
    let sandbox = Sandbox::new("release_told").await;
    for _ in 0..by_length(3, 6) {
        let run = sandbox.run(r#"echo $$ >"$F/ids"; until [ -e "$F/go" ]; do sleep 0.02; done"#).spawn().unwrap();
        let command = sandbox.processes(1).await;
        let guard = guard(&run);
        signal(id(&run), SIGSTOP);
        sandbox.touch("go");
        gone(&[command[0], guard], secs(30)).await;
        // That its command has ended and that it is to end, it finds at once.
        for sent in [SIGTERM, SIGINT, SIGCONT] {
            signal(id(&run), sent);
        }
        ended(run).await.is_quiet(0);
        sandbox.is_free().await;
        std::fs::remove_file(sandbox.file("ids")).unwrap();
        std::fs::remove_file(sandbox.file("go")).unwrap();
    }
}

#[tokio::test]
async fn a_signal_that_was_ignored_before_is_ignored_by_the_command() {
    let sandbox = Sandbox::new("nohup").await;
    let inner = r#"echo $$ >"$F/ids"; until [ -e "$F/go" ]; do sleep 0.05; done; echo done"#;
    let run = ["--ignore-signal=HUP", BINARY, "run", KEY, "--", "sh", "-c", inner];
    let run = sandbox.command("env", &run).spawn().unwrap();
    let command = sandbox.processes(1).await[0];
    signal(id(&run), SIGHUP);
    signal(command, SIGHUP);
    tokio::time::sleep(millis(200)).await;
    sandbox.touch("go");
    assert_eq!(ended(run).await.printed(), "done\n");
}

#[tokio::test]
async fn a_signal_that_was_blocked_before_is_blocked_in_the_command_and_no_other() {
    let sandbox = Sandbox::new("blocked").await;
    // Not by dash(1), which unblocks all signals. With --uri the program executes itself again.
    let run = ["--block-signal=USR1", BINARY, "run", KEY, "--uri", sandbox.uri(), "--"];
    let run = [&run[..], &["grep", "SigBlk", "/proc/self/status"]].concat();
    let printed = done(sandbox.command("env", &run)).await.printed();
    let usr1 = 1_u64 << (SIGUSR1 as i32 - 1);
    assert_eq!(printed.split_whitespace().last(), Some(format!("{usr1:016x}").as_str()));
}

#[tokio::test]
async fn the_status_is_that_of_the_command_where_the_ends_of_children_were_ignored_before() {
    let sandbox = Sandbox::new("ignored_ends").await;
    let script = "sh -c 'exit 6'; exit $(($? + 1))";
    let run = ["--ignore-signal=CHLD", BINARY, "run", KEY, "--", "sh", "-c", script];
    done(sandbox.command("env", &run)).await.is_quiet(7);
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_command_is_given_its_input_and_its_lease_and_nothing_else_is_on_the_output() {
    let sandbox = Sandbox::new("given").await;
    let mut command = sandbox.run(
        r#"cat; echo "$MONGOSEAL_KEY $MONGOSEAL_TOKEN $MONGOSEAL_LEASE_ID $MONGOSEAL_DEADLINE"
           cut -d' ' -f1 /proc/uptime; ls -l /proc/self/fd | grep -c socket; grep SigBlk /proc/self/status; exit 3"#,
    );
    let mut run = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
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
    for (script, status) in [("exit 42", 42), ("exit 130", 130), ("kill -9 $$", 137)] {
        done(sandbox.run(script)).await.is_quiet(status);
    }
    for (command, status) in [("/no/such/command", 127), ("no-such-command", 127), ("/etc/passwd", 126)] {
        let run = sandbox.done(&["run", KEY, "--", command]).await;
        run.says(status, &format!("cannot run {command}: "));
    }
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_revocation_ends_each_command_at_once_and_is_printed_once_as_the_last_line() {
    let sandbox = Sandbox::new("revoked_once").await;
    // No refresh is due in the time of the test.
    for arguments in [
        &["run", KEY, "--ttl=30m", "--", "sleep", "100"][..],
        &["run", "a", "b", KEY, "--ttl=30m", "--", "sleep", "100"],
        &["elect", KEY, "value", "--ttl=30m"],
    ] {
        let child = sandbox.mongoseal(arguments).spawn().unwrap();
        sandbox.held().await;
        sandbox.seal.revoke(KEY).by("ops").reason("the host is going away").await.unwrap();
        let ended = ended(child).await;
        let printed = format!("{}{}", ended.stdout, ended.stderr);
        let told = "was revoked by \"ops\" (reason: \"the host is going away\")";
        assert_eq!((ended.code, printed.matches(told).count()), (122, 1), "{printed}");
        assert!(printed.lines().last().unwrap().contains(told), "{printed}");
        if arguments[0] == "run" {
            ended.says(122, "was lost, so the command was ended: it was revoked by");
        }
        // The loss of one of several keys frees the others.
        sandbox.free(&["a", "b", KEY]).await;
    }
}
