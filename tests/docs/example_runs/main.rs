//! Runs the examples as processes, in memory and on real replica sets, and checks what they do.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod job_worker;
mod leader;
mod migrations;
mod service;
mod short;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use mongoseal_test_support::{TestDatabase, built};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
};

/// Runs an example to its end, and gives what it printed.
fn said(name: &str, uri: Option<&str>) -> String {
    let mut example = Command::new(built(name));
    example.env_remove("MONGODB_URI");
    if let Some(uri) = uri {
        example.env("MONGODB_URI", uri);
    }
    let output = example.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// An example as one of several processes. Killed when dropped.
struct Process {
    name: String,
    child: Child,
    /// The lines that it prints.
    said: UnboundedReceiver<String>,
}

impl Process {
    /// One that says who it is by its first argument.
    fn start(example: &Path, arguments: &[&str], uri: &str, settings: &[(&str, String)]) -> Self {
        let mut child = tokio::process::Command::new(example)
            .args(arguments)
            .env("MONGODB_URI", uri)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (name, (says, said)) = (arguments[0].to_owned(), unbounded_channel());
        let own = name.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                println!("  {own}: {line}");
                // Most tests read none.
                says.send(line).ok();
            }
        });
        Self { name, child, said }
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it was not waited for yet");
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }
}
