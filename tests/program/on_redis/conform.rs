//! `conform`.

use mongoseal_test_support::{Redis, eventually, secs};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;

use crate::{
    Console,
    doctor::{documented, user},
    send,
};

pub(crate) async fn the_declared_requirements_hold_and_their_keys_are_deleted() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let ended = console.run(&["conform", "--json"]).await;
    ended.is_quiet(0);
    let findings = ended.json();
    let count = |verdict: &str| {
        findings.iter().filter(|finding| finding["kind"] == "requirement" && finding["verdict"] == verdict).count()
    };
    let all = mongoseal_conformance::requirements().len();
    assert_eq!((count("pass"), count("skip"), count("fail")), (all, 0, 0), "{}", ended.stdout);
    assert_eq!(findings.last().unwrap()["kind"], "scratch");
    let words = console.run(&["conform", "--scratch", "left"]).await.printed();
    let count = format!("pass  requirements         {all} of {all} requirements of the conformance suite hold");
    assert!(words.contains(&count) && words.contains("the keys left:* are deleted"), "{words}");
    assert_eq!(send::<Vec<String>>(&server, "KEYS *").await, Vec::<String>::new());
}

pub(crate) async fn a_prefix_with_keys_is_refused() {
    let console = Console::new().await;
    console.seal.acquire("k").await.unwrap().orphan();
    let refused = console.run(&["conform", "--scratch", &console.prefix]).await;
    refused.says(125, "and they are left as they are: pass another name with --scratch");
    console.has("k", 1, 0).await;
}

pub(crate) async fn a_user_that_may_not_use_the_scratch_keys_is_refused_before_the_first_requirement() {
    let server = Redis::start().await;
    let console = Console::on(user(&server, documented()).await).await;
    let refused = console.run(&["conform", "--scratch", "other"]).await;
    refused.says(125, "grant ~other:* and &other:*, or pass a prefix with --scratch");
    console.run(&["conform", "--scratch", "mongoseal:scratch"]).await.says(125, "cannot be a collection");
}

pub(crate) async fn the_keys_are_deleted_after_a_signal() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let mut running = console.start(&["conform", "--json"]);
    let has_keys = async || !send::<Vec<String>>(&server, "KEYS *").await.is_empty();
    eventually(secs(60), "a requirement has written a key", has_keys).await;
    running.signal(SIGTERM);
    let mut last = Value::Null;
    while let Some(finding) = running.next_event().await {
        last = finding;
    }
    running.end().await.fails(143, "the remaining checks do not run");
    assert_eq!(last["verdict"], "pass", "{last}");
    assert_eq!(send::<Vec<String>>(&server, "KEYS *").await, Vec::<String>::new());
}
