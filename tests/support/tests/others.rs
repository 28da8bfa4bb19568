//! PostgreSQL and Redis end with their owner, as mongod does.
//!
//! Where one is not installed its test is reported as ignored, with the reason.

use std::{path::Path, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongoseal_test_support::{Postgres, Redis};

/// Starts a server, drops it, and looks for what is left.
fn ends<S>(
    missing: Option<String>,
    start: impl Future<Output = S>,
    process: impl Fn(&S) -> u32,
    directory: impl Fn(&S) -> &Path,
) -> Result<Completion, Failed> {
    if let Some(reason) = missing {
        return Ok(Completion::ignored_with(reason));
    }
    let server = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(start);
    let (id, home) = (process(&server), directory(&server).to_owned());
    let its_children = children(id);
    assert!(is_alive(id) && home.is_dir());
    drop(server);
    assert!(!home.exists(), "{} is left", home.display());
    for id in its_children.into_iter().chain([id]) {
        assert!(!is_alive(id), "process {id} is left");
    }
    Ok(Completion::Completed)
}

fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn main() -> ExitCode {
    let tests = vec![
        Trial::ignorable_test("postgres_is_gone_once_it_is_dropped_and_its_children_with_it", || {
            ends(Postgres::missing(), Postgres::start(), Postgres::process_id, Postgres::directory)
        }),
        Trial::ignorable_test("redis_is_gone_once_it_is_dropped", || {
            ends(Redis::missing(), Redis::start(), Redis::process_id, Redis::directory)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
