//! The examples that run to their end: in memory, and on a real replica set, where they tell the same story.

use crate::{TestDatabase, said};

/// Runs an example, and demands that it says where it runs and what its story is. Returns what it said.
fn tells(name: &str, uri: Option<&str>) -> String {
    let said = said(name, uri);
    let story = match name {
        "blocking" => vec!["the sums are ["],
        "fenced_write" => vec!["an update is lost", "stop acting on the key", "can do its part again"],
        _ => vec!["alice acquired", "bob is refused", "alice wrote 42 pages", "alice released it", "bob acquired it"],
    };
    for sentence in story {
        assert!(said.contains(sentence), "{sentence} is missing in:\n{said}");
    }
    let place = if uri.is_some() { "on the replica set" } else { "in memory" };
    assert!(name == "fenced_write" || said.starts_with(place), "{said}");
    said
}

/// Runs it in memory and on a database of its own, which it returns.
async fn runs(name: &'static str) -> TestDatabase {
    let db = TestDatabase::new(&format!("examples_{name}")).await;
    let uri = db.uri();
    let both = move || [tells(name, None), tells(name, Some(&uri))];
    for said in tokio::task::spawn_blocking(both).await.unwrap() {
        let token = |line: &str| line.split_once("with token ")?.1.parse().ok();
        let tokens: Vec<u64> = said.lines().filter_map(token).collect();
        assert!(name != "blocking" || tokens.len() == 3 && tokens.is_sorted_by(|one, next| one < next), "{said}");
    }
    db
}

#[tokio::test]
async fn the_blocking_example_gives_each_worker_its_turn() {
    runs("blocking").await;
}

#[tokio::test]
async fn the_fenced_write_of_a_paused_holder_is_refused() {
    runs("fenced_write").await;
}

#[tokio::test]
async fn the_quickstart_releases_what_it_holds() {
    let record = runs("quickstart").await.record("reports/nightly").await.unwrap();
    assert!(record.get_array("holders").unwrap().is_empty(), "shutdown released what was held: {record}");
}
