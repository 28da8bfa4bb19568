//! `elect`, `leader` and `verify`.

use nix::sys::signal::Signal::SIGTERM;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::sandbox::{Sandbox, done, ended, id, signal};

#[tokio::test]
async fn a_leader_is_seen_by_its_value_until_it_is_told_to_stop_and_the_next_follows() {
    let sandbox = Sandbox::new("elected").await;
    done(sandbox.mongoseal(&["leader", "scheduler"])).await.says(1, "\"scheduler\" has no leader");
    let mut follow = sandbox.mongoseal(&["leader", "scheduler", "--follow"]).spawn().unwrap();
    let mut seen = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert!(seen.next_line().await.unwrap().unwrap().eq("-\t-\t-\t-"));
    let first = sandbox.mongoseal(&["elect", "scheduler", "10.0.0.7:4000", "--owner", "one"]).spawn().unwrap();
    let line = seen.next_line().await.unwrap().unwrap();
    let fields: Vec<_> = line.split('\t').collect();
    assert_eq!(fields[..2], ["10.0.0.7:4000", "one"]);
    assert!(fields.len() == 4 && fields[2].parse::<u64>().is_ok(), "{line}");
    assert!(fields[3].ends_with('s') && !fields[3].contains("for"), "{line}");
    let script = r#"echo "leads with $MONGOSEAL_TOKEN"; exit 5"#;
    let second =
        sandbox.mongoseal(&["elect", "scheduler", "b", "--owner", "two", "--", "sh", "-c", script]).spawn().unwrap();
    while sandbox.seal.inspect("scheduler").await.unwrap().unwrap().queue.is_empty() {
        tokio::time::sleep(crate::millis(20)).await;
    }
    let told = done(sandbox.mongoseal(&["leader", "scheduler", "--json"])).await;
    told.is_quiet(0);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((told["value"].as_str(), told["owner"].as_str()), (Some("10.0.0.7:4000"), Some("one")));
    assert!(told["token"].as_u64() > Some(0) && told["remaining_ms"].as_u64() > Some(0), "{told}");

    signal(id(&first), SIGTERM);
    ended(first).await.says(0, "leading \"scheduler\" with token ");
    assert!(seen.next_line().await.unwrap().unwrap().starts_with("b\ttwo\t"));
    let second = ended(second).await;
    second.is_quiet(5);
    assert!(second.stdout.starts_with("leads with "), "{}", second.stdout);
    assert!(seen.next_line().await.unwrap().unwrap().eq("-\t-\t-\t-"));
}

#[tokio::test]
async fn one_that_follows_leaders_ends_when_nobody_reads_any_more() {
    let sandbox = Sandbox::new("unread").await;
    let mut follow = sandbox.mongoseal(&["leader", "scheduler", "--follow"]).spawn().unwrap();
    let mut seen = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert!(seen.next_line().await.unwrap().unwrap().eq("-\t-\t-\t-"));
    drop(seen);
    ended(follow).await.is_quiet(0);
}

#[tokio::test]
async fn a_key_that_is_shared_has_no_leader_and_the_program_says_why() {
    let sandbox = Sandbox::new("shared_leader").await;
    let one = sandbox.seal.acquire("gpu").shared_up_to(2).await.unwrap();
    let two = sandbox.seal.acquire("gpu").shared_up_to(2).await.unwrap();
    let said = done(sandbox.mongoseal(&["leader", "gpu"])).await;
    said.says(1, "\"gpu\" has no leader, because leases share it (2 now): use another key for the election");
    assert_eq!(said.stdout, "");
    let said = done(sandbox.mongoseal(&["leader", "gpu", "--json"])).await;
    said.is_quiet(1);
    assert!(said.stdout.contains("\"owner\":null"), "{}", said.stdout);
    two.release().await.unwrap();
    done(sandbox.mongoseal(&["leader", "gpu"])).await.says(1, "because leases share it (1 now)");
    let only = one.upgrade().await.unwrap();
    let said = done(sandbox.mongoseal(&["leader", "gpu"])).await;
    said.is_quiet(0);
    assert!(said.stdout.contains(&format!("\t{}\t", only.token())), "{}", said.stdout);
    only.release().await.unwrap();
}

#[tokio::test]
async fn what_a_leader_wrote_forges_no_column_and_acts_on_no_terminal() {
    let sandbox = Sandbox::new("forged").await;
    let value = "10.0.0.7\tadmin\u{1b}[2J\u{202e}";
    let leader = sandbox.seal.campaign("scheduler").value(value).await.unwrap();
    let said = done(sandbox.mongoseal(&["leader", "scheduler"])).await;
    said.is_quiet(0);
    let columns: Vec<_> = said.stdout.split('\t').collect();
    assert_eq!(columns[..2], ["10.0.0.7\\tadmin\\u{1b}[2J\\u{202e}", sandbox.seal.owner().as_str()], "{}", said.stdout);
    let said = done(sandbox.mongoseal(&["leader", "scheduler", "--json"])).await;
    said.is_quiet(0);
    assert!(said.stdout.is_ascii(), "{}", said.stdout);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said.stdout).unwrap()["value"], value);
    leader.resign().await.unwrap();
}

#[tokio::test]
async fn only_the_newest_token_is_verified() {
    let sandbox = Sandbox::new("verified").await;
    let verify = async |token: String| done(sandbox.mongoseal(&["verify", "k", &token])).await;
    verify("1".into()).await.says(1, "\"k\" has no record");
    let older = sandbox.seal.acquire("k").await.unwrap();
    let token = older.token().to_string();
    verify(token.clone()).await.is_quiet(0);
    older.release().await.unwrap();
    verify(token.clone()).await.is_quiet(0);
    let of_environment = async |key: &str, token: &str| {
        let mut command = sandbox.mongoseal(&["verify"]);
        command.env("MONGOSEAL_KEY", key).env("MONGOSEAL_TOKEN", token);
        done(command).await
    };
    of_environment("k", &token).await.is_quiet(0);
    of_environment("never", &token).await.says(1, "\"never\" has no record");
    assert_eq!(of_environment("k", "").await.code, Some(125), "an empty variable is unset");
    let newer = sandbox.seal.acquire("k").await.unwrap();
    of_environment("k", &token).await.says(1, "is not the newest");
    verify(token).await.says(1, "is not the newest: \"k\" has version");
    verify((newer.token().get() + 1).to_string()).await.says(1, "was not issued for \"k\"");
    newer.release().await.unwrap();
}
