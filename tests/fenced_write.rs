//! The example of a fenced write does what it says, in memory and on a real replica set.

use std::process::Command;

fn run(uri: Option<&str>) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--example", "fenced_write"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env_remove("MONGODB_URI");
    if let Some(uri) = uri {
        cargo.env("MONGODB_URI", uri);
    }
    let output = cargo.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for sentence in ["an update is lost", "stop acting on the key", "can do its part again"] {
        assert!(said.contains(sentence), "{sentence} is missing in:\n{said}");
    }
}

#[test]
fn the_fenced_write_runs_in_memory() {
    run(None);
}

#[tokio::test]
async fn the_fenced_write_runs_on_a_real_replica_set() {
    let set = mongoseal_test_support::shared(1).await;
    let uri = set.uri();
    tokio::task::spawn_blocking(move || run(Some(&uri))).await.unwrap();
}
