//! The options of `run` and `elect` that flock(1) and its like have, too.

use std::time::Instant;

use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::SIGTERM;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    millis,
    sandbox::{KEY, Sandbox, done, ended, mongoseal},
};

#[tokio::test]
async fn the_options_of_flock_are_understood() {
    let sandbox = Sandbox::new("as_flock").await;
    let lease = sandbox.hold().await;
    sandbox.done(&["run", "-n", KEY, "--", "echo", "never"]).await.says(121, "is held by");
    sandbox.done(&["run", "-n", "-E", "7", KEY, "--", "echo", "never"]).await.says(7, "is held by");
    sandbox.done(&["elect", "-n", "-E", "0", KEY, "v"]).await.says(0, "is held by");
    let began = Instant::now();
    sandbox.done(&["run", "-w", "0.5", KEY, "--", "echo", "never"]).await.says(121, "is held by");
    assert!(began.elapsed() >= millis(500), "{:?}", began.elapsed());
    sandbox.done(&["elect", "-w1", KEY, "v"]).await.says(121, &format!("is held by {:?}", lease.owner()));
    lease.release().await.unwrap();
    let shared = sandbox.seal.acquire(KEY).shared_up_to(2).await.unwrap();
    sandbox.done(&["run", KEY, "-n", "--shared", "2", "--ttl", "30", "--", "true"]).await.is_quiet(0);
    shared.release().await.unwrap();
}

#[tokio::test]
async fn a_time_that_cannot_be_is_blamed_on_the_option_that_the_caller_has_passed() {
    let sandbox = Sandbox::new("blamed").await;
    for (options, part) in [
        (&["--ttl", "0"][..], "--ttl 0s leaves no time to end the command before its lease ends: pass at least 300ms"),
        (&["--ttl", "3s", "--term-before", "2s"], "is more than half of --ttl 3s"),
        (&["--ttl", "100ms"], "--ttl 100ms leaves no time"),
        (&["--max-hold", "100ms"], "--max-hold 100ms leaves no time"),
        (
            &["--term-before", "20ms"],
            "--term-before 20ms leaves no time to end the command before its lease ends: pass at least 50ms",
        ),
        (&["--max-hold", "5s", "--term-before", "3s"], "--term-before 3s is more than half of --max-hold 5s"),
        (&["--kill-before", "1ms"], "--kill-before 1ms is not between 10ms and --term-before 5s"),
        (&["--kill-before", "5s"], "is not between 10ms and --term-before 5s"),
        (&["--min-hold", "40s", "--max-hold", "20s"], "let --min-hold be shorter"),
        (&["--min-hold", "1000d"], "--min-hold cannot be 1000 d"),
        (&["--ttl", "25h"], "exceed the retention of idle records (--retention), 1 d"),
        (&["--timeout", "0"], "--timeout must be from 10 ms"),
    ] {
        let run = [&["run", KEY][..], options, &["--", "true"]].concat();
        sandbox.done(&run).await.says(125, part);
    }
    // Creates the index.
    sandbox.done(&["ls"]).await;
    sandbox.done(&["--retention", "25h", "ls"]).await.says(125, "the retention of idle records (--retention)");
    sandbox.done(&["--db", "", "ls"]).await.fails(125, "'--db <NAME>'");
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn the_error_of_a_wait_in_an_outage_has_the_time_of_the_whole_wait() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "whole_wait").await;
    let lease = sandbox.hold().await;
    let run = sandbox.mongoseal(&["run", KEY, "-w", "7", "--timeout", "2s", "--", "true"]).spawn().unwrap();
    sandbox.queued(1).await;
    set.pause(0).await;
    let run = ended(run).await;
    assert_eq!(run.code, 123, "{}", run.stderr);
    let last = run.stderr.lines().last().unwrap();
    let (waited, rest) =
        last.strip_prefix("mongoseal: error: the wait ended after ").and_then(|rest| rest.split_once(" s: ")).unwrap();
    // The last request may take its whole time beyond the wait.
    assert!((7..10).contains(&waited.parse::<u64>().unwrap()), "{}", run.stderr);
    assert!(rest.starts_with("MongoDB has not answered for "), "{rest}");
    set.resume(0).await;
    drop(lease);
}

#[tokio::test]
async fn several_keys_are_held_together_and_each_has_its_token() {
    let sandbox = Sandbox::new("several").await;
    let script = r#"echo "$MONGOSEAL_KEY_1 $MONGOSEAL_TOKEN_1 $MONGOSEAL_KEY_2 $MONGOSEAL_TOKEN_2 ${MONGOSEAL_KEY-none}"
        touch "$F/began"; until [ -e "$F/go" ]; do sleep 0.02; done"#;
    let run = sandbox.mongoseal(&["run", "b", "a", "--", "sh", "-c", script]).spawn().unwrap();
    sandbox.exists("began").await;
    for key in ["a", "b"] {
        assert!(sandbox.seal.acquire(key).await.is_err(), "{key} is held");
    }
    sandbox.touch("go");
    let printed = ended(run).await.printed();
    let [a, b] = ["a", "b"].map(async |key| sandbox.seal.inspect(key).await.unwrap().unwrap().version);
    assert_eq!(printed, format!("a {} b {} none\n", a.await, b.await));
    sandbox.free(&["a", "b"]).await;
}

#[tokio::test]
async fn metadata_group_and_no_expiry_are_those_of_the_lease() {
    let sandbox = Sandbox::new("lease_options").await;
    let labels = ["--metadata", "build=1.4.2", "--metadata", "url=a=b", "--group", "g"];
    let command = ["--", "sh", "-c", r#"echo "${MONGOSEAL_DEADLINE-none}"; exec sleep 100"#];
    for (arguments, has_expiry) in [
        ([&["run", KEY, "--without-expiry"][..], &labels, &command].concat(), false),
        ([&["elect", KEY, "10.0.0.7:4000"][..], &labels].concat(), true),
    ] {
        let mut running = sandbox.start(&arguments);
        sandbox.held().await;
        if !has_expiry {
            assert_eq!(running.line().await, "none");
        }
        let holder = sandbox.holder().await.unwrap();
        for label in [("build", "1.4.2"), ("url", "a=b")] {
            assert!(holder.metadata.iter().any(|of_lease| of_lease == label), "{holder:?}");
        }
        assert_eq!(holder.group.as_ref().map(mongoseal::Group::as_str), Some("g"));
        assert_eq!(holder.free_in != std::time::Duration::MAX, has_expiry);
        running.signal(SIGTERM);
        ended(running.child).await;
        sandbox.is_free().await;
    }
    let refused = ["elect", KEY, "a", "--metadata=value=b"];
    sandbox.done(&refused).await.says(125, "it is the name of the leader's value");
    done(mongoseal(&["run", "k", "--metadata", "x", "--", "true"])).await.fails(125, "build=1.4.2");
}

#[tokio::test]
async fn a_verbose_run_reports_the_wait_and_the_grant_in_a_pipe() {
    let sandbox = Sandbox::new("verbose").await;
    let lease = sandbox.hold().await;
    let mut run = sandbox.mongoseal(&["run", "-v", KEY, "--", "echo", "done"]).spawn().unwrap();
    let mut messages = BufReader::new(run.stderr.take().unwrap()).lines();
    // On a busy machine, it also says that the server is slow.
    let mut next = async |word: &str| loop {
        let message = messages.next_line().await.unwrap().unwrap();
        if message.contains(word) {
            return message;
        }
    };
    let waiting = next("waiting").await;
    let owner = lease.owner().clone();
    lease.release().await.unwrap();
    let granted = next("granted").await;
    let run = ended(run).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "done\n"));
    assert!(waiting.starts_with(&format!("mongoseal: waiting, next in line; held by {owner} (")), "{waiting}");
    let token = sandbox.seal.inspect(KEY).await.unwrap().unwrap().version;
    assert!(granted.starts_with(&format!("mongoseal: granted \"{KEY}\" with token {token} after ")), "{granted}");
}

#[tokio::test]
async fn a_run_that_waits_for_the_lease_that_it_was_started_under_warns() {
    let sandbox = Sandbox::new("itself").await;
    let run = done(sandbox.run(r#""$M" run reports/nightly --wait 1500ms -- echo never"#)).await;
    assert_eq!((run.code, run.stdout.as_str()), (121, ""));
    let [warning, held] = run.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", run.stderr) };
    assert!(warning.contains("waits for itself") && held.contains("is held by"), "{}", run.stderr);
    // Another key is no cause for a warning.
    done(sandbox.run(r#""$M" run other -- echo done"#)).await.is_quiet(0);
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_reported_after_a_second() {
    for command in [&["run", "k", "--", "true"][..], &["ls"]] {
        let mut run = mongoseal(command);
        let mut run = run.env("MONGODB_URI", "mongodb://127.0.0.1:9/?replicaSet=none").spawn().unwrap();
        let line = BufReader::new(run.stderr.take().unwrap()).lines().next_line().await.unwrap().unwrap();
        let cause = "connection refused by 127.0.0.1:9";
        let expected = format!("mongoseal: MongoDB has not answered for 1 s: {cause}; waiting up to 10 s (--timeout)");
        assert_eq!(line, expected);
        run.kill().await.unwrap();
    }
}
