//! The commands that work on Redis as they do on MongoDB.

use mongoseal::FencingToken;
use mongoseal_test_support::{Redis, eventually, secs};
use nix::sys::signal::Signal::SIGTERM;

use crate::{Console, ended};

pub(crate) async fn run_holds_the_key_while_its_command_runs() {
    let console = Console::new().await;
    let printed = console.run(&["run", "k", "--", "sh", "-c", "echo $MONGOSEAL_KEY $MONGOSEAL_TOKEN"]).await.printed();
    let version = console.seal.inspect("k").await.unwrap().unwrap().version;
    assert_eq!(printed, format!("k {version}\n"));
    let lease = console.seal.acquire("k").await.unwrap();
    console.run(&["run", "k", "--no-wait", "--", "true"]).await.says(121, "is held by \"test\"");
    lease.release().await.unwrap();
    console.run(&["run", "k", "--", "sh", "-c", "exit 7"]).await.is_quiet(7);
}

pub(crate) async fn a_revocation_ends_the_command() {
    let console = Console::new().await;
    let running = console.start(&["run", "k", "--", "sleep", "100"]);
    console.has("k", 1, 0).await;
    let revoked = console.run(&["revoke", "k", "--reason", "stuck", "--by", "olga", "--yes"]).await.printed();
    assert!(revoked.starts_with("revoked \"k\" from "), "{revoked}");
    running.end().await.says(122, "it was revoked by \"olga\" (reason: \"stuck\")");
    console.run(&["revoke", "k", "--reason", "stuck", "--yes"]).await.says(1, "no holder");
}

pub(crate) async fn a_server_that_goes_away_ends_the_command() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let script = "trap 'echo told >told; exit 0' TERM; while :; do sleep 0.05; done";
    let running = console.start(&["run", "k", "--ttl", "6s", "--", "sh", "-c", script]);
    console.has("k", 1, 0).await;
    server.pause();
    let has_ended = async || console.folder.join("told").exists();
    eventually(secs(60), "the command is ended", has_ended).await;
    running.end().await.fails(122, "could not be refreshed in time, so the command was ended");
    server.resume();
}

pub(crate) async fn acquire_leaves_a_lease_that_refresh_and_release_find() {
    let console = Console::new().await;
    let token = console.run(&["acquire", "k", "--ttl", "1m", "--lease-file", "lease"]).await.printed();
    console.has("k", 1, 0).await;
    console.run(&["refresh", "--lease-file", "lease", "--ttl", "5m"]).await.printed();
    let held = console.seal.inspect("k").await.unwrap().unwrap().holders;
    assert!(held[0].free_in > secs(200), "{held:?}");
    let released = console.run(&["release", "--lease-file", "lease"]).await.printed();
    assert_eq!(released, format!("released \"k\" with token {token}"));
    console.has("k", 0, 0).await;
}

pub(crate) async fn hold_prints_its_events_and_refuses_to_verify() {
    let console = Console::new().await;
    let mut holding = console.start(&["hold"]);
    holding.next("ready").await;
    holding.write("{\"id\":0,\"do\":\"acquire\",\"key\":\"k\"}\n").await;
    holding.next("granted").await;
    for (id, verb) in ["verify", "refresh", "release"].into_iter().enumerate() {
        holding.write(&format!("{{\"id\":{},\"do\":\"{verb}\",\"lease\":0}}\n", id + 1)).await;
    }
    let refused = holding.next("error").await;
    assert_eq!(refused["id"], 1);
    assert!(refused["message"].as_str().unwrap().contains("rely on the token and a fence"), "{refused}");
    assert_eq!(holding.next("refreshed").await["id"], 2);
    assert_eq!(holding.next("released").await["id"], 3);
    drop(holding.input.take());
    holding.end().await.is_quiet(0);
    console.has("k", 0, 0).await;
}

pub(crate) async fn commands_that_look_and_intervene_run_as_on_mongodb() {
    let console = Console::new().await;
    let lease = console.seal.acquire("k").await.unwrap();
    let next = FencingToken::new(lease.token().get() + (1 << 20)).unwrap().to_string();
    let elect = ["elect", "e", "10.0.0.7", "--owner", "web-1", "--", "mongoseal", "leader", "e"];
    for (arguments, part) in [
        (&elect[..], "10.0.0.7\tweb-1\t"),
        (&["ls", "--json"], &format!("\"token\":{}", lease.token())),
        (&["show", "k"], &lease.token().to_string()),
        (&["raise", "k", "--to", &next], &next),
        (&["purge"], "Nothing to delete.\n"),
    ] {
        let printed = console.run(arguments).await.printed();
        assert!(printed.contains(part), "{arguments:?}: {printed}");
    }
    console.run(&["leader", "e"]).await.says(1, "has no leader");
    console.run(&["show", "unknown"]).await.says(1, "has no record");
}

pub(crate) async fn a_watch_reports_what_it_may_miss_and_each_event() {
    for arguments in [&["watch", "k", "--json"][..], &["watch", "--json"]] {
        let console = Console::new().await;
        let first = console.seal.acquire("k").await.unwrap();
        let mut watching = console.start(arguments);
        assert_eq!(watching.next("holds").await["token"], first.token().get());
        let token = first.token();
        first.release().await.unwrap();
        assert_eq!(watching.next("released").await["token"], token.get());
        let second = console.seal.acquire("k").await.unwrap();
        assert_eq!(watching.next("granted").await["token"], second.token().get());
        console.seal.revoke("k").by("olga").reason("stuck").await.unwrap();
        assert_eq!(watching.next("revoked").await["token"], second.token().get());
        watching.signal(SIGTERM);
        ended(watching.child).await.fails(0, "granted and ends between two polls has no events");
    }
}
