//! The program at a terminal, which script(1) provides.

use std::{fs, process::Stdio};

use nix::{sys::signal::Signal::SIGSTOP, unistd::Pid};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    eventually, millis,
    sandbox::{KEY, Running, Sandbox, ended, signal, state},
    secs,
};

/// This line in a shell of its own at a terminal of its own.
fn at_a_terminal(sandbox: &Sandbox, line: &str) -> Command {
    let mut command = sandbox.command("script", &["-qec", line, "/dev/null"]);
    command.env("SHELL", "/bin/sh").stdin(Stdio::piped());
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
    assert_eq!(run.code, 0);
    assert!(run.stdout.contains("first eins\r\n") && run.stdout.contains("then zwei\r\n"), "{}", run.stdout);
    drop(keys);
}

#[tokio::test]
async fn ctrl_c_ends_a_command_that_does_not_read_from_the_terminal() {
    let sandbox = Sandbox::new("ctrl_c").await;
    let line = r#"$M run k -- sh -c 'echo $$ >"$F/ids"; exec sleep 100'"#;
    let mut run = at_a_terminal(&sandbox, line).spawn().unwrap();
    sandbox.processes(1).await;
    let mut keys = run.stdin.take().unwrap();
    keys.write_all(b"\x03").await.unwrap();
    assert_eq!(ended(run).await.code, 130);
    assert!(sandbox.seal.acquire("k").await.is_ok());
}

#[tokio::test]
async fn a_dumb_terminal_gets_lines_and_no_control_sequences() {
    let sandbox = Sandbox::new("dumb").await;
    let lease = sandbox.hold().await;
    let line = format!("$M watch & $M run {KEY} -w 2 -- echo never; kill $!; wait");
    let run = ended(at_a_terminal(&sandbox, &line).env("TERM", "dumb").spawn().unwrap()).await;
    assert!(run.stdout.contains(KEY) && run.stdout.contains("is held by"), "{}", run.stdout);
    assert!(!run.stdout.contains('\u{1b}'), "{:?}", run.stdout);
    lease.release().await.unwrap();
}

/// An interactive shell at a terminal.
struct Shell(Running);

impl Shell {
    /// One that has prompted.
    async fn start(sandbox: &Sandbox) -> Self {
        let mut command = at_a_terminal(sandbox, "exec bash --norc --noprofile -i");
        let mut shell = Self(Running::start(command.env("PS1", "")));
        shell.is_back(sandbox, "begun").await;
        shell
    }

    async fn type_in(&mut self, keys: &str) {
        self.0.write(keys).await;
    }

    /// Types a line until its command has written this text to the file `back`: the shell may discard what is typed before
    /// it prompts.
    async fn is_back(&mut self, sandbox: &Sandbox, text: &str) {
        let back = || fs::read_to_string(sandbox.file("back")).unwrap_or_default();
        for _ in 0..240 {
            self.type_in(&format!("echo {text} >\"$F/back\"\n")).await;
            tokio::time::sleep(millis(250)).await;
            if back().trim() == text {
                return;
            }
        }
        panic!("the shell is not back: {text}");
    }

    async fn end(mut self) {
        self.type_in("\nkill -9 $(jobs -p); exit\n").await;
        while self.0.next_line().await.is_some() {}
        ended(self.0.child).await;
    }
}

fn parent(process: Pid) -> Pid {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    Pid::from_raw(rest.split_whitespace().nth(1).unwrap().parse().unwrap())
}

#[tokio::test]
async fn ctrl_z_in_a_pipeline_stops_all_of_it_and_the_shell_gets_the_terminal_back() {
    let sandbox = Sandbox::new("pipeline").await;
    let mut shell = Shell::start(&sandbox).await;
    // It reads, so that its group gets the terminal. Then it starts no process: a shell that waits in vfork for a child that
    // Ctrl-Z has stopped is not stopped itself.
    let script = r#"echo $$ >"$F/ids"; read line; echo "$line" >"$F/first"; exec sleep 100"#;
    shell.type_in(&format!("\"$M\" run k --ttl 60s -- sh -c '{script}' | cat\n")).await;
    let command = sandbox.processes(1).await[0];
    let program = parent(parent(command));
    shell.type_in("null\n").await;
    assert_eq!(sandbox.lines("first", 1).await, ["null"]);
    shell.type_in("\x1a").await;
    eventually(secs(60), "the program and its command are stopped", async || {
        state(program) == Some('T') && state(command) == Some('T')
    })
    .await;
    shell.is_back(&sandbox, "stopped").await;
    shell.type_in("fg\n").await;
    eventually(secs(60), "both go on", async || state(program) == Some('S') && state(command) == Some('S')).await;
    shell.type_in("\x03").await;
    shell.is_back(&sandbox, "again").await;
    shell.end().await;
    sandbox.freed("k").await;
}

#[tokio::test]
async fn a_command_in_the_background_that_reads_from_the_terminal_stops_as_a_job() {
    let sandbox = Sandbox::new("background").await;
    let mut shell = Shell::start(&sandbox).await;
    let script = r#"echo $$ >"$F/ids"; read line; echo "$line" >"$F/first"; until [ -e "$F/go" ]; do sleep 0.05; done"#;
    let script = format!(r#"{script}; read line; echo "$line" >"$F/read""#);
    shell.type_in(&format!("\"$M\" run k --ttl 60s -- sh -c '{script}'\n")).await;
    let command = sandbox.processes(1).await[0];
    let program = parent(parent(command));
    shell.type_in("null\n").await;
    assert_eq!(sandbox.lines("first", 1).await, ["null"]);
    // The shell takes the terminal back, and the program does not know it.
    signal(program, SIGSTOP);
    shell.is_back(&sandbox, "stopped").await;
    shell.type_in("bg\n").await;
    eventually(secs(60), "the program goes on", async || state(program) == Some('S')).await;
    sandbox.touch("go");
    eventually(secs(60), "the program stops as a job", async || state(program) == Some('T')).await;
    tokio::time::sleep(secs(1)).await;
    assert_eq!((state(program), state(command)), (Some('T'), Some('T')));
    shell.type_in("fg\n").await;
    eventually(secs(60), "the program goes on", async || state(program) == Some('S')).await;
    shell.type_in("eins\n").await;
    assert_eq!(sandbox.lines("read", 1).await, ["eins"]);
    shell.end().await;
}

#[tokio::test]
async fn a_narrow_terminal_shows_the_place_and_the_holder_of_a_wait_in_one_line_until_the_grant() {
    let sandbox = Sandbox::new("narrow").await;
    let night = sandbox.seal_of("夜夜夜夜@web-1");
    let key = "a/very/long/key/that/fills/a/narrow/terminal/by/itself";
    let lease = night.acquire(key).ttl(secs(60)).await.unwrap();
    let line = format!("stty cols 50; exec $M run {key} -- echo done");
    let run = at_a_terminal(&sandbox, &line).spawn().unwrap();
    sandbox.queued_on(key, 1).await;
    tokio::time::sleep(millis(1500)).await;
    lease.release().await.unwrap();
    let run = ended(run).await;
    assert!(run.stdout.ends_with("\r\x1b[Kdone\r\n"), "the line is gone: {:?}", run.stdout);
    // A report before the acquire was queued has another place.
    let shown = run.stdout.split('\r').find(|line| line.contains("next in line"));
    let shown = shown.unwrap_or_else(|| panic!("{:?}", run.stdout));
    let shown = shown.trim_end_matches("\x1b[K");
    assert!(shown.starts_with("mongoseal: waiting, next in line; held by 夜"), "{shown}");
    // Each of these characters takes two columns.
    let columns = shown.chars().count() + shown.chars().filter(|character| *character == '夜').count();
    assert!(columns < 50 && shown.ends_with('…'), "{columns}: {shown}");
}
