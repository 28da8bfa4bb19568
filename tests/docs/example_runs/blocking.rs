//! The example `blocking`, in memory and on a real replica set.

use crate::{TestDatabase, said};

fn shows_that_each_worker_had_its_turn(said: &str) {
    let tokens: Vec<u64> = said
        .lines()
        .filter_map(|line| line.split_once("with token "))
        .map(|(_, token)| token.parse().unwrap())
        .collect();
    assert_eq!(tokens.len(), 3, "{said}");
    assert!(tokens.is_sorted_by(|one, next| one < next), "{said}");
    assert!(said.contains("the sums are ["), "{said}");
}

#[test]
fn the_blocking_example_runs_in_memory() {
    let said = said("blocking", None);
    assert!(said.starts_with("in memory"), "{said}");
    shows_that_each_worker_had_its_turn(&said);
}

#[tokio::test]
async fn the_blocking_example_runs_on_a_real_replica_set() {
    let uri = TestDatabase::new("examples_blocking").await.uri();
    let said = tokio::task::spawn_blocking(move || said("blocking", Some(&uri))).await.unwrap();
    assert!(said.starts_with("on the replica set"), "{said}");
    shows_that_each_worker_had_its_turn(&said);
}
