//! The example `quickstart`, in memory and on a real replica set.

use crate::{TestDatabase, said};

fn shows_the_story(said: &str) {
    for sentence in ["alice acquired", "bob is refused", "alice wrote 42 pages", "alice released it", "bob acquired it"]
    {
        assert!(said.contains(sentence), "{sentence} is missing in:\n{said}");
    }
}

#[test]
fn the_quickstart_runs_in_memory() {
    let said = said("quickstart", None);
    assert!(said.starts_with("in memory"), "{said}");
    shows_the_story(&said);
}

#[tokio::test]
async fn the_quickstart_runs_on_a_real_replica_set() {
    let db = TestDatabase::new("examples_quickstart").await;
    let uri = db.uri();
    let said = tokio::task::spawn_blocking(move || said("quickstart", Some(&uri))).await.unwrap();
    assert!(said.starts_with("on the replica set"), "{said}");
    shows_the_story(&said);
    let record = db.record("reports/nightly").await.unwrap();
    assert!(record.get_array("holders").unwrap().is_empty(), "shutdown released what was held: {record}");
}
