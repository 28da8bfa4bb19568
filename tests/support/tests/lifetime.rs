//! No server outlives its owner.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mongodb::bson::doc;
use mongoseal_test_support::ReplicaSet;

#[test]
fn servers_end_when_their_owner_is_killed() {
    let mut owner =
        Command::new(env!("CARGO_BIN_EXE_own-a-set")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<_> = output.take_while(|line| line != "ready").collect();
    let servers: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("server ")?.split_once(" in ")).collect();
    assert_eq!(servers.len(), 3, "{lines:?}");
    assert!(servers.iter().all(|(id, directory)| is_alive(id) && Path::new(directory).exists()));

    let begin = Instant::now();
    owner.kill().unwrap();
    owner.wait().unwrap();
    while servers.iter().any(|(id, directory)| is_alive(id) || Path::new(directory).exists()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "servers outlive their owner: {servers:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("the servers were gone after {:?}", begin.elapsed());
}

#[tokio::test]
async fn servers_are_gone_once_their_set_is_dropped() {
    let set = ReplicaSet::start(1).await;
    // A paused one has to go, too, and one with a fail point armed.
    let fault = set.fail_command("nobody", &["ping"], doc! { "errorCode": 91 }, 1).await;
    let (id, directory) = (set.process_ids()[0].to_string(), directory(&set, 0).await);
    assert!(is_alive(&id));
    set.pause(0).await;
    drop(fault);
    drop(set);
    let begin = Instant::now();
    while is_alive(&id) || directory.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server outlives its set");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_set_on_disk_has_its_files_there_and_leaves_none() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("on-disk-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let set = ReplicaSet::builder().on_disk(&folder).start().await;
    assert_eq!(directory(&set, 0).await.parent(), Some(folder.as_path()));
    drop(set);
    let begin = Instant::now();
    // Fails as long as it holds anything.
    while let Err(error) = fs::remove_dir(&folder) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the set leaves something: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn directory(set: &ReplicaSet, member: usize) -> PathBuf {
    let options = set.admin(member, doc! { "getCmdLineOpts": 1 }).await.unwrap();
    options.get_document("parsed").unwrap().get_document("storage").unwrap().get_str("dbPath").unwrap().into()
}

fn is_alive(process: &str) -> bool {
    Path::new("/proc").join(process).exists()
}
