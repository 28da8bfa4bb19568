//! The program at a terminal, which script(1) provides.

use std::process::Stdio;

use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    millis,
    sandbox::{KEY, Sandbox, ended},
};

/// This line in a shell of its own at a terminal of its own, with `$M` for the binary.
fn at_a_terminal(sandbox: &Sandbox, line: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["-qec", line, "/dev/null"]).env("SHELL", "/bin/sh").env("M", env!("CARGO_BIN_EXE_mongoseal"));
    for (name, value) in sandbox.mongoseal(&[]).as_std().get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn a_command_that_reads_from_the_terminal_is_given_it_and_gives_it_back() {
    let sandbox = Sandbox::new("terminal").await;
    let line = r#"$M run k -- sh -c 'read one; echo "first $one"'; read two; echo "then $two""#;
    let mut run = at_a_terminal(&sandbox, line).spawn().unwrap();
    let mut keys = run.stdin.take().unwrap();
    keys.write_all(b"eins\nzwei\n").await.unwrap();
    let run = ended(run).await;
    assert_eq!(run.code, Some(0));
    assert!(run.stdout.contains("first eins\r\n") && run.stdout.contains("then zwei\r\n"), "{}", run.stdout);
    drop(keys);
}

#[tokio::test]
async fn ctrl_c_ends_a_command_that_does_not_read_from_the_terminal() {
    let sandbox = Sandbox::new("ctrl_c").await;
    let line = r#"$M run k -- sh -c 'echo $$ >"$F/id"; exec sleep 100'"#;
    let mut command = at_a_terminal(&sandbox, line);
    let mut run = command.env("F", sandbox.file("")).spawn().unwrap();
    sandbox.processes("id", 1).await;
    let mut keys = run.stdin.take().unwrap();
    keys.write_all(b"\x03").await.unwrap();
    assert_eq!(ended(run).await.code, Some(130));
    assert!(sandbox.seal.acquire("k").await.is_ok());
}

#[tokio::test]
async fn a_narrow_terminal_shows_the_place_and_the_holder_of_a_wait_in_one_line() {
    let sandbox = Sandbox::new("narrow").await;
    let alice = sandbox.seal_of("夜夜夜夜@web-1").await;
    let key = "a/very/long/key/that/fills/a/narrow/terminal/by/itself";
    let lease = alice.acquire(key).ttl(crate::secs(60)).await.unwrap();
    let line = format!("stty cols 50; exec $M run {key} -- echo done");
    let run = at_a_terminal(&sandbox, &line).spawn().unwrap();
    sandbox.queued_on(key, 1).await;
    tokio::time::sleep(millis(1500)).await;
    lease.release().await.unwrap();
    let run = ended(run).await;
    let shown =
        run.stdout.split('\r').find(|line| line.contains("waiting")).unwrap_or_else(|| panic!("{:?}", run.stdout));
    let shown = shown.trim_end_matches("\x1b[K");
    assert!(shown.starts_with("mongoseal: waiting, next in line; held by 夜"), "{shown}");
    // Each of these characters takes two columns.
    let columns = shown.chars().count() + shown.chars().filter(|character| *character == '夜').count();
    assert!(columns < 50 && shown.ends_with('…'), "{columns}: {shown}");
}

#[tokio::test]
async fn a_wait_is_said_on_a_terminal_with_who_holds_the_key_and_how_many_come_before() {
    let sandbox = Sandbox::new("said").await;
    let lease = sandbox.hold().await;
    let run = at_a_terminal(&sandbox, &format!("$M run {KEY} -- echo done")).spawn().unwrap();
    sandbox.queued(1).await;
    tokio::time::sleep(millis(1500)).await;
    lease.release().await.unwrap();
    let run = ended(run).await;
    assert!(run.stdout.contains("mongoseal: waiting, next in line; held by "), "{}", run.stdout);
    assert!(run.stdout.ends_with("\r\x1b[Kdone\r\n"), "the line is gone: {:?}", run.stdout);
}
