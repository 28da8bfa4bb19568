//! Exit statuses and messages of failures.

use std::{
    fs,
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use mongodb::bson::doc;
use mongoseal_test_support::{ReplicaSet, Standalone};
use nix::sys::signal::Signal::SIGTERM;
use tokio::task::JoinSet;

use crate::{
    eventually,
    sandbox::{KEY, Sandbox, bash, done, ended, id, mongoseal, signal},
    secs,
};

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
async fn a_database_that_cannot_serve_is_one_clear_sentence() {
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
                let ended = done(command).await;
                ended.says(code, sentence);
                assert!(!ended.stderr.contains("wr0ng-pass"), "{}", ended.stderr);
                assert!(ended.stderr.matches("Authentication failed").count() < 2, "{}", ended.stderr);
                assert!(!ended.stderr.contains(['{', '}']), "it is for people: {}", ended.stderr);
            });
        }
    }
    while let Some(asked) = asked.join_next().await {
        asked.unwrap();
    }
}

#[tokio::test]
async fn a_limit_of_files_or_threads_is_an_error_that_names_it_and_no_panic() {
    for (limit, command) in [(6, "ls"), (6, "run k -- true"), (8, "ls")] {
        let mut limited = bash(&format!("ulimit -n {limit}; exec mongoseal {command}"));
        limited.env("MONGODB_URI", "mongodb://127.0.0.1:1/?replicaSet=none");
        done(limited).await.says(125, "raise the limit of open files (ulimit -n)");
    }
    // The system starts no thread with such a stack, as it starts none beyond `ulimit -u`, which does not bind root.
    for command in [&["ls"][..], &["run", "k", "--", "true"], &["hold", "k"], &["leader", "k", "--follow"]] {
        let mut command = mongoseal(command);
        command.env("MONGODB_URI", "mongodb://localhost:1/?replicaSet=none").env("RUST_MIN_STACK", "100000000000000");
        done(command).await.says(125, "raise the limit of processes and threads (ulimit -u)");
    }
}

#[tokio::test]
async fn the_name_of_the_database_that_differs_in_case_is_shown() {
    let sandbox = Sandbox::new("cased").await;
    sandbox.is_free().await;
    let mut run = sandbox.mongoseal(&["run", "k", "--", "true"]);
    run.env("MONGOSEAL_DB", "CLI_Cased");
    let run = done(run).await;
    run.says(125, "a database whose name differs from \"CLI_Cased\" in upper and lower case only");
    assert!(run.stderr.contains("already have: [cli_cased]"), "{}", run.stderr);
}

#[tokio::test]
async fn a_command_that_is_ended_because_refreshes_were_refused_says_why() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "refused").await;
    let refuses = doc! { "errorCode": 18 };
    let commands = ["findAndModify", "update", "bulkWrite"];
    for arguments in [&["run", "--ttl", "10s", "k", "--"][..], &["elect", "--ttl", "10s", "e", "v", "--"]] {
        let script = r#"touch "$F/began"; exec sleep 100"#;
        let mut command = sandbox.mongoseal(&[arguments, &["sh", "-c", script]].concat());
        let ending = command.env("F", sandbox.file("")).spawn().unwrap();
        sandbox.exists("began").await;
        let point = set.fail_command("mongoseal", &commands, refuses.clone(), 1_000_000).await;
        let said = ended(ending).await;
        said.says(122, "could not be refreshed in time, so the command was ended before the lease was: MongoDB refused the credentials");
        point.off().await;
        fs::remove_file(sandbox.file("began")).unwrap();
    }
}

#[tokio::test]
async fn a_signal_ends_a_program_whose_last_message_nobody_reads() {
    let sandbox = Sandbox::new("unread_message").await;
    let lease = sandbox.hold().await;
    let (unread, mut full) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(&[b'.'; 4_096]).is_ok() {}
    while full.write(b".").is_ok() {}
    full.set_nonblocking(false).unwrap();
    let file = sandbox.file("status");
    let mut run = sandbox.mongoseal(&["run", "-n", KEY, "--status-file", file.to_str().unwrap(), "--", "true"]);
    let mut run = run.stderr(Stdio::from(OwnedFd::from(full))).spawn().unwrap();
    // It is written before the last message.
    eventually(secs(60), "the status is written", async || fs::metadata(&file).is_ok_and(|file| file.len() > 0)).await;
    signal(id(&run), SIGTERM);
    let ended = tokio::time::timeout(secs(60), run.wait()).await.expect("it ends").unwrap();
    assert_eq!(ended.code(), Some(121));
    drop(unread);
    lease.release().await.unwrap();
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

/// The program writes to the file how the run ended: a status of the command differs there from one of the program.
#[tokio::test]
async fn the_status_file_tells_the_command_s_status_from_the_program_s() {
    let sandbox = Sandbox::new("status_file").await;
    let file = sandbox.file("status.json");
    let run = async |arguments: &[&str]| {
        let arguments = [&["run", KEY, "--status-file", file.to_str().unwrap()], arguments].concat();
        let ended = done(sandbox.mongoseal(&arguments)).await;
        let written = fs::read_to_string(&file).unwrap();
        assert_eq!(written.lines().count(), 1, "{written}");
        (ended.code, serde_json::from_str::<serde_json::Value>(&written).unwrap())
    };
    let (code, of_command) = run(&["--", "sh", "-c", "exit 121"]).await;
    assert_eq!((code, &of_command["status"], &of_command["end"]), (Some(121), &121.into(), &"by_itself".into()));
    assert_eq!(of_command["command"]["status"], 121);
    assert_eq!(of_command["leases"][0]["key"], KEY);
    assert!(of_command["leases"][0]["token"].as_u64().is_some(), "{of_command}");
    let (_, killed) = run(&["--", "sh", "-c", "kill -9 $$"]).await;
    assert_eq!((&killed["command"]["signal"], &killed["status"]), (&9.into(), &137.into()));

    let lease = sandbox.hold().await;
    let (code, held) = run(&["--no-wait", "--", "true"]).await;
    assert_eq!((code, &held["status"], &held["end"]), (Some(121), &121.into(), &"not_started".into()));
    assert_eq!((&held["command"], &held["leases"]), (&serde_json::Value::Null, &serde_json::json!([])));
    assert!(held["message"].as_str().unwrap().contains("is held by"), "{held}");
    lease.release().await.unwrap();

    let mut command = sandbox.mongoseal(&["run", "-n", KEY, "--status-file", file.to_str().unwrap(), "--"]);
    command.args(["sh", "-c", r#"touch "$F/runs"; sleep 100"#]).env("F", sandbox.file(""));
    let child = command.spawn().unwrap();
    sandbox.exists("runs").await;
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    assert_eq!(ended(child).await.code, Some(122));
    let lost: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&lost["end"], &lost["status"]), (&"by_mongoseal".into(), &122.into()));

    let arguments = ["run", KEY, "--status-file", "/nowhere/status.json", "--", "true"];
    done(sandbox.mongoseal(&arguments)).await.says(125, "cannot write --status-file /nowhere/status.json");
    sandbox.is_free().await;
}

#[tokio::test]
async fn what_is_verified_is_printed_as_json() {
    let sandbox = Sandbox::new("verify_json").await;
    let lease = sandbox.hold().await;
    let verify = async |token: u64| {
        let ended = done(sandbox.mongoseal(&["verify", KEY, &token.to_string(), "--json"])).await;
        (ended.code, serde_json::from_str::<serde_json::Value>(&ended.stdout).unwrap())
    };
    let token = lease.token().get();
    let newest = serde_json::json!({ "key": KEY, "token": token, "version": token, "newest": true });
    assert_eq!(verify(token).await, (Some(0), newest));
    let older = serde_json::json!({ "key": KEY, "token": token - 1, "version": token, "newest": false });
    assert_eq!(verify(token - 1).await, (Some(1), older));
}

#[tokio::test]
async fn leaders_and_leases_of_hold_have_a_group_and_metadata() {
    let sandbox = Sandbox::new("labels").await;
    for arguments in [&["hold", KEY, "--no-stdin"][..], &["elect", KEY, "10.0.0.7:4000"]] {
        let labels = ["--group=nightly", "--metadata=build=1.4.2"];
        let child = sandbox.mongoseal(&[arguments, &labels].concat()).spawn().unwrap();
        let holder =
            async || sandbox.seal.inspect(KEY).await.unwrap().and_then(|record| record.holders.into_iter().next());
        eventually(secs(20), "it holds", async || holder().await.is_some()).await;
        let holder = holder().await.unwrap();
        assert_eq!(holder.group.unwrap().as_str(), "nightly");
        assert_eq!(holder.metadata.get("build"), Some("1.4.2"));
        signal(id(&child), nix::sys::signal::Signal::SIGTERM);
        ended(child).await;
    }
    let refused = ["elect", KEY, "a", "--metadata=value=b"];
    done(sandbox.mongoseal(&refused)).await.says(125, "it is the name of the leader's value");
}
