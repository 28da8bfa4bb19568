//! The quickstart does what it says, in memory and on a real replica set.

use std::process::Command;

/// Builds and runs the example as README says, and gives what it printed.
fn run(uri: Option<&str>) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--example", "quickstart"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env_remove("MONGODB_URI");
    if let Some(uri) = uri {
        cargo.env("MONGODB_URI", uri);
    }
    let output = cargo.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn shows_the_story(said: &str) {
    for sentence in ["alice acquired", "bob is refused", "alice wrote 42 pages", "alice released it", "bob acquired it"]
    {
        assert!(said.contains(sentence), "{sentence} is missing in:\n{said}");
    }
}

#[test]
fn the_quickstart_runs_in_memory() {
    let said = run(None);
    assert!(said.starts_with("in memory"), "{said}");
    shows_the_story(&said);
}

#[tokio::test]
async fn the_quickstart_runs_on_a_real_replica_set() {
    let set = mongoseal_test_support::shared(1).await;
    let uri = set.uri();
    let said = tokio::task::spawn_blocking(move || run(Some(&uri))).await.unwrap();
    assert!(said.starts_with("on the replica set"), "{said}");
    shows_the_story(&said);
    let records = set.client().await.database("mongoseal").collection::<mongodb::bson::Document>("mongoseal");
    let record = records.find_one(mongodb::bson::doc! { "_id": "reports/nightly" }).await.unwrap().unwrap();
    assert!(record.get_array("holders").unwrap().is_empty(), "shutdown released what was held: {record}");
}
