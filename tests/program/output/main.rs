//! The commands that inspect and administer leases: the real program on a real replica set.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod audit;
mod connection;
mod deep;
mod doctor;
mod documents;
#[path = "../ended.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod ended;
mod fences;
mod ls_and_show;
mod revoke_and_purge;
#[path = "../sandbox.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod sandbox;
mod watches;
mod without_a_server;

use mongoseal_test_support::{eventually, secs};

use ended::{Ended, Running, bash, done, mongoseal};
use sandbox::Sandbox;

impl Sandbox {
    /// What is seen on a terminal of script(1) with so many columns, if this is typed into it, and the status.
    async fn on_a_terminal_of(&self, columns: u16, words: &str, typed: &str) -> (String, i32) {
        let script = format!("script --quiet --return --command \"stty cols {columns} rows 50; {words}\" /dev/null");
        let said = self.shell(&format!("printf '{typed}' | {script}")).await;
        (said.stdout.replace('\r', ""), said.code)
    }
}

/// Runs the program with this connection string and the database `app`.
async fn run(uri: &str, arguments: &[&str]) -> Ended {
    let mut program = mongoseal(arguments);
    program.env("MONGODB_URI", uri).env("MONGOSEAL_DB", "app");
    done(program).await
}
