//! `doctor`.

use mongoseal_test_support::{Redis, eventually, secs};
use serde_json::Value;

use crate::{Console, PASSWORD, done, mongoseal, send};

/// The findings of `doctor --json`.
pub(crate) struct Checked {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    findings: Vec<Value>,
}

impl Checked {
    pub(crate) async fn on(uri: &str, arguments: &[&str]) -> Self {
        let mut doctor = mongoseal(&["doctor", "--json"]);
        doctor.args(arguments).env("MONGOSEAL_URI", uri);
        let ended = done(doctor).await;
        Self { code: ended.code, findings: ended.json(), stdout: ended.stdout }
    }

    /// The checks with this verdict.
    pub(crate) fn with(&self, verdict: &str) -> Vec<String> {
        let with = self.findings.iter().filter(|finding| finding["verdict"] == verdict);
        with.map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
    }

    /// What a check found, and what to do.
    pub(crate) fn text(&self, check: &str) -> String {
        let finding = self.findings.iter().find(|finding| finding["check"] == check);
        let finding = finding.unwrap_or_else(|| panic!("no check {check} in {}", self.stdout));
        let text = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("found"), text("advice"))
    }
}

pub(crate) async fn a_server_with_all_settings_passes_each_check() {
    let server = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
    let checked = Checked::on(&server.url(), &[]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    let checks = [
        "reachable",
        "role",
        "cluster",
        "version",
        "eviction",
        "append-only file",
        "flushes",
        "replicas",
        "user",
        "may hold",
        "may wait",
        "may look",
        "clock",
        "round trip",
        "commit",
        "records",
    ];
    assert_eq!(checked.with("pass"), checks, "{}", checked.stdout);
    assert!(checked.text("reachable").contains(&server.address()), "{}", checked.stdout);
    let mut words = mongoseal(&["doctor"]);
    words.env("MONGOSEAL_URI", server.url());
    let words = done(words).await.printed();
    assert_eq!(words.lines().filter(|line| line.starts_with("pass  ")).count(), checks.len(), "{words}");
}

pub(crate) async fn a_server_without_an_append_only_file_warns() {
    let checked = Checked::on(&Redis::start().await.url(), &[]).await;
    assert_eq!((checked.code, checked.with("warn")), (Some(0), vec!["append-only file".to_owned()]));
    assert!(checked.text("append-only file").contains("set appendonly to yes"), "{}", checked.stdout);
}

pub(crate) async fn a_server_without_a_flush_at_each_write_warns() {
    let server = Redis::start_with(&[("appendonly", "yes")]).await;
    let checked = Checked::on(&server.url(), &[]).await;
    assert_eq!((checked.code, checked.with("warn")), (Some(0), vec!["flushes".to_owned()]));
    assert!(checked.text("flushes").contains("appendfsync is everysec"), "{}", checked.stdout);
}

pub(crate) async fn replicas_are_counted() {
    let server = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
    let _replica = Redis::start_replica(&server).await;
    let is_online = async || Checked::on(&server.url(), &[]).await.text("replicas").starts_with("1 replica is");
    eventually(secs(30), "the replica is online", is_online).await;

    let checked = Checked::on(&server.url(), &["--redis-replicas", "1"]).await;
    assert_eq!((checked.code, checked.with("warn")), (Some(0), vec!["replicas".to_owned()]), "{}", checked.stdout);
    assert!(checked.text("replicas").contains("set min-replicas-to-write to 1"), "{}", checked.stdout);
    assert!(checked.text("commit").contains("a write that a replica acknowledges"), "{}", checked.stdout);
    assert!(checked.with("pass").contains(&"may replicate".to_owned()), "{}", checked.stdout);

    let () = send(&server, "CONFIG SET min-replicas-to-write 1").await;
    let checked = Checked::on(&server.url(), &[]).await;
    assert!(checked.with("pass").contains(&"replicas".to_owned()), "{}", checked.stdout);

    let checked = Checked::on(&server.url(), &["--redis-replicas", "2", "--timeout", "1s"]).await;
    assert_eq!((checked.code, checked.with("fail")), (Some(1), vec!["replicas".to_owned()]));
    assert!(checked.text("replicas").contains("--redis-replicas is 2"), "{}", checked.stdout);

    let () = send(&server, "CONFIG SET min-replicas-to-write 2").await;
    let checked = Checked::on(&server.url(), &["--timeout", "1s"]).await;
    assert_eq!(checked.with("fail"), ["replicas"], "{}", checked.stdout);
    assert!(checked.text("replicas").contains("so the server refuses writes"), "{}", checked.stdout);
}

/// The pages of the guide.
const PAGE: &str = include_str!("../../../docs/redis.md");
const PAGE_OF_DOCTOR: &str = include_str!("../../../docs/doctor.md");

/// A text without what differs from one run to the next: numbers, and the unit of a time ("0 s" here, "1 ms" there).
fn shape(text: &str) -> String {
    let mut shape = String::new();
    for character in text.chars() {
        if !character.is_ascii_digit() {
            shape.push(character);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape.replace("# ms", "# s")
}

pub(crate) async fn the_page_shows_what_the_program_prints() {
    let server = Redis::start().await;
    let mut doctor = mongoseal(&["doctor"]);
    doctor.env("MONGOSEAL_URI", server.url());
    let printed = done(doctor).await.printed().replace(&server.address(), "redis0:6379");
    let (_, shown) = PAGE_OF_DOCTOR.split_once("$ mongoseal --uri redis://redis0:6379 doctor\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    assert_eq!(shape(&printed), shape(shown), "{printed}");
}

/// The rules of the user in the page.
pub(crate) fn documented() -> &'static str {
    let rules = PAGE.lines().find_map(|line| line.strip_prefix("ACL SETUSER mongoseal on >PASSWORD "));
    rules.expect("the page has the rules")
}

/// Makes a user with these rules, and returns its connection string.
pub(crate) async fn user(server: &Redis, rules: &str) -> String {
    let () = send(server, "ACL DELUSER mongoseal").await;
    let rules = rules.split_whitespace().collect::<Vec<_>>().join(" ");
    let () = send(server, &format!("ACL SETUSER mongoseal on >{PASSWORD} {rules}")).await;
    format!("redis://mongoseal:{PASSWORD}@{}", server.address())
}

pub(crate) async fn the_documented_permissions_are_enough() {
    let server = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
    let uri = user(&server, documented()).await;
    let checked = Checked::on(&uri, &[]).await;
    assert_eq!(
        (checked.code, checked.with("fail"), checked.with("warn")),
        (Some(0), vec![], vec![]),
        "{}",
        checked.stdout
    );
    assert_eq!(checked.with("skip"), ["flushes"], "{}", checked.stdout);
    assert!(checked.text("flushes").contains("grant +config|get"), "{}", checked.stdout);
    assert_eq!(checked.text("user"), "mongoseal: ");
    let uri = user(&server, &format!("{} +config|get", documented())).await;
    let checked = Checked::on(&uri, &[]).await;
    assert_eq!(checked.with("skip"), Vec::<String>::new(), "{}", checked.stdout);
}

pub(crate) async fn each_missing_permission_is_named() {
    let server = Redis::start().await;
    let commands = documented().split_whitespace().filter(|rule| rule.starts_with('+'));
    let rules =
        commands.map(|rule| (rule, rule)).chain([("~mongoseal:*", "~mongoseal:*"), ("&mongoseal:*", "&mongoseal:*")]);
    for (rule, missing) in rules {
        let less: Vec<&str> = documented().split_whitespace().filter(|other| *other != rule).collect();
        let uri = user(&server, &less.join(" ")).await;
        let checked = Checked::on(&uri, &["--timeout", "2s"]).await;
        let check = match rule {
            "+publish" | "+subscribe" | "+ping" | "&mongoseal:*" => "may wait",
            "+scan" | "+mget" => "may look",
            // It is needed with `--redis-replicas` only.
            "+wait" => {
                assert_eq!(checked.with("fail"), Vec::<String>::new(), "{}", checked.stdout);
                continue;
            }
            _ => "may hold",
        };
        assert!(!checked.with("pass").contains(&check.to_owned()), "{rule}: {}", checked.stdout);
        let advice = format!("grant it with ACL SETUSER mongoseal {missing}");
        assert!(checked.text(check).ends_with(&advice), "{rule}: {}", checked.text(check));
        assert_eq!(checked.code, Some(i32::from(check == "may hold")), "{rule}: {}", checked.stdout);
    }
    let less: Vec<&str> = documented().split_whitespace().filter(|rule| *rule != "+wait").collect();
    let uri = user(&server, &less.join(" ")).await;
    let checked = Checked::on(&uri, &["--redis-replicas", "1", "--timeout", "1s"]).await;
    assert!(checked.with("fail").contains(&"may replicate".to_owned()), "{}", checked.stdout);
}

pub(crate) async fn a_server_that_is_not_there_and_a_wrong_password_are_one_failed_check() {
    let server = Redis::start_with(&[("requirepass", "right")]).await;
    let wrong = format!("redis://:{PASSWORD}@{}", server.address());
    let bare = server.url();
    let nowhere = format!("redis://:{PASSWORD}@127.0.0.1:9");
    let unreadable = format!("redis://:{PASSWORD}@host:port");
    for (uri, part) in [
        (wrong.as_str(), "credentials"),
        (&bare, "requires a login"),
        (&nowhere, "no Redis server listens"),
        (&unreadable, "cannot be used"),
    ] {
        let checked = Checked::on(uri, &["--timeout", "2s"]).await;
        assert_eq!((checked.code, checked.with("fail")), (Some(1), vec!["reachable".to_owned()]), "{}", checked.stdout);
        assert!(checked.findings.len() == 1 && checked.text("reachable").contains(part), "{}", checked.stdout);
    }
}

pub(crate) async fn keys_that_are_no_records_are_named() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    console.seal.acquire("ours").await.unwrap().orphan();
    let records = async || Checked::on(&console.uri, &["--collection", &console.prefix]).await;
    // Ours, and that of the doctor itself.
    assert!(records().await.text("records").starts_with("2 keys checked"));
    let () = send(&server, &format!("SET {}:newer {{\"v\":9}}", console.prefix)).await;
    let checked = records().await;
    assert!(checked.text("records").starts_with("a newer mongoseal wrote 1 of 3 keys"), "{}", checked.stdout);
    let () = send(&server, &format!("SET {}:text theirs", console.prefix)).await;
    let () = send(&server, &format!("RPUSH {}:list theirs", console.prefix)).await;
    // Another prefix is not looked at.
    let () = send(&server, &format!("SET {}x:text theirs", console.prefix)).await;
    let checked = records().await;
    assert_eq!((checked.code, checked.with("warn").last().map(String::as_str)), (Some(0), Some("records")));
    let text = checked.text("records");
    assert!(
        text.starts_with("2 of 5 keys cannot be read") && text.contains("\"text\"") && text.contains("\"list\""),
        "{text}"
    );
}
