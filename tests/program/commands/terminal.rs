//! The program at a terminal, which script(1) provides.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
};

use nix::{sys::signal::Signal::SIGSTOP, unistd::Pid};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
};

use crate::{
    eventually, millis,
    sandbox::{KEY, Sandbox, ended, signal},
    secs,
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
async fn a_dumb_terminal_gets_lines_and_no_control_sequences() {
    let sandbox = Sandbox::new("dumb").await;
    let lease = sandbox.hold().await;
    let line = format!("$M watch & $M run {KEY} -w 2 -- echo never; kill $!; wait");
    let run = at_a_terminal(&sandbox, &line).env("TERM", "dumb").spawn().unwrap();
    let run = ended(run).await;
    assert!(run.stdout.contains(KEY) && run.stdout.contains("is held by"), "{}", run.stdout);
    assert!(!run.stdout.contains('\u{1b}'), "{:?}", run.stdout);
    lease.release().await.unwrap();
}

/// An interactive shell at a terminal, which gets lines and prints what it shows to a file.
struct Shell {
    shown: PathBuf,
    child: Child,
    keys: ChildStdin,
}

impl Shell {
    /// One that has prompted.
    async fn start(sandbox: &Sandbox) -> Self {
        let mut command = at_a_terminal(sandbox, "exec bash --norc --noprofile -i");
        let shown = sandbox.file("shown");
        let file = File::create(&shown).unwrap();
        let mut child = command.env("F", sandbox.file("")).env("PS1", "").stdout(file).spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        let mut shell = Self { shown, child, keys };
        shell.is_back(sandbox, "begun").await;
        shell
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.shown).unwrap()).into_owned()
    }

    async fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Types a line until its command has written this text to the file `back`: the shell may discard what is typed before
    /// it prompts.
    async fn is_back(&mut self, sandbox: &Sandbox, text: &str) {
        let line = format!("echo {text} >\"$F/back\"\n");
        let back = || fs::read_to_string(sandbox.file("back")).unwrap_or_default();
        for _ in 0..240 {
            self.type_in(&line).await;
            tokio::time::sleep(millis(250)).await;
            if back().trim() == text {
                return;
            }
        }
        panic!("the shell is back: {}", self.shown());
    }

    async fn end(mut self) {
        self.type_in("\nkill -9 $(jobs -p); exit\n").await;
        drop(self.keys);
        tokio::time::timeout(secs(60), self.child.wait()).await.expect("the shell ends").unwrap();
    }
}

/// The state of a process, such as `T` for a stopped one.
fn state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
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
    let script = r#"echo $$ >"$F/id"; read line; echo "$line" >"$F/first"; exec sleep 100"#;
    shell.type_in(&format!("\"$M\" run k --ttl 60s -- sh -c '{script}' | cat\n")).await;
    let command = sandbox.processes("id", 1).await[0];
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
    sandbox.seal.acquire("k").wait(secs(60)).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_command_in_the_background_that_reads_from_the_terminal_stops_as_a_job() {
    let sandbox = Sandbox::new("background").await;
    let mut shell = Shell::start(&sandbox).await;
    let script = r#"echo $$ >"$F/id"; read line; echo "$line" >"$F/first"; until [ -e "$F/go" ]; do sleep 0.05; done"#;
    let script = format!(r#"{script}; read line; echo "$line" >"$F/read""#);
    shell.type_in(&format!("\"$M\" run k --ttl 60s -- sh -c '{script}'\n")).await;
    let command = sandbox.processes("id", 1).await[0];
    let program = parent(parent(command));
    shell.type_in("null\n").await;
    assert_eq!(sandbox.lines("first", 1).await, ["null"]);
    // The shell takes the terminal back, and the program does not know it.
    signal(program, SIGSTOP);
    shell.is_back(&sandbox, "stopped").await;
    shell.type_in("bg\n").await;
    eventually(secs(60), "the program goes on", async || state(program) == Some('S')).await;
    fs::write(sandbox.file("go"), "").unwrap();
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
async fn a_narrow_terminal_shows_the_place_and_the_holder_of_a_wait_in_one_line() {
    let sandbox = Sandbox::new("narrow").await;
    let alice = sandbox.seal_of("夜夜夜夜@web-1").await;
    let key = "a/very/long/key/that/fills/a/narrow/terminal/by/itself";
    let lease = alice.acquire(key).ttl(secs(60)).await.unwrap();
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
