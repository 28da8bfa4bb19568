//! No server outlives its owner.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
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
}

#[tokio::test]
async fn a_set_on_disk_has_its_files_there_and_leaves_no_server_and_no_file_once_it_is_dropped() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("on-disk-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let set = ReplicaSet::builder().on_disk(&folder).start().await;
    let options = set.admin(0, doc! { "getCmdLineOpts": 1 }).await.unwrap();
    let storage = options.get_document("parsed").unwrap().get_document("storage").unwrap();
    assert_eq!(Path::new(storage.get_str("dbPath").unwrap()).parent(), Some(folder.as_path()));
    // A paused one has to go, too, and one with a fail point armed.
    let fault = set.fail_command("nobody", &["ping"], doc! { "errorCode": 91 }, 1).await;
    let id = set.process_ids()[0].to_string();
    assert!(is_alive(&id));
    set.pause(0).await;
    drop(fault);
    drop(set);
    let begin = Instant::now();
    // A folder that holds anything is not removed.
    while is_alive(&id) || folder.exists() {
        fs::remove_dir(&folder).ok();
        assert!(begin.elapsed() < Duration::from_secs(60), "the set leaves something");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_alive(process: &str) -> bool {
    Path::new("/proc").join(process).exists()
}
