//! `doctor --deep`.

use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::{Redis, eventually, secs};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;

use crate::{
    Console,
    doctor::{documented, user},
    send,
};

const DEEP: [&str; 3] = ["doctor", "--deep", "--json"];

impl Console {
    /// The names of the keys that have another prefix than the leases.
    async fn others(&self, server: &Redis) -> Vec<String> {
        let mut keys = send::<Vec<String>>(server, "KEYS *").await;
        keys.retain(|key| !key.starts_with(&self.prefix));
        keys
    }
}

pub(crate) async fn the_declared_requirements_hold_and_their_keys_are_deleted() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let ended = console.run(&[&DEEP[..], &["--scratch", "left"]].concat()).await;
    ended.is_quiet(0);
    let held = ended.checks("pass");
    assert!(requirements().iter().map(Requirement::name).all(|name| held.iter().any(|held| held == name)), "{held:?}");
    ended.check("scratch", "pass", "the keys left:* are deleted");
    assert_eq!(console.others(&server).await, Vec::<String>::new());
}

pub(crate) async fn a_prefix_with_keys_is_refused() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let () = send(&server, "SET used:k value").await;
    let refused = console.run(&[&DEEP[..], &["--scratch", "used"]].concat()).await;
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    refused.check("scratch", "fail", "and they are left as they are: pass another name with --scratch");
    assert_eq!(console.others(&server).await, ["used:k"]);
}

pub(crate) async fn a_user_that_may_not_use_the_scratch_keys_is_refused_before_the_first_requirement() {
    let server = Redis::start().await;
    let console = Console::on(user(&server, documented()).await).await;
    let of_leases = ["--collection", "mongoseal", "--scratch"];
    let refused = console.run(&[&DEEP[..], &of_leases, &["other"]].concat()).await;
    refused.check("scratch", "fail", "grant ~other:* and &other:*, or pass a prefix with --scratch");
    console.run(&[&DEEP[..], &of_leases, &["mongoseal:scratch"]].concat()).await.check(
        "scratch",
        "fail",
        "cannot be a collection",
    );
}

pub(crate) async fn the_keys_are_deleted_after_a_signal() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let mut running = console.start(&DEEP);
    let has_keys = async || !console.others(&server).await.is_empty();
    eventually(secs(60), "a requirement has written a key", has_keys).await;
    running.signal(SIGTERM);
    let mut last = Value::Null;
    while let Some(finding) = running.next_event().await {
        last = finding;
    }
    running.end().await.fails(143, "the remaining requirements do not run");
    assert_eq!((&last["check"], &last["verdict"]), (&"scratch".into(), &"pass".into()), "{last}");
    assert_eq!(console.others(&server).await, Vec::<String>::new());
}
