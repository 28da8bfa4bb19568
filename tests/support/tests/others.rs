//! No server outlives its owner. PostgreSQL has processes of its own; if it is not installed, its tests are reported as ignored,
//! with the reason.

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use mongoseal_test_support::{Postgres, ReplicaSet, Turn, eventually, millis, run_trials, secs, trial};
use tokio::time::sleep;

/// Starts a server, drops it, and looks for what is left.
async fn is_gone() {
    let server = Postgres::start().await;
    let (id, home) = (server.process_id(), server.directory().to_owned());
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let processes: Vec<_> = children.split_whitespace().map(str::to_owned).chain([id.to_string()]).collect();
    let is_alive = |process: &String| Path::new("/proc").join(process).exists();
    assert!(is_alive(&id.to_string()) && home.is_dir());
    drop(server);
    assert!(!home.exists(), "{} is left", home.display());
    assert!(!processes.iter().any(is_alive), "one of {processes:?} is left");
}

/// Makes this program one that starts these servers and then waits to be killed.
const OWNER: &str = "MONGOSEAL_TEST_OWNER";

/// Kills the owner so long after its first server has a supervisor: while the servers are being made, while they start, and
/// when they serve.
async fn end_with_their_owner(servers: &str) {
    for delay in [0, 100, 300, 500, 700, 1_500] {
        let mut owner = Command::new(env::current_exe().unwrap()).env(OWNER, servers).spawn().unwrap();
        eventually(secs(300), "a server is there", async || process_of(owner.id()).is_some()).await;
        sleep(millis(delay)).await;
        owner.kill().unwrap();
        owner.wait().unwrap();
        let is_gone = async || left_by(owner.id()).is_none();
        eventually(secs(30), &format!("nothing is left by an owner killed after {delay} ms"), is_gone).await;
    }
}

fn mark(owner: u32) -> String {
    format!("mongoseal-{owner}-")
}

fn entries(dir: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path().display().to_string())
}

/// A server, or its supervisor, of an owner.
fn process_of(owner: u32) -> Option<String> {
    let command = |process: &String| fs::read_to_string(format!("{process}/cmdline"));
    entries(Path::new("/proc")).find(|process| command(process).is_ok_and(|command| command.contains(&mark(owner))))
}

/// A process or a directory of an owner.
fn left_by(owner: u32) -> Option<String> {
    let mut directories = entries(Path::new("/dev/shm")).chain(entries(&env::temp_dir()));
    directories.find(|path| path.contains(&mark(owner))).or_else(|| process_of(owner))
}

async fn own(servers: &str) {
    let _set = if servers == "mongod" { Some(ReplicaSet::builder().members(3).start().await) } else { None };
    let _server = if servers == "postgres" { Some(Postgres::start().await) } else { None };
    sleep(Duration::from_secs(60)).await;
}

fn main() -> ExitCode {
    if let Ok(servers) = env::var(OWNER) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(own(&servers));
        return ExitCode::FAILURE;
    }
    let missing = Postgres::missing;
    run_trials(vec![
        trial("postgres_is_gone_once_it_is_dropped_and_its_children_with_it", Turn::Waiting, missing, is_gone),
        trial("postgres_ends_when_its_owner_is_killed_at_any_time", Turn::Waiting, missing, || {
            end_with_their_owner("postgres")
        }),
        trial(
            "a_set_ends_when_its_owner_is_killed_at_any_time",
            Turn::Waiting,
            || None,
            || end_with_their_owner("mongod"),
        ),
    ])
}
