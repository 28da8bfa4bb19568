//! `elect`, `leader` and `verify`.

use nix::sys::signal::Signal::{SIGINT, SIGTERM};
use serde_json::json;

use crate::sandbox::{Running, Sandbox, done, ended, id, signal};

const NOBODY: &str = "-\t-\t-\t-";

/// One that follows the leaders of `scheduler`, which has none.
async fn follow(sandbox: &Sandbox) -> Running {
    let mut following = sandbox.start(&["leader", "scheduler", "--follow"]);
    assert_eq!(following.line().await, NOBODY);
    following
}

#[tokio::test]
async fn a_leader_is_seen_by_its_value_until_it_is_told_to_stop_and_the_next_follows() {
    let sandbox = Sandbox::new("elected").await;
    sandbox.done(&["leader", "scheduler"]).await.says(1, "\"scheduler\" has no leader");
    let mut seen = follow(&sandbox).await;
    let first = sandbox.mongoseal(&["elect", "scheduler", "10.0.0.7:4000", "--owner", "one"]).spawn().unwrap();
    assert!(seen.line().await.starts_with("10.0.0.7:4000\tone\t"));
    let script = r#"echo "leads with $MONGOSEAL_TOKEN"; exit 5"#;
    let second =
        sandbox.mongoseal(&["elect", "scheduler", "b", "--owner", "two", "--", "sh", "-c", script]).spawn().unwrap();
    sandbox.queued_on("scheduler", 1).await;
    let told = &sandbox.done(&["leader", "scheduler", "--json"]).await.json()[0];
    assert_eq!((told["value"].as_str(), told["owner"].as_str()), (Some("10.0.0.7:4000"), Some("one")));
    assert!(told["token"].as_u64() > Some(0) && told["free_in_ms"].as_u64() > Some(0), "{told}");

    signal(id(&first), SIGTERM);
    ended(first).await.says(0, "leading \"scheduler\" with token ");
    assert!(seen.line().await.starts_with("b\ttwo\t"));
    let second = ended(second).await;
    second.is_quiet(5);
    assert!(second.stdout.starts_with("leads with "), "{}", second.stdout);
    assert_eq!(seen.line().await, NOBODY);
}

#[tokio::test]
async fn one_that_follows_leaders_ends_with_status_0_on_a_signal_and_when_nobody_reads_any_more() {
    let sandbox = Sandbox::new("unread").await;
    for sent in [SIGINT, SIGTERM] {
        let following = follow(&sandbox).await;
        following.signal(sent);
        following.end().await.is_quiet(0);
    }
    let following = follow(&sandbox).await;
    drop(following.lines);
    ended(following.child).await.is_quiet(0);
}

#[tokio::test]
async fn a_key_that_is_shared_has_no_leader_and_the_program_says_why() {
    let sandbox = Sandbox::new("shared_leader").await;
    let one = sandbox.seal.acquire("gpu").shared_up_to(2).await.unwrap();
    let two = sandbox.seal.acquire("gpu").shared_up_to(2).await.unwrap();
    let said = sandbox.done(&["leader", "gpu"]).await;
    said.says(1, "\"gpu\" has no leader, because leases share it (2 now): use another key for the election");
    let said = sandbox.done(&["leader", "gpu", "--json"]).await;
    said.is_quiet(1);
    assert!(said.stdout.contains("\"owner\":null"), "{}", said.stdout);
    drop((one, two));
}

#[tokio::test]
async fn what_a_leader_wrote_forges_no_column_and_acts_on_no_terminal() {
    let sandbox = Sandbox::new("forged").await;
    let value = "10.0.0.7\tadmin\u{1b}[2J\u{202e}";
    let leader = sandbox.seal.campaign("scheduler").value(value).await.unwrap();
    let printed = sandbox.done(&["leader", "scheduler"]).await.printed();
    let columns: Vec<_> = printed.split('\t').collect();
    assert_eq!(columns[..2], ["10.0.0.7\\tadmin\\u{1b}[2J\\u{202e}", sandbox.seal.owner().as_str()], "{printed}");
    let said = sandbox.done(&["leader", "scheduler", "--json"]).await;
    assert!(said.stdout.is_ascii() && said.json()[0]["value"] == value, "{}", said.stdout);
    leader.resign().await.unwrap();
}

#[tokio::test]
async fn only_the_newest_token_is_verified() {
    let sandbox = Sandbox::new("verified").await;
    let verify = async |token: u64| sandbox.done(&["verify", "k", &token.to_string()]).await;
    verify(1).await.says(1, "\"k\" has no record");
    let older = sandbox.seal.acquire("k").await.unwrap();
    let token = older.token().get();
    older.release().await.unwrap();
    verify(token).await.is_quiet(0);
    let of_environment = async |key: &str, token: &str| {
        let mut command = sandbox.mongoseal(&["verify"]);
        command.env("MONGOSEAL_KEY", key).env("MONGOSEAL_TOKEN", token);
        done(command).await
    };
    of_environment("k", &token.to_string()).await.is_quiet(0);
    of_environment("never", "7").await.says(1, "\"never\" has no record");
    assert_eq!(of_environment("k", "").await.code, 125, "an empty variable is unset");
    let newer = sandbox.seal.acquire("k").await.unwrap();
    verify(token).await.says(1, "is not the newest: \"k\" has version");
    let newest = newer.token().get();
    verify(newest + 1).await.says(1, "was not issued for \"k\"");
    for (token, code) in [(newest, 0), (token, 1)] {
        let said = sandbox.done(&["verify", "k", &token.to_string(), "--json"]).await;
        let expected = json!({ "key": "k", "token": token, "version": newest, "newest": code == 0 });
        assert_eq!((said.code, said.json()), (code, vec![expected]));
    }
}
