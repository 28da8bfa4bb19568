//! Exit statuses and messages of failures.

use std::{
    fs,
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use mongodb::bson::doc;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::SIGTERM;
use serde_json::{Value, json};

use crate::{
    eventually,
    sandbox::{KEY, Sandbox, bash, done, ended, id, mongoseal, signal},
    secs,
};

#[tokio::test]
async fn wrong_arguments_are_a_status_of_their_own() {
    let run = |options: &[&str]| done(mongoseal(&[&["run", "k"], options, &["--", "true"]].concat()));
    run(&[]).await.says(125, "no connection string: set MONGODB_URI");
    run(&["--uri=mysql://x"]).await.says(125, "connection string");
    let of = |arguments: &[&str]| done(mongoseal(arguments));
    for wrong in [of(&["run", "k"]).await, of(&["no-such"]).await, run(&["--ttl=soon"]).await, of(&[]).await] {
        assert_eq!((wrong.code, wrong.stdout.as_str()), (125, ""), "{}", wrong.stderr);
    }
    for right in ["--help", "--version"] {
        assert!(of(&[right]).await.printed().contains("mongoseal"));
    }
}

/// The runtime panics if the system refuses a descriptor or a thread, and a command can end with status 101, too.
#[tokio::test]
async fn a_limit_of_files_or_threads_is_an_error_that_names_it_and_no_panic() {
    for (limit, command) in [(6, "ls"), (6, "run k -- true"), (8, "ls")] {
        let mut limited = bash(&format!("ulimit -n {limit}; exec mongoseal {command}"));
        limited.env("MONGODB_URI", "mongodb://127.0.0.1:1/?replicaSet=none");
        done(limited).await.says(125, "raise the limit of open files (ulimit -n)");
    }
    // The system starts no thread with such a stack, as it starts none beyond `ulimit -u`, which does not bind root.
    for command in [&["ls"][..], &["run", "k", "--", "true"], &["hold"], &["leader", "k", "--follow"]] {
        let mut command = mongoseal(command);
        command.env("MONGODB_URI", "mongodb://localhost:1/?replicaSet=none").env("RUST_MIN_STACK", "100000000000000");
        done(command).await.says(125, "raise the limit of processes and threads (ulimit -u)");
    }
}

/// What a server quotes in brackets is cut off otherwise, because it can be a lease id.
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
        let ending = sandbox.mongoseal(&[arguments, &["sh", "-c", script]].concat()).spawn().unwrap();
        sandbox.exists("began").await;
        let point = set.fail_command("mongoseal", &commands, refuses.clone(), 1_000_000).await;
        let said = ended(ending).await;
        said.says(122, "could not be refreshed in time, so the command was ended before the lease was: MongoDB refused the credentials");
        point.off().await;
        fs::remove_file(sandbox.file("began")).unwrap();
    }
}

/// The program handles the signal, and must not wait in the write.
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
async fn a_pipe_that_nobody_reads_is_no_failure() {
    let sandbox = Sandbox::new("pipe").await;
    let lease = sandbox.seal.campaign("scheduler").value("v").await.unwrap();
    for (command, status) in [
        ("--help", 0),
        ("--version", 0),
        ("help", 0),
        ("run -h", 0),
        ("man", 0),
        ("completions bash", 0),
        ("leader scheduler", 0),
        ("leader none", 1),
        ("no-such", 125),
    ] {
        let mut command = sandbox.mongoseal(&command.split(' ').collect::<Vec<_>>());
        let (gone, pipe) = std::io::pipe().unwrap();
        drop(gone);
        command.stdout(pipe.try_clone().unwrap()).stderr(pipe);
        assert_eq!(done(command).await.code, status);
    }
    lease.resign().await.unwrap();
}

/// The program writes to the file how the run ended: a status of the command differs there from one of the program.
#[tokio::test]
async fn the_status_file_tells_the_command_s_status_from_the_program_s() {
    let sandbox = Sandbox::new("status_file").await;
    let file = sandbox.file("status.json");
    let status_file = ["run", KEY, "--status-file", file.to_str().unwrap()];
    let written = || {
        let written = fs::read_to_string(&file).unwrap();
        assert_eq!(written.lines().count(), 1, "{written}");
        serde_json::from_str::<Value>(&written).unwrap()
    };
    let run = async |arguments: &[&str], code: i32, end: &str| {
        let ended = sandbox.done(&[&status_file, arguments].concat()).await;
        let written = written();
        assert_eq!((ended.code, &written["status"], &written["end"]), (code, &code.into(), &end.into()));
        written
    };
    let of_command = run(&["--", "sh", "-c", "exit 121"], 121, "by_itself").await;
    assert_eq!((&of_command["command"]["status"], &of_command["leases"][0]["key"]), (&121.into(), &KEY.into()));
    assert!(of_command["leases"][0]["token"].is_u64(), "{of_command}");
    let killed = run(&["--", "sh", "-c", "kill -9 $$"], 137, "by_itself").await;
    assert_eq!(killed["command"]["signal"], 9);

    let lease = sandbox.hold().await;
    let held = run(&["--no-wait", "--", "true"], 121, "not_started").await;
    assert_eq!((&held["command"], &held["leases"]), (&Value::Null, &json!([])));
    assert!(held["message"].as_str().unwrap().contains("is held by"), "{held}");
    lease.release().await.unwrap();

    let command = ["--", "sh", "-c", r#"touch "$F/runs"; sleep 100"#];
    let child = sandbox.mongoseal(&[&status_file[..], &command].concat()).spawn().unwrap();
    sandbox.exists("runs").await;
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    assert_eq!(ended(child).await.code, 122);
    let lost = written();
    assert_eq!((&lost["end"], &lost["status"]), (&"by_mongoseal".into(), &122.into()));

    let arguments = ["run", KEY, "--status-file", "/nowhere/status.json", "--", "true"];
    sandbox.done(&arguments).await.says(125, "cannot write --status-file /nowhere/status.json");
    sandbox.is_free().await;
}
