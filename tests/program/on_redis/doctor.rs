//! `doctor`, also with `--deep`.

use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::{Redis, eventually, secs};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;

use crate::{Console, Ended, PASSWORD, run, send};

/// The settings with which no write is lost.
const DURABLE: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

pub(crate) async fn doctor(uri: &str, arguments: &[&str]) -> Ended {
    run(uri, &[&["doctor", "--json"], arguments].concat()).await
}

pub(crate) async fn a_server_with_all_settings_passes_each_check() {
    let server = Redis::start_with(&DURABLE).await;
    let checked = doctor(&server.url(), &[]).await;
    assert_eq!(checked.code, 0, "{}", checked.stdout);
    let checks = "reachable, role, cluster, version, eviction, append-only file, flushes, replicas, user, may hold, \
                  may wait, may look, clock, round trip, commit, records";
    assert_eq!(checked.checks("pass").join(", "), checks, "{}", checked.stdout);
    checked.check("reachable", "pass", &server.address());
    let words = run(&server.url(), &["doctor"]).await.printed();
    let passed = words.lines().filter(|line| line.starts_with("pass  "));
    assert_eq!(passed.count(), checks.split(", ").count(), "{words}");
}

pub(crate) async fn replicas_are_counted_and_the_page_has_a_row_for_each_check() {
    let server = Redis::start_with(&DURABLE).await;
    let _replica = Redis::start_replica(&server).await;
    let is_online = async || doctor(&server.url(), &[]).await.found("replicas").starts_with("1 replica is");
    eventually(secs(30), "the replica is online", is_online).await;

    let checked = doctor(&server.url(), &["--redis-replicas", "1"]).await;
    assert_eq!((checked.code, checked.checks("warn")), (0, vec!["replicas".to_owned()]), "{}", checked.stdout);
    checked.check("replicas", "warn", "set min-replicas-to-write to 1");
    checked.check("commit", "pass", "a write that a replica acknowledges");
    checked.check("may replicate", "pass", "");
    let rows =
        include_str!("../../../docs/doctor.md").lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let documented: Vec<&str> = rows.flat_map(|checks| checks.split(", ")).collect();
    for check in ["pass", "warn", "skip"].iter().flat_map(|verdict| checked.checks(verdict)) {
        assert!(documented.contains(&check.as_str()), "the page has no row of {check}");
    }

    let () = send(&server, "CONFIG SET min-replicas-to-write 1").await;
    doctor(&server.url(), &[]).await.check("replicas", "pass", "");

    let checked = doctor(&server.url(), &["--redis-replicas", "2", "--timeout", "1s"]).await;
    assert_eq!((checked.code, checked.checks("fail")), (1, vec!["replicas".to_owned()]), "{}", checked.stdout);
    checked.check("replicas", "fail", "--redis-replicas is 2");

    let () = send(&server, "CONFIG SET min-replicas-to-write 2").await;
    let checked = doctor(&server.url(), &["--timeout", "1s"]).await;
    assert_eq!(checked.checks("fail"), ["replicas"], "{}", checked.stdout);
    checked.check("replicas", "fail", "so the server refuses writes");
}

/// The rules of the user in the page.
fn documented() -> &'static str {
    let rules = include_str!("../../../docs/redis.md")
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER mongoseal on >PASSWORD "));
    rules.expect("the page has the rules")
}

/// Makes a user with these rules, and returns its connection string.
async fn user(server: &Redis, rules: &str) -> String {
    let () = send(server, "ACL DELUSER mongoseal").await;
    let () = send(server, &format!("ACL SETUSER mongoseal on >{PASSWORD} {rules}")).await;
    format!("redis://mongoseal:{PASSWORD}@{}", server.address())
}

pub(crate) async fn the_documented_permissions_are_enough() {
    let server = Redis::start_with(&DURABLE).await;
    let uri = user(&server, documented()).await;
    let checked = doctor(&uri, &[]).await;
    checked.is_quiet(0);
    assert_eq!((checked.checks("fail"), checked.checks("warn")), (vec![], vec![]), "{}", checked.stdout);
    assert_eq!(checked.checks("skip"), ["flushes"], "{}", checked.stdout);
    checked.check("flushes", "skip", "grant +config|get");
    assert_eq!(checked.found("user"), "mongoseal: ");
    let uri = user(&server, &format!("{} +config|get", documented())).await;
    let checked = doctor(&uri, &[]).await;
    assert_eq!(checked.checks("skip"), Vec::<String>::new(), "{}", checked.stdout);
}

pub(crate) async fn each_missing_permission_is_named() {
    let server = Redis::start().await;
    let without = async |rule: &str, options: &[&str]| {
        let rules = documented().split_whitespace().filter(|other| *other != rule).collect::<Vec<_>>().join(" ");
        let uri = user(&server, &rules).await;
        doctor(&uri, options).await
    };
    let commands = documented().split_whitespace().filter(|rule| rule.starts_with('+'));
    for rule in commands.chain(["~mongoseal:*", "&mongoseal:*"]) {
        let checked = without(rule, &["--timeout", "2s"]).await;
        let check = match rule {
            "+publish" | "+subscribe" | "+ping" | "&mongoseal:*" => "may wait",
            "+scan" | "+mget" => "may look",
            // It is needed with `--redis-replicas` only.
            "+wait" => {
                assert_eq!(checked.checks("fail"), Vec::<String>::new(), "{}", checked.stdout);
                continue;
            }
            _ => "may hold",
        };
        assert!(!checked.checks("pass").contains(&check.to_owned()), "{rule}: {}", checked.stdout);
        let advice = format!("grant it with ACL SETUSER mongoseal {rule}");
        assert!(checked.found(check).ends_with(&advice), "{rule}: {}", checked.found(check));
        assert_eq!(checked.code, i32::from(check == "may hold"), "{rule}: {}", checked.stdout);
    }
    let checked = without("+wait", &["--redis-replicas", "1", "--timeout", "1s"]).await;
    checked.check("may replicate", "fail", "");
}

pub(crate) async fn keys_that_are_no_records_are_named() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    console.seal.acquire("ours").await.unwrap().orphan();
    let records = async || doctor(&console.uri, &["--collection", &console.prefix]).await;
    // Ours, and that of the doctor itself.
    records().await.check("records", "pass", "2 keys checked");
    let () = send(&server, &format!("SET {}:newer {{\"v\":9}}", console.prefix)).await;
    records().await.check("records", "warn", "a newer mongoseal wrote 1 of 3 keys");
    let () = send(&server, &format!("SET {}:text theirs", console.prefix)).await;
    let () = send(&server, &format!("RPUSH {}:list theirs", console.prefix)).await;
    // Another prefix is not looked at.
    let () = send(&server, &format!("SET {}x:text theirs", console.prefix)).await;
    let checked = records().await;
    checked.is_quiet(0);
    for part in ["2 of 5 keys cannot be read", "\"text\"", "\"list\""] {
        checked.check("records", "warn", part);
    }
}

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
