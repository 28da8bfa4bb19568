//! The commands that inspect and administer leases: the real program on a real replica set.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod completions;
mod conform;
mod connection;
mod doctor;
mod documents;
mod fences;
mod ls_and_show;
mod revoke_and_purge;
mod screen;
mod watches;
mod widths;
mod without_a_server;

use std::{path::Path, process::Stdio};

use mongoseal::Mongoseal;
use mongoseal_test_support::{TestDatabase, eventually, secs};
use tokio::process::Command;

/// The program, with nothing of this environment that it reads.
fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mongoseal"));
    without_settings(&mut program);
    program
}

/// The variables that the program reads.
const SETTINGS: [&str; 12] = [
    "MONGODB_URI",
    "MONGOSEAL_URI",
    "MONGOSEAL_DB",
    "MONGOSEAL_COLLECTION",
    "MONGOSEAL_RETENTION",
    "MONGOSEAL_OWNER",
    "MONGOSEAL_KEY",
    "MONGOSEAL_TOKEN",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "SUDO_USER",
];

fn without_settings(command: &mut Command) {
    for name in SETTINGS {
        command.env_remove(name);
    }
    command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// What a program said, and how it ended.
struct Said {
    status: i32,
    out: String,
    err: String,
}

impl Said {
    async fn by(mut command: Command) -> Self {
        let output = tokio::time::timeout(secs(180), command.output()).await.expect("it ends").unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("it says UTF-8");
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!err.contains("panicked") && !err.contains("RUST_BACKTRACE"), "{err}");
        Self { status: output.status.code().expect("it ends by itself"), out, err }
    }

    /// The messages of the program, without the one that it also prints on a busy machine.
    fn messages(&self) -> Vec<&str> {
        self.err.lines().filter(|line| !line.contains("has not answered for 1 s")).collect()
    }

    /// Asserts that the program succeeded without a message.
    #[track_caller]
    fn is_quiet(&self) {
        assert_eq!((self.status, self.messages()), (0, Vec::new()), "{}", self.out);
    }

    /// Its lines as JSON objects.
    fn json(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

/// A shell's words, with the program on its path.
async fn shell(uri: &str, words: &str) -> Said {
    let programs = Path::new(env!("CARGO_BIN_EXE_mongoseal")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    without_settings(&mut shell);
    shell.args(["-o", "pipefail", "-c", words]).env("MONGODB_URI", uri);
    shell.env("PATH", format!("{}:{path}", programs.display()));
    Said::by(shell).await
}

/// What is seen on a terminal of script(1) with so many columns, and the status.
async fn on_a_terminal_of(columns: u16, uri: &str, words: &str) -> (String, i32) {
    let script =
        format!("script --quiet --return --command \"stty cols {columns} rows 50; {words}\" /dev/null </dev/null");
    let said = shell(uri, &script).await;
    (said.out.replace('\r', ""), said.status)
}

/// The program, for a database of a test's own.
struct Console {
    db: TestDatabase,
    uri: String,
}

impl Console {
    async fn new(name: &str) -> Self {
        let db = TestDatabase::new(&format!("cli_{name}")).await;
        let uri = db.uri();
        Self { db, uri }
    }

    async fn run(&self, arguments: &[&str]) -> Said {
        let mut program = program();
        program.args(arguments).env("MONGODB_URI", &self.uri);
        Said::by(program).await
    }

    fn seal(&self, owner: &str) -> Mongoseal {
        self.db.build(Mongoseal::builder().owner(owner))
    }

    /// Waits until so many wait for a key.
    async fn queued(&self, key: &str, count: usize) {
        let seal = self.seal("looks");
        let queued = async || seal.inspect(key).await.unwrap().is_some_and(|record| record.queue.len() == count);
        eventually(secs(60), &format!("{count} wait"), queued).await;
    }
}
