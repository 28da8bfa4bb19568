//! The examples `examples/recipes/fence_*` for other storages, on real servers: run as they are, and with racing
//! writers.
//!
//! If PostgreSQL or Redis is not installed, its tests are reported as ignored, with the reason.

#![allow(clippy::disallowed_methods, reason = "a test polls until a deadline, and spawns as users do")]

mod files;
mod http;
mod kv;
mod race;
mod sql;

// What is raced is what is shown.
#[allow(dead_code, reason = "its main is run as a program of its own")]
#[path = "../../../examples/recipes/fence_file.rs"]
mod fence_file;
#[allow(dead_code, reason = "its main is run as a program of its own")]
#[path = "../../../examples/recipes/fence_http.rs"]
mod fence_http;
#[allow(dead_code, reason = "its main is run as a program of its own")]
#[path = "../../../examples/recipes/fence_postgres.rs"]
mod fence_postgres;
#[allow(dead_code, reason = "its main is run as a program of its own")]
#[path = "../../../examples/recipes/fence_redis.rs"]
mod fence_redis;

use std::process::{Command, ExitCode};

use mongoseal_test_support::{Postgres, Redis, Turn, run_trials, trials};

/// Runs an example as a reader would, with the address of its server, and demands that it begins with these words.
async fn example(name: &'static str, server: Option<(&'static str, String)>, words: &str) {
    let run = move || Command::new(mongoseal_test_support::built(name)).envs(server).output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.starts_with(words), "{said}\n{errors}");
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting, Postgres::missing =>
        sql::the_example_runs_on_a_real_server,
        sql::the_largest_of_racing_tokens_stays,
        sql::a_statement_that_waits_compares_with_what_was_committed,
    ];
    tests.extend(trials![Turn::Waiting, Redis::missing =>
        kv::the_example_runs_on_a_real_server,
        kv::the_largest_of_racing_tokens_stays,
        kv::tokens_that_differ_by_one_are_told_apart_up_to_the_largest,
        kv::a_failover_that_loses_the_fence_lets_the_older_token_write,
    ]);
    tests.extend(trials![Turn::Waiting =>
        files::the_example_runs,
        files::the_largest_of_racing_tokens_is_read,
        http::the_example_runs,
        http::the_largest_of_racing_tokens_stays,
    ]);
    run_trials(tests)
}
