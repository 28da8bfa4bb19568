//! The options of `run` and `elect` that flock(1) and its like have, too.

use std::time::Instant;

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    millis,
    sandbox::{KEY, Sandbox, done, ended, id, mongoseal, signal},
};

#[tokio::test]
async fn the_options_of_flock_are_understood() {
    let sandbox = Sandbox::new("as_flock").await;
    let lease = sandbox.hold().await;
    done(sandbox.mongoseal(&["run", "-n", KEY, "--", "echo", "never"])).await.says(121, "is held by");
    done(sandbox.mongoseal(&["run", "-n", "-E", "7", KEY, "--", "echo", "never"])).await.says(7, "is held by");
    done(sandbox.mongoseal(&["elect", "-n", "-E", "0", KEY, "v"])).await.says(0, "is held by");
    let began = Instant::now();
    done(sandbox.mongoseal(&["run", "-w", "0.5", KEY, "--", "echo", "never"])).await.says(121, "is held by");
    assert!(began.elapsed() >= millis(500), "{:?}", began.elapsed());
    done(sandbox.mongoseal(&["elect", "-w1", KEY, "v"])).await.says(121, &format!("is held by {:?}", lease.owner()));
    lease.release().await.unwrap();
    let shared = sandbox.seal.acquire(KEY).shared_up_to(2).await.unwrap();
    done(sandbox.mongoseal(&["run", KEY, "-n", "--shared", "2", "--ttl", "30", "--", "true"])).await.is_quiet(0);
    shared.release().await.unwrap();
}

#[tokio::test]
async fn a_time_that_cannot_be_is_blamed_on_the_option_that_the_caller_has_passed() {
    let sandbox = Sandbox::new("blamed").await;
    for (options, part) in [
        (&["--ttl", "0"][..], "--ttl 0s leaves no time to end the command before its lease ends: pass at least 300ms"),
        (&["--ttl", "100ms"], "--ttl 100ms leaves no time"),
        (&["--max-hold", "100ms"], "--max-hold 100ms leaves no time"),
        (
            &["--term-before", "20ms"],
            "--term-before 20ms leaves no time to end the command before its lease ends: pass at least 50ms",
        ),
        (&["--kill-before", "1ms"], "--kill-before 1ms is not between 10ms and --term-before 5s"),
        (&["--min-hold", "40s", "--max-hold", "20s"], "let --min-hold be shorter"),
        (&["--min-hold", "1000d"], "--min-hold cannot be 1000 d"),
        (&["--ttl", "25h"], "exceed the retention of idle records (--retention), 1 d"),
        (&["--timeout", "0"], "--timeout must be from 10 ms"),
    ] {
        let run = [&["run", KEY][..], options, &["--", "true"]].concat();
        done(sandbox.mongoseal(&run)).await.says(125, part);
    }
    // Creates the index.
    done(sandbox.mongoseal(&["ls"])).await;
    done(sandbox.mongoseal(&["--retention", "25h", "ls"]))
        .await
        .says(125, "the retention of idle records (--retention)");
    let empty = done(sandbox.mongoseal(&["--db", "", "ls"])).await;
    assert!(empty.code == Some(125) && empty.stderr.contains("'--db <NAME>'"), "{}", empty.stderr);
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn the_error_of_a_wait_in_an_outage_has_the_time_of_the_whole_wait() {
    let set = mongoseal_test_support::ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "whole_wait").await;
    let lease = sandbox.hold().await;
    let run = sandbox.mongoseal(&["run", KEY, "-w", "7", "--timeout", "2s", "--", "true"]).spawn().unwrap();
    sandbox.queued(1).await;
    set.pause(0).await;
    let run = ended(run).await;
    assert_eq!(run.code, Some(123), "{}", run.stderr);
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
    let mut run = sandbox.mongoseal(&["run", "b", "a", "--", "sh", "-c", script]);
    let run = run.env("F", sandbox.file("")).spawn().unwrap();
    sandbox.exists("began").await;
    for key in ["a", "b"] {
        assert!(sandbox.seal.acquire(key).await.is_err(), "{key} is held");
    }
    std::fs::write(sandbox.file("go"), "").unwrap();
    let run = ended(run).await;
    run.is_quiet(0);
    let mut tokens = Vec::new();
    for key in ["a", "b"] {
        tokens.push(sandbox.seal.inspect(key).await.unwrap().unwrap().version);
        sandbox.seal.acquire(key).await.unwrap().release().await.unwrap();
    }
    assert_eq!(run.stdout, format!("a {} b {} none\n", tokens[0], tokens[1]));
}

#[tokio::test]
async fn the_loss_of_one_of_several_keys_ends_the_command_and_frees_the_others() {
    let sandbox = Sandbox::new("several_lost").await;
    let script = r#"echo $$ >"$F/id"; exec sleep 100"#;
    // No refresh is due in the time of the test.
    let mut run = sandbox.mongoseal(&["run", "a", "b", "c", "--ttl", "30m", "--", "sh", "-c", script]);
    let run = run.env("F", sandbox.file("")).spawn().unwrap();
    sandbox.processes("id", 1).await;
    sandbox.seal.revoke("b").by("ops").reason("moved").await.unwrap();
    ended(run).await.says(122, "the lease on \"b\" with token ");
    for key in ["a", "b", "c"] {
        sandbox.seal.acquire(key).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn metadata_group_and_no_expiry_are_those_of_the_lease() {
    let sandbox = Sandbox::new("lease_options").await;
    let options = ["--metadata", "build=1.4.2", "--metadata", "url=a=b", "--group", "g", "--without-expiry"];
    let run = [
        &["run", KEY],
        &options[..],
        &["--", "sh", "-c", r#"echo "${MONGOSEAL_DEADLINE-none}"; touch "$F/began"; exec sleep 100"#],
    ];
    let mut run = sandbox.mongoseal(&run.concat());
    let run = run.env("F", sandbox.file("")).spawn().unwrap();
    sandbox.exists("began").await;
    let record = sandbox.seal.inspect(KEY).await.unwrap().unwrap();
    let [holder] = &record.holders[..] else { panic!("{record:?}") };
    assert_eq!(holder.metadata.iter().collect::<Vec<_>>(), [("build", "1.4.2"), ("url", "a=b")]);
    assert_eq!((holder.group.as_ref().map(mongoseal::Group::as_str), holder.remaining), (Some("g"), None));
    signal(id(&run), nix::sys::signal::Signal::SIGTERM);
    let run = ended(run).await;
    run.is_quiet(143);
    assert_eq!(run.stdout, "none\n");
    sandbox.is_free().await;
    let refused = done(mongoseal(&["run", "k", "--metadata", "x", "--", "true"])).await;
    assert!(refused.code == Some(125) && refused.stderr.contains("build=1.4.2"), "{}", refused.stderr);
}

#[tokio::test]
async fn a_verbose_run_reports_the_wait_and_the_grant_in_a_pipe() {
    let sandbox = Sandbox::new("verbose").await;
    let lease = sandbox.hold().await;
    let mut run = sandbox.mongoseal(&["run", "-v", KEY, "--", "echo", "done"]).spawn().unwrap();
    let mut messages = BufReader::new(run.stderr.take().unwrap()).lines();
    let waiting = messages.next_line().await.unwrap().unwrap();
    let owner = lease.owner().clone();
    lease.release().await.unwrap();
    let granted = messages.next_line().await.unwrap().unwrap();
    let run = ended(run).await;
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "done\n"));
    assert!(waiting.starts_with(&format!("mongoseal: waiting, next in line; held by {owner} (")), "{waiting}");
    let token = sandbox.seal.inspect(KEY).await.unwrap().unwrap().version;
    assert!(granted.starts_with(&format!("mongoseal: granted \"{KEY}\" with token {token} after ")), "{granted}");
}

#[tokio::test]
async fn a_run_that_waits_for_the_lease_that_it_was_started_under_warns() {
    let sandbox = Sandbox::new("itself").await;
    let run = sandbox.run(r#""$M" run reports/nightly --wait 1500ms -- echo never"#);
    let run = { run }.env("M", env!("CARGO_BIN_EXE_mongoseal")).spawn().unwrap();
    let run = ended(run).await;
    assert_eq!((run.code, run.stdout.as_str()), (Some(121), ""));
    let [warning, held] = run.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", run.stderr) };
    assert!(warning.contains("waits for itself") && held.contains("is held by"), "{}", run.stderr);
    // Another key is no cause for a warning.
    let run = sandbox.run(r#""$M" run other -- echo done"#);
    let run = ended({ run }.env("M", env!("CARGO_BIN_EXE_mongoseal")).spawn().unwrap()).await;
    run.is_quiet(0);
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
