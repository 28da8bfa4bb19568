//! The commands that work on Redis as they do on MongoDB.

use std::process::Stdio;

use mongoseal::FencingToken;
use mongoseal_test_support::{Redis, eventually, secs};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::{Console, ended};

pub(crate) async fn run_holds_the_key_while_its_command_runs() {
    let console = Console::new().await;
    let printed = console.run(&["run", "k", "--", "sh", "-c", "echo $MONGOSEAL_KEY $MONGOSEAL_TOKEN"]).await.printed();
    let version = console.seal.inspect("k").await.unwrap().unwrap().version;
    assert_eq!(printed, format!("k {version}\n"));
    let lease = console.seal.acquire("k").await.unwrap();
    console.run(&["run", "k", "--no-wait", "--", "true"]).await.says(121, "is held by \"test\"");
    lease.release().await.unwrap();
    let failed = console.run(&["run", "k", "--", "sh", "-c", "exit 7"]).await;
    assert_eq!((failed.code, failed.stderr.as_str()), (Some(7), ""));
}

pub(crate) async fn a_revocation_ends_the_command() {
    let console = Console::new().await;
    let running = console.spawn(&["run", "k", "--", "sleep", "100"]);
    console.has("k", 1, 0).await;
    let revoked = console.run(&["revoke", "k", "--reason", "stuck", "--by", "olga", "--yes"]).await.printed();
    assert!(revoked.starts_with("revoked \"k\" from "), "{revoked}");
    let ended = ended(running).await;
    ended.says(122, "it was revoked by \"olga\" (reason: \"stuck\")");
    console.run(&["revoke", "k", "--reason", "stuck", "--yes"]).await.says(1, "no holder");
}

pub(crate) async fn a_server_that_goes_away_ends_the_command() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let script = "trap 'echo told >told; exit 0' TERM; while :; do sleep 0.05; done";
    let running = console.spawn(&["run", "k", "--ttl", "6s", "--", "sh", "-c", script]);
    console.has("k", 1, 0).await;
    server.pause();
    let has_ended = async || console.folder.join("told").exists();
    eventually(secs(60), "the command is ended", has_ended).await;
    let ended = ended(running).await;
    assert!(ended.stderr.contains("could not be refreshed in time, so the command was ended"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(122));
    server.resume();
}

pub(crate) async fn acquire_leaves_a_lease_that_refresh_and_release_find() {
    let console = Console::new().await;
    let token = console.run(&["acquire", "k", "--ttl", "1m", "--lease-file", "lease"]).await.printed();
    console.has("k", 1, 0).await;
    console.run(&["refresh", "--lease-file", "lease", "--ttl", "5m"]).await.printed();
    let held = console.seal.inspect("k").await.unwrap().unwrap().holders;
    assert!(held[0].remaining.unwrap() > secs(200), "{held:?}");
    let released = console.run(&["release", "--lease-file", "lease"]).await.printed();
    assert_eq!(released, format!("released \"k\" with token {token}"));
    console.has("k", 0, 0).await;
}

pub(crate) async fn hold_prints_its_events_and_refuses_to_verify() {
    let console = Console::new().await;
    let mut holding = console.command(&["hold", "k", "--json"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = holding.stdin.take().unwrap();
    let mut events = BufReader::new(holding.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(secs(60), events.next_line()).await.expect("it comes").unwrap().unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    let granted = next().await;
    assert_eq!((&granted["event"], &granted["id"]), (&"granted".into(), &serde_json::Value::Null));
    input.write_all(b"{\"id\":1,\"do\":\"verify\"}\n{\"id\":2,\"do\":\"refresh\"}\n").await.unwrap();
    input.write_all(b"{\"id\":3,\"do\":\"release\"}\n").await.unwrap();
    let refused = next().await;
    assert_eq!((&refused["event"], &refused["id"]), (&"error".into(), &1.into()));
    assert!(refused["message"].as_str().unwrap().contains("rely on the token and a fence"), "{refused}");
    for (event, id) in [("refreshed", 2), ("released", 3)] {
        let next = next().await;
        assert_eq!((&next["event"], &next["id"]), (&event.into(), &id.into()));
    }
    // Its output has ended.
    assert_eq!(ended(holding).await.printed(), "");
    console.has("k", 0, 0).await;
}

pub(crate) async fn a_leader_is_elected_and_printed() {
    let console = Console::new().await;
    console.run(&["leader", "e"]).await.says(1, "has no leader");
    let program = env!("CARGO_BIN_EXE_mongoseal");
    let printed =
        console.run(&["elect", "e", "10.0.0.7", "--owner", "web-1", "--", program, "leader", "e"]).await.printed();
    assert!(printed.starts_with("10.0.0.7\tweb-1\t"), "{printed}");
}

pub(crate) async fn leases_are_listed_and_shown() {
    let console = Console::new().await;
    let lease = console.seal.acquire("reports/a").await.unwrap();
    let shared = console.seal.acquire("gpu").shared_up_to(2).await.unwrap();
    let waiting = console.spawn(&["run", "reports/a", "--owner", "bob", "--", "true"]);
    console.has("reports/a", 1, 1).await;
    let listed = console.run(&["ls", "--json"]).await.json();
    let keys: Vec<_> = listed.iter().map(|lease| lease["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["gpu", "reports/a"]);
    assert_eq!((&listed[1]["waiting"], &listed[1]["token"]), (&1.into(), &lease.token().get().into()));
    assert_eq!(console.run(&["ls", "reports/", "--json"]).await.json().len(), 1);
    let shown = console.run(&["show", "reports/a", "--json"]).await.json();
    assert_eq!(shown[0]["queue"][0]["owner"], "bob");
    console.run(&["show", "unknown"]).await.says(1, "has no record");
    lease.release().await.unwrap();
    shared.release().await.unwrap();
    ended(waiting).await.printed();
}

pub(crate) async fn a_raise_and_a_purge_change_the_record() {
    let console = Console::new().await;
    let lease = console.seal.acquire("k").await.unwrap();
    let next = FencingToken::new(lease.token().get() + (1 << 20)).unwrap();
    lease.release().await.unwrap();
    let raised = console.run(&["raise", "k", "--to", &next.to_string(), "--json"]).await.json();
    assert_eq!(raised[0]["version"], next.get());
    let short = console.seal.acquire("k").ttl(std::time::Duration::from_millis(50)).without_refresh().await.unwrap();
    assert!(short.token() > next);
    short.orphan();
    console.has("k", 0, 0).await;
    let purged = console.run(&["purge"]).await.printed();
    assert!(purged.starts_with("deleted the lease on \"k\" of test"), "{purged}");
    assert_eq!(console.run(&["purge"]).await.printed(), "Nothing to delete.\n");
}

pub(crate) async fn a_watch_reports_what_it_may_miss_and_each_event() {
    for arguments in [&["watch", "k", "--json"][..], &["watch", "--json"]] {
        let console = Console::new().await;
        let first = console.seal.acquire("k").await.unwrap();
        let mut watching = console.spawn(arguments);
        let mut events = BufReader::new(watching.stdout.take().unwrap()).lines();
        let mut next = async || {
            let line = tokio::time::timeout(secs(60), events.next_line()).await.expect("it comes").unwrap().unwrap();
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            (event["event"].as_str().unwrap().to_owned(), event["token"].as_u64().unwrap())
        };
        assert_eq!(next().await, ("holds".into(), first.token().get()));
        let token = first.token();
        first.release().await.unwrap();
        assert_eq!(next().await, ("released".into(), token.get()));
        let second = console.seal.acquire("k").await.unwrap();
        assert_eq!(next().await, ("granted".into(), second.token().get()));
        console.seal.revoke("k").by("olga").reason("stuck").await.unwrap();
        assert_eq!(next().await, ("revoked".into(), second.token().get()));
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(watching.id().unwrap().try_into().unwrap()),
            nix::sys::signal::Signal::SIGTERM,
        )
        .unwrap();
        let ended = ended(watching).await;
        assert_eq!(ended.code, Some(0));
        assert!(ended.stderr.contains("granted and ends between two polls has no events"), "{}", ended.stderr);
    }
}
