//! The program as tests start it, what it printed and how it ended.

use std::{
    ffi::OsStr,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Output, Stdio},
};

use mongoseal_test_support::secs;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_mongoseal");

/// The variables that the program reads.
pub(crate) const SETTINGS: [&str; 13] = [
    "MONGODB_URI",
    "MONGOSEAL_URI",
    "MONGOSEAL_DB",
    "MONGOSEAL_COLLECTION",
    "MONGOSEAL_RETENTION",
    "MONGOSEAL_OWNER",
    "MONGOSEAL_KEY",
    "MONGOSEAL_TOKEN",
    "MONGOSEAL_TICK",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "SUDO_USER",
];

/// A password of tests, which no output may have.
pub(crate) const PASSWORD: &str = "hunter2-s3cret";

/// The program with these arguments and nothing of this environment that it reads.
pub(crate) fn mongoseal(arguments: &[&str]) -> Command {
    let mut command = without_settings(BINARY);
    command.args(arguments);
    command
}

/// This script of bash.
pub(crate) fn bash(script: &str) -> Command {
    let mut bash = without_settings("bash");
    bash.args(["-c", script]);
    bash
}

/// A command without the variables that the program reads, with no input and with pipes for its output. It finds the
/// program on its path and as `$M`.
pub(crate) fn without_settings(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in SETTINGS {
        command.env_remove(name);
    }
    let programs = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).env("M", BINARY);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(crate) fn id(child: &Child) -> Pid {
    Pid::from_raw(child.id().expect("it was not waited for yet").try_into().unwrap())
}

pub(crate) fn signal(process: Pid, signal: Signal) {
    kill(process, signal).unwrap();
}

/// A program that reads requests, and prints events in lines.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { input: child.stdin.take(), lines, child }
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    /// The next line, or `None` at the end of the output.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        timeout(secs(60), self.lines.next_line()).await.expect("a line in time").unwrap()
    }

    pub(crate) async fn line(&mut self) -> String {
        self.next_line().await.expect("a line before the end")
    }

    /// The next line as JSON, or `None` at the end of the output.
    pub(crate) async fn next_event(&mut self) -> Option<Value> {
        self.next_line().await.map(|line| serde_json::from_str(&line).expect("it is JSON"))
    }

    /// The next event, which has this name.
    pub(crate) async fn next(&mut self, name: &str) -> Value {
        let event = self.next_event().await.unwrap_or_else(|| panic!("{name} before the end"));
        assert_eq!(event["event"], name, "{event}");
        event
    }

    pub(crate) fn signal(&self, sent: Signal) {
        signal(id(&self.child), sent);
    }

    /// The end, before which there is no other line.
    pub(crate) async fn end(mut self) -> Ended {
        assert_eq!(self.next_line().await, None);
        drop(self.input);
        ended(self.child).await
    }
}

/// What it printed and how it ended.
pub(crate) struct Ended {
    /// Its exit status, or the negative number of the signal that ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    /// Without the notes.
    pub(crate) stderr: String,
}

/// The lines but those that say that the server has not answered for a second. On a busy machine, any program that connects
/// can print that.
pub(crate) fn without_notes(text: &str) -> String {
    let is_note = |line: &&str| line.contains(" has not answered for 1 s") && line.contains("; waiting up to ");
    text.split_inclusive('\n').filter(|line| !is_note(line)).collect()
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap_or_else(|| -output.status.signal().expect("one of both"));
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let stderr = without_notes(&stderr);
        let ended = Self { code, stdout, stderr };
        assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains("RUST_BACKTRACE"), "{}", ended.stderr);
        assert!(!ended.stderr.contains(PASSWORD) && !ended.stdout.contains(PASSWORD), "{}", ended.stderr);
        ended
    }
}

impl Ended {
    /// Checks that it ended with this status, printed one message with this in it, and nothing on its standard output.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, part: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{}", self.stderr);
        let [message] = self.messages()[..] else { panic!("one message: {}", self.stderr) };
        assert!(message.starts_with("mongoseal: ") && message.contains(part), "{part:?} is in {message}");
    }

    /// Checks that it ended with this status and this is in its messages.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, part: &str) {
        assert!(self.code == code && self.stderr.contains(part), "{:?} {part:?}: {}", self.code, self.stderr);
    }

    /// Checks that it ended with this status and printed no message.
    #[track_caller]
    pub(crate) fn is_quiet(&self, code: i32) {
        assert_eq!((self.code, self.messages()), (code, Vec::new()), "{}", self.stdout);
    }

    /// Checks that it succeeded and printed no message. Returns its standard output.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        self.is_quiet(0);
        self.stdout
    }

    /// The lines of its standard error.
    pub(crate) fn messages(&self) -> Vec<&str> {
        self.stderr.lines().collect()
    }

    /// The lines of its standard output as JSON objects.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }

    /// The checks with this verdict.
    pub(crate) fn checks(&self, verdict: &str) -> Vec<String> {
        let findings = self.json().into_iter().filter(|finding| finding["verdict"] == verdict);
        findings.map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
    }

    /// What a check found, and what to do.
    #[track_caller]
    pub(crate) fn found(&self, check: &str) -> String {
        let finding = self.json().into_iter().find(|finding| finding["check"] == check);
        let finding = finding.unwrap_or_else(|| panic!("no check {check} in {}", self.stdout));
        let text = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("found"), text("advice"))
    }

    /// Checks the verdict of a check, and that this is in what it found and advises.
    #[track_caller]
    pub(crate) fn check(&self, check: &str, verdict: &str, part: &str) {
        let is_it = self.checks(verdict).iter().any(|name| name == check) && self.found(check).contains(part);
        assert!(is_it, "{check} {verdict} {part:?}: {}", self.stdout);
    }
}

/// Waits for its end.
pub(crate) async fn ended(child: Child) -> Ended {
    timeout(secs(180), child.wait_with_output()).await.expect("it ends in time").unwrap().into()
}

/// Runs it to its end.
pub(crate) async fn done(mut command: Command) -> Ended {
    ended(command.spawn().unwrap()).await
}

/// A text without what differs from one run to the next: numbers, spans of time, and how wide a column is.
pub(crate) fn shape(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut words: Vec<String> = Vec::new();
        for word in line.split_whitespace() {
            let word = shape_of_word(word);
            // A number and its unit, as in `9 m 48 s`.
            let unit = word.trim_end_matches([',', '.', ';', ':', ')']);
            if ["ms", "s", "m", "h", "d"].contains(&unit) && words.last().is_some_and(|last| last == "#") {
                words.pop();
                if words.last().is_none_or(|last| last != "<time>") {
                    words.push("<time>".into());
                }
                continue;
            }
            if word != "<time>" || words.last().is_none_or(|last| last != "<time>") {
                words.push(word);
            }
        }
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn shape_of_word(word: &str) -> String {
    // The commit of a server's build.
    if word.trim_end_matches(',').len() == 40 && word.chars().all(|it| it.is_ascii_hexdigit() || it == ',') {
        return "<commit>".into();
    }
    let mut shape = String::new();
    for character in word.chars() {
        if !character.is_ascii_digit() {
            shape.push(character);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    let bare = shape.trim_end_matches([',', '.', ';', ':']);
    if ["#ms", "#s", "#m", "#h", "#day", "#days", "#.#"].contains(&bare) { "<time>".into() } else { shape }
}
