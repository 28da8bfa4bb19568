//! Exit statuses and messages of failures.

use std::time::Instant;

use mongoseal_test_support::{ReplicaSet, Standalone};
use tokio::task::JoinSet;

use crate::{
    sandbox::{KEY, Sandbox, done, mongoseal},
    secs,
};

#[tokio::test]
async fn a_key_that_is_held_is_a_status_of_its_own() {
    let sandbox = Sandbox::new("held").await;
    let lease = sandbox.hold().await;
    for wait in ["--no-wait", "--wait=200ms"] {
        let run = done(sandbox.mongoseal(&["run", KEY, wait, "--", "echo", "never"])).await;
        run.says(121, &format!("\"{KEY}\" is held by {:?}", lease.owner()));
    }
    lease.release().await.unwrap();
    let shared = sandbox.seal.acquire(KEY).shared_up_to(2).await.unwrap();
    let run = done(sandbox.mongoseal(&["run", KEY, "--no-wait", "--shared", "2", "--", "echo", "shared"])).await;
    run.is_quiet(0);
    shared.release().await.unwrap();
}

#[tokio::test]
async fn wrong_arguments_are_a_status_of_their_own() {
    let run = |options: &[&str]| {
        let mut arguments = vec!["run", "k"];
        arguments.extend(options);
        arguments.extend(["--", "true"]);
        mongoseal(&arguments)
    };
    done(run(&[])).await.says(125, "no connection string: set MONGODB_URI");
    done(run(&["--ttl=3s", "--term-before=2s"])).await.says(125, "is more than half of --ttl 3s");
    for kill_before in ["5s", "1ns", "0s"] {
        let refused = done(run(&[&format!("--kill-before={kill_before}")])).await;
        refused.says(125, "is not between 10ms and --term-before 5s");
    }
    done(run(&["--uri=mysql://x"])).await.says(125, "connection string");
    for wrong in [mongoseal(&["run", "k"]), mongoseal(&["no-such"]), run(&["--ttl=soon"]), mongoseal(&[])] {
        let wrong = done(wrong).await;
        assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(125), ""), "{}", wrong.stderr);
    }
    for right in ["--help", "--version"] {
        let right = done(mongoseal(&[right])).await;
        right.is_quiet(0);
        assert!(right.stdout.contains("mongoseal"), "{}", right.stdout);
    }
}

#[tokio::test]
async fn a_database_that_cannot_serve_is_one_clear_sentence_and_soon() {
    let standalone = Standalone::start().await;
    let secured = ReplicaSet::builder().auth().start().await;
    secured.add_user("user", "s3cret", "app", vec![]).await;
    let mut asked = JoinSet::new();
    for (uri, code, sentence) in [
        (secured.uri_as("user", "wr0ng-pass", "app"), 125, "MongoDB refused the credentials"),
        ("mongodb://127.0.0.1:1/?replicaSet=none".to_owned(), 123, "no primary of the MongoDB replica set"),
        ("mongodb://no-such-host.invalid/?replicaSet=none".to_owned(), 123, "no primary of the MongoDB replica set"),
        (standalone.uri(), 125, "this MongoDB server is a standalone"),
    ] {
        let commands = [&["run", "k", "--", "true"][..], &["elect", "k", "v"], &["leader", "k"], &["verify", "k", "1"]];
        // A password takes long to be checked by a program that is not optimized.
        let count = if uri.contains('@') { 1 } else { commands.len() };
        for command in &commands[..count] {
            let mut command = mongoseal(command);
            command.env("MONGODB_URI", &uri);
            asked.spawn(async move {
                let began = Instant::now();
                let ended = done(command).await;
                ended.says(code, sentence);
                assert!(!ended.stderr.contains("wr0ng-pass"), "{}", ended.stderr);
                assert!(ended.stderr.matches("Authentication failed").count() < 2, "{}", ended.stderr);
                assert!(!ended.stderr.contains(['{', '}']), "it is for people: {}", ended.stderr);
                // The operation timeout, on a busy machine.
                assert!(began.elapsed() < secs(15), "{:?}", began.elapsed());
            });
        }
    }
    while let Some(asked) = asked.join_next().await {
        asked.unwrap();
    }
}

#[tokio::test]
async fn a_pipe_that_nobody_reads_is_no_panic() {
    let sandbox = Sandbox::new("pipe").await;
    let lease = sandbox.seal.campaign("scheduler").value("v").await.unwrap();
    let commands: [&[&str]; 6] =
        [&["--help"], &["leader", "scheduler"], &["leader", "none"], &["no-such"], &["completions", "bash"], &["man"]];
    for command in commands {
        let mut command = sandbox.mongoseal(command);
        let (gone, pipe) = std::io::pipe().unwrap();
        drop(gone);
        command.stdout(pipe.try_clone().unwrap()).stderr(pipe);
        let status = command.spawn().unwrap().wait().await.unwrap();
        assert!(matches!(status.code(), Some(0 | 1 | 125)), "{status}");
    }
    lease.resign().await.unwrap();
}
