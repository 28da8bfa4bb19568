//! PostgreSQL and Redis end with their owner, as mongod does.
//!
//! If one is not installed, its test is reported as ignored, with the reason.

use std::{
    env, fs,
    ops::Deref,
    path::Path,
    process::{Command, ExitCode},
    thread::sleep,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongoseal_test_support::{Postgres, Redis, Server};

/// Starts a server, drops it, and looks for what is left.
fn ends<S: Deref<Target = Server>>(
    missing: Option<String>,
    start: impl Future<Output = S>,
) -> Result<Completion, Failed> {
    if let Some(reason) = missing {
        return Ok(Completion::ignored_with(reason));
    }
    let server = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(start);
    let (id, home) = (server.process_id(), server.directory().to_owned());
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
    let list = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Makes this program one that starts a server and then waits to be killed.
const OWNER: &str = "MONGOSEAL_TEST_OWNER";

/// Kills the owner while the cluster is being made, while the server starts, and when it serves.
fn end_with_their_owner() -> Result<Completion, Failed> {
    if let Some(reason) = Postgres::missing() {
        return Ok(Completion::ignored_with(reason));
    }
    for delay in [100, 300, 500, 700, 1500] {
        let mut owner = Command::new(env::current_exe()?).env(OWNER, "").spawn()?;
        sleep(Duration::from_millis(delay));
        owner.kill()?;
        owner.wait()?;
        let begin = Instant::now();
        while let Some(left) = left_by(owner.id()) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{left} is left by an owner killed after {delay} ms");
            sleep(Duration::from_millis(20));
        }
    }
    Ok(Completion::Completed)
}

/// A process or a directory that a process started which is gone.
fn left_by(owner: u32) -> Option<String> {
    let mark = format!("mongoseal-{owner}-");
    let name = |entry: fs::DirEntry| entry.path().display().to_string();
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = [Path::new("/dev/shm"), &env::temp_dir()].map(entries).into_iter().flatten().map(name);
    let directory = dirs.into_iter().find(|path| path.contains(&mark));
    let is_marked =
        |process: &String| fs::read_to_string(format!("{process}/cmdline")).is_ok_and(|it| it.contains(&mark));
    directory.or_else(|| entries(Path::new("/proc")).map(name).find(is_marked))
}

fn main() -> ExitCode {
    if env::var_os(OWNER).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let _server = runtime.block_on(Postgres::start());
        sleep(Duration::from_secs(60));
        return ExitCode::FAILURE;
    }
    let tests = vec![
        Trial::ignorable_test("postgres_is_gone_once_it_is_dropped_and_its_children_with_it", || {
            ends(Postgres::missing(), Postgres::start())
        }),
        Trial::ignorable_test("postgres_ends_when_its_owner_is_killed_at_any_time", end_with_their_owner),
        Trial::ignorable_test("redis_is_gone_once_it_is_dropped", || ends(Redis::missing(), Redis::start())),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
