//! A set that this process did not start can be the shared set.

use std::process::Command;

use mongoseal_test_support::ReplicaSet;

#[tokio::test]
async fn the_shared_set_may_be_an_outside_one_that_cannot_be_hurt() {
    let set = ReplicaSet::start(1).await;
    let output =
        Command::new(env!("CARGO_BIN_EXE_use-an-outside-set")).env("MONGOSEAL_TEST_URI", set.uri()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it serves\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("needs a replica set whose processes it controls"), "{said}");
}

#[tokio::test]
#[should_panic(expected = "nonsense")]
async fn a_server_that_does_not_start_says_why() {
    ReplicaSet::builder().parameter("nonsense", "1").start().await;
}
