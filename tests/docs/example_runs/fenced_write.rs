//! The example `fenced_write`: the late write of a paused holder is refused.

use crate::{TestDatabase, said};

fn shows_the_story(said: &str) {
    for sentence in ["an update is lost", "stop acting on the key", "can do its part again"] {
        assert!(said.contains(sentence), "{sentence} is missing in:\n{said}");
    }
}

#[test]
fn the_fenced_write_runs_in_memory() {
    shows_the_story(&said("fenced_write", None));
}

#[tokio::test]
async fn the_fenced_write_runs_on_a_real_replica_set() {
    let uri = TestDatabase::new("examples_fenced_write").await.uri();
    shows_the_story(&tokio::task::spawn_blocking(move || said("fenced_write", Some(&uri))).await.unwrap());
}
