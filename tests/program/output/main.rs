//! The commands that inspect and administer leases: the real program on a real replica set.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod audit;
mod completions;
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
mod watches;
mod widths;
mod without_a_server;

use mongoseal::Mongoseal;
use mongoseal_test_support::{TestDatabase, eventually, secs};

use ended::{Ended, Running, bash, done, mongoseal};

/// Runs a script of bash, which ends with the first status of a pipeline that is not 0.
async fn shell(uri: &str, script: &str) -> Ended {
    let mut bash = bash(&format!("set -o pipefail\n{script}"));
    bash.env("MONGODB_URI", uri);
    done(bash).await
}

/// What is seen on a terminal of script(1) with so many columns, and the status.
async fn on_a_terminal_of(columns: u16, uri: &str, words: &str) -> (String, i32) {
    let script =
        format!("script --quiet --return --command \"stty cols {columns} rows 50; {words}\" /dev/null </dev/null");
    let said = shell(uri, &script).await;
    (said.stdout.replace('\r', ""), said.code)
}

/// Runs the program with this connection string and the database `app`.
async fn run(uri: &str, arguments: &[&str]) -> Ended {
    let mut program = mongoseal(arguments);
    program.env("MONGODB_URI", uri).env("MONGOSEAL_DB", "app");
    done(program).await
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

    async fn run(&self, arguments: &[&str]) -> Ended {
        let mut program = mongoseal(arguments);
        program.env("MONGODB_URI", &self.uri);
        done(program).await
    }

    /// Starts the program.
    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(mongoseal(arguments).env("MONGODB_URI", &self.uri))
    }

    fn seal(&self, owner: &str) -> Mongoseal {
        // For many keys at once on a busy machine.
        self.db.build(Mongoseal::builder().owner(owner).operation_timeout(secs(120)))
    }

    /// Waits until so many wait for a key.
    async fn queued(&self, key: &str, count: usize) {
        let seal = self.seal("looks");
        let queued = async || seal.inspect(key).await.unwrap().is_some_and(|record| record.queue.len() == count);
        eventually(secs(60), &format!("{count} wait"), queued).await;
    }
}
