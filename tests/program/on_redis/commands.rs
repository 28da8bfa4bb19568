//! The commands that work on Redis as they do on MongoDB.

use std::{fs, path::Path};

use mongoseal::FencingToken;
use mongoseal_test_support::{Redis, secs};
use nix::sys::signal::Signal::SIGTERM;

use crate::{Console, done, ended, mongoseal};

pub(crate) async fn run_holds_the_key_until_its_command_or_its_lease_ends() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let script = "echo $MONGOSEAL_KEY $MONGOSEAL_TOKEN; exit 7";
    let ran = console.run(&["run", "k", "--", "sh", "-c", script]).await;
    ran.is_quiet(7);
    assert_eq!(ran.stdout, format!("k {}\n", console.seal.inspect("k").await.unwrap().unwrap().version));

    let running = async |ttl: &str| {
        let mut running = console.start(&["run", "k", "--ttl", ttl, "--", "sh", "-c", "echo began; exec sleep 100"]);
        assert_eq!(running.line().await, "began");
        running
    };
    let revoked = running("30s").await;
    console.run(&["run", "k", "--no-wait", "--", "true"]).await.says(121, "is held by");
    console.seal.revoke("k").by("olga").reason("stuck").await.unwrap();
    revoked.end().await.says(122, "it was revoked by \"olga\" (reason: \"stuck\")");

    let unrefreshed = running("6s").await;
    server.pause();
    unrefreshed.end().await.fails(122, "could not be refreshed in time, so the command was ended");
    server.resume();
}

pub(crate) async fn hold_refuses_to_verify_and_releases() {
    let console = Console::new().await;
    let mut holding = console.start(&["hold"]);
    holding.next("ready").await;
    holding.write("{\"id\":0,\"do\":\"acquire\",\"key\":\"k\"}\n").await;
    holding.next("granted").await;
    holding.write("{\"id\":1,\"do\":\"verify\",\"lease\":0}\n").await;
    let refused = holding.next("error").await;
    assert!(refused["message"].as_str().unwrap().contains("rely on the token and a fence"), "{refused}");
    holding.write("{\"id\":2,\"do\":\"release\",\"lease\":0}\n").await;
    holding.next("released").await;
    drop(holding.input.take());
    holding.end().await.is_quiet(0);
    assert!(console.seal.acquire("k").await.is_ok(), "the key is free");
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
        (&["revoke", "k", "--reason", "stuck", "--yes"], "revoked \"k\" from test"),
    ] {
        let printed = console.run(arguments).await.printed();
        assert!(printed.contains(part), "{arguments:?}: {printed}");
    }
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

/// With the options of `acquire`, `refresh` and `release` find the lease.
pub(crate) async fn a_lease_file_is_refused_with_another_product_database_or_prefix() {
    let console = Console::new().await;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-lease", console.prefix));
    let token = console.run(&["acquire", "k", "--ttl", "1m", "--lease-file", path.to_str().unwrap()]).await.printed();
    let written = fs::read_to_string(&path).unwrap();
    let content: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&content["store"], &content["database"]), (&"redis".into(), &"0".into()));
    assert_eq!(content["collection"], console.prefix.as_str());
    let with = async |uri: &str, prefix: &str, arguments: &[&str]| {
        let mut command = mongoseal(arguments);
        command.arg("--lease-file").arg(&path);
        command.env("MONGOSEAL_URI", uri).env("MONGOSEAL_COLLECTION", prefix);
        done(command).await
    };
    let other = format!("{}/1", console.uri);
    // A server of MongoDB is not needed: the file is checked first.
    for (uri, prefix, part) in [
        (other.as_str(), console.prefix.as_str(), "of the database \"0\" on Redis, and the options name the prefix"),
        (&console.uri, "other", "name the prefix \"other\""),
        ("mongodb://127.0.0.1:9/0", &console.prefix, "on MongoDB: pass the connection options of `mongoseal acquire`"),
    ] {
        for command in ["refresh", "release"] {
            with(uri, prefix, &[command]).await.says(125, part);
        }
    }
    // As `acquire` writes it on MongoDB.
    fs::write(&path, written.replace("\"redis\"", "\"mongodb\"")).unwrap();
    with(&console.uri, &console.prefix, &["release"]).await.says(125, "is in the collection");
    fs::write(&path, &written).unwrap();
    with(&console.uri, &console.prefix, &["refresh", "--ttl", "5m"]).await.printed();
    let held = console.seal.inspect("k").await.unwrap().unwrap().holders;
    assert!(held[0].free_in > secs(200), "{held:?}");
    // With the number of the database in the connection string it is found, too.
    let zero = format!("{}/0", console.uri);
    let released = with(&zero, &console.prefix, &["release"]).await.printed();
    assert_eq!(released, format!("released \"k\" with token {token}"));
    assert!(console.seal.acquire("k").await.is_ok(), "the key is free");
}
