//! The program as tests start it, what it printed and how it ended.

use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Output, Stdio},
};

use mongoseal_test_support::secs;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};

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
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_mongoseal")));
    command.args(arguments);
    command
}

/// This script of bash, with the program on its path.
pub(crate) fn bash(script: &str) -> Command {
    let programs = Path::new(env!("CARGO_BIN_EXE_mongoseal")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = without_settings(Command::new("bash"));
    bash.args(["-c", script]).env("PATH", path);
    bash
}

/// A command without the variables that the program reads, with no input and with pipes for its output.
pub(crate) fn without_settings(mut command: Command) -> Command {
    for name in SETTINGS {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// What it printed and how it ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// The signal that ended it, if it has no code.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    /// Without the notes.
    pub(crate) stderr: String,
    /// That the server has not answered for a second. On a busy machine, any program that connects can print that.
    pub(crate) notes: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (code, signal) = (output.status.code(), output.status.signal());
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let is_note = |line: &&str| line.contains(" has not answered for 1 s") && line.contains("; waiting up to ");
        let (notes, stderr) = stderr.split_inclusive('\n').partition(is_note);
        let ended = Self { code, signal, stdout, stderr, notes };
        assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains("RUST_BACKTRACE"), "{}", ended.stderr);
        assert!(!ended.stderr.contains(PASSWORD) && !ended.stdout.contains(PASSWORD), "{}", ended.stderr);
        ended
    }
}

impl Ended {
    /// Checks that it ended with this status, printed one message with this in it, and nothing on its standard output.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, part: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{}", self.stderr);
        let [message] = self.messages()[..] else { panic!("one message: {}", self.stderr) };
        assert!(message.starts_with("mongoseal: ") && message.contains(part), "{part:?} is in {message}");
    }

    /// Checks that this signal ended it and it printed no message.
    #[track_caller]
    pub(crate) fn is_ended_by(&self, signal: Signal) {
        assert_eq!((self.code, self.signal, self.stderr.as_str()), (None, Some(signal as i32), ""));
    }

    /// Checks that it ended with this status and printed no message.
    #[track_caller]
    pub(crate) fn is_quiet(&self, code: i32) {
        assert_eq!((self.code, self.messages()), (Some(code), Vec::new()), "{}", self.stdout);
    }

    /// Checks that it succeeded and printed no message. Returns its standard output.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        self.is_quiet(0);
        self.stdout
    }

    /// Its exit status.
    #[track_caller]
    pub(crate) fn status(&self) -> i32 {
        self.code.expect("no signal ended it")
    }

    /// The lines of its standard error.
    pub(crate) fn messages(&self) -> Vec<&str> {
        self.stderr.lines().collect()
    }

    /// The lines of its standard output as JSON objects.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

/// Waits for its end.
pub(crate) async fn ended(child: Child) -> Ended {
    tokio::time::timeout(secs(180), child.wait_with_output()).await.expect("it ends in time").unwrap().into()
}

/// Runs it to its end.
pub(crate) async fn done(mut command: Command) -> Ended {
    ended(command.spawn().unwrap()).await
}
