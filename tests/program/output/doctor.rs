//! `doctor`.

use mongodb::bson::doc;
use mongoseal_test_support::{ReplicaSet, Standalone, Way};
use serde_json::Value;

use crate::{Console, Ended, done, ended::PASSWORD, mongoseal};

async fn doctor(uri: &str, arguments: &[&str]) -> Ended {
    let mut program = mongoseal(&["doctor"]);
    program.args(arguments).env("MONGODB_URI", uri).env("MONGOSEAL_DB", "app");
    done(program).await
}

/// That those who need MongoDB say what is wrong in a sentence, with this status and these words in it.
async fn each_command_says_one_sentence(uri: &str, status: i32, words: &str) {
    // Of a server that answers, the machine may be busy.
    let timeout = if status == 123 { "2s" } else { "30s" };
    let asked = [
        vec!["ls"],
        vec!["show", "k"],
        vec!["watch", "k"],
        vec!["revoke", "k", "--reason", "r", "--yes"],
        vec!["fences", "orders"],
        vec!["raise", "k", "--to", "7"],
        vec!["purge"],
    ]
    .map(async |arguments| {
        let mut program = mongoseal(&arguments);
        program.args(["--timeout", timeout, "--db", "app"]).env("MONGODB_URI", uri);
        let said = done(program).await;
        assert_eq!((said.status(), said.stdout.as_str()), (status, ""), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.messages().len() == 1, "{arguments:?}: {}", said.stderr);
        assert!(!said.stderr.contains("labels"), "{arguments:?}: {}", said.stderr);
    });
    futures_util::future::join_all(asked).await;
}

/// Which verdict a check came to, and what was said.
fn verdict(said: &Ended, check: &str) -> (String, String) {
    let lines = said.json();
    let line = lines.iter().find(|line| line["check"] == check);
    let line = line.unwrap_or_else(|| panic!("no check {check} in {}", said.stdout));
    let words = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    (words("verdict"), format!("{}: {}", words("found"), words("advice")))
}

fn checks(said: &Ended, verdict: &str) -> Vec<Value> {
    said.json().into_iter().filter(|line| line["verdict"] == verdict).map(|mut line| line["check"].take()).collect()
}

#[tokio::test]
async fn a_wrong_set_name_is_corrected() {
    let set = ReplicaSet::start(1).await;
    let name = set.uri().split_once("replicaSet=").unwrap().1.split('&').next().unwrap().to_owned();
    let uri = set.uri().replace(&format!("replicaSet={name}"), "replicaSet=another");
    let said = doctor(&uri, &["--json"]).await;
    assert_eq!(said.status(), 1, "{}", said.stdout);
    let (verdict, sentence) = verdict(&said, "reachable");
    assert_eq!(verdict, "fail");
    assert!(sentence.contains(&format!("called {name}: write replicaSet={name}")), "{sentence}");
}

#[tokio::test]
async fn all_is_well_on_a_replica_set() {
    let console = Console::new("doctor").await;
    let said = console.run(&["doctor", "--json"]).await;
    said.is_quiet(0);
    let passed = checks(&said, "pass");
    for check in [
        "reachable",
        "replica set",
        "journal",
        "index",
        "user",
        "clocks",
        "round trip",
        "commit",
        "change stream",
        "records",
    ] {
        assert!(passed.contains(&check.into()), "{check}: {}", said.stdout);
    }
    // The server of the tests may be one whose support has ended.
    let version = verdict(&said, "version");
    assert!(version.0 == "pass" || (version.0 == "warn" && version.1.contains("support")), "{version:?}");
    let others = said.json().len() - 1;
    assert_eq!(passed.len(), others + usize::from(version.0 == "pass"), "{}", said.stdout);
    let words = console.run(&["doctor"]).await;
    let is_well = |line: &str| line.starts_with("pass  ") || line.starts_with(&format!("{}  version", version.0));
    assert!(words.stdout.lines().all(is_well) && words.stdout.lines().count() == others + 1, "{}", words.stdout);
}

#[tokio::test]
async fn an_index_with_another_retention_fails_with_what_to_do() {
    let console = Console::new("doctor_index").await;
    console.seal("other").prepare().await.unwrap();
    let said = console.run(&["doctor", "--json", "--retention", "60s"]).await;
    assert_eq!(said.status(), 1);
    let (verdict, words) = verdict(&said, "index");
    assert!(
        verdict == "fail" && words.contains("for 1 d, but --retention is 1 m") && words.contains("--retention 1d here"),
        "{words}"
    );
    assert_eq!(checks(&said, "fail").len(), 1, "{}", said.stdout);

    console.db.records().drop_indexes().await.unwrap();
    let plain =
        doc! { "createIndexes": "mongoseal", "indexes": [{ "key": { "expires_at": 1 }, "name": "expires_at_1" }] };
    console.db.database.run_command(plain).await.unwrap();
    let said = console.run(&["doctor", "--json"]).await;
    let (verdict, words) = self::verdict(&said, "index");
    assert!(said.status() == 1 && verdict == "fail" && words.contains("no expireAfterSeconds"), "{words}");
}

#[tokio::test]
#[ignore = "night: three servers with clocks of their own"]
async fn a_member_whose_clock_is_ahead_by_more_than_the_grace_fails_with_what_to_do() {
    let set = ReplicaSet::builder().members(3).own_clocks().start().await;
    let ahead = (set.primary().await + 1) % 3;
    set.set_clock(ahead, "+3");
    // The member notices within a second.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let (said, words) = loop {
        let said = doctor(&set.uri(), &["--json"]).await;
        let (verdict, words) = verdict(&said, "clocks");
        if verdict == "fail" {
            break (said, words);
        }
        assert!(std::time::Instant::now() < until, "{words}");
    };
    assert_eq!((said.status(), checks(&said, "fail").len()), (1, 1), "{}", said.stdout);
    assert!(words.contains("the grace is 500 ms") && words.contains("run NTP on each member"), "{words}");
    assert!(words.contains(&format!("{} is ahead", set.hosts()[ahead])), "{words}");

    let said = doctor(&set.uri(), &["--json", "--grace", "30s"]).await;
    assert_eq!((said.status(), verdict(&said, "clocks").0.as_str()), (0, "pass"), "{}", said.stdout);
}

#[tokio::test]
async fn documents_of_somebody_else_are_named() {
    let console = Console::new("doctor_foreign").await;
    let lease = console.seal("alice").acquire("ours").await.unwrap();
    for id in ["theirs", "two\u{1b}[2J"] {
        console.db.records().insert_one(doc! { "_id": id, "some": "thing" }).await.unwrap();
    }
    console.db.records().insert_one(doc! { "_id": 7 }).await.unwrap();
    let said = console.run(&["doctor", "--json"]).await;
    let (verdict, words) = verdict(&said, "records");
    assert_eq!((said.status(), verdict.as_str()), (0, "warn"));
    // Ours, and the doctor's own.
    assert!(words.starts_with("3 of 5 documents cannot be read") && words.contains("theirs"), "{words}");
    let words = console.run(&["doctor"]).await;
    assert!(!words.stdout.contains('\u{1b}') && words.stdout.contains("warn  records"), "{}", words.stdout);
    lease.release().await.unwrap();
}

/// Copies of the record of a key that nobody holds.
async fn idle_records(console: &Console, count: usize) {
    console.seal("alice").acquire("idle").await.unwrap().release().await.unwrap();
    let records = console.db.records();
    let idle = records.find_one(doc! { "_id": "idle" }).await.unwrap().expect("the key has a record");
    let copies: Vec<_> = (1..count)
        .map(|number| {
            let mut copy = idle.clone();
            copy.insert("_id", format!("idle/{number}"));
            copy
        })
        .collect();
    records.insert_many(copies).await.unwrap();
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn ten_thousand_records_are_checked_within_two_seconds() {
    let console = Console::new("doctor_many").await;
    idle_records(&console, 10_000).await;
    // The last in the order of ids.
    console.db.records().insert_one(doc! { "_id": "z/theirs", "some": "thing" }).await.unwrap();
    let began = std::time::Instant::now();
    let said = console.run(&["doctor", "--json"]).await;
    let elapsed = began.elapsed();
    println!("doctor checked 10,000 records in {elapsed:?}");
    let (_, words) = verdict(&said, "records");
    assert!(words.starts_with("1 of 10002 documents cannot be read") && words.contains("z/theirs"), "{words}");
    // Measured in about a second; the bound is for a busy machine.
    assert!(elapsed < std::time::Duration::from_secs(6), "{elapsed:?}");
}

#[tokio::test]
async fn records_of_a_newer_build_are_named_and_the_advice_is_to_upgrade() {
    let console = Console::new("doctor_newer").await;
    console.seal("alice").acquire("newer").await.unwrap().orphan();
    console.db.records().update_one(doc! { "_id": "newer" }, doc! { "$set": { "v": 2 } }).await.unwrap();
    let said = console.run(&["doctor", "--json"]).await;
    let (verdict, words) = verdict(&said, "records");
    assert_eq!((said.status(), verdict.as_str()), (0, "warn"));
    assert!(words.starts_with("a newer mongoseal wrote 1 of 2 documents") && words.contains("newer"), "{words}");
    assert!(said.stdout.contains("upgrade this mongoseal"), "{}", said.stdout);
    let said = console.run(&["show", "newer"]).await;
    assert!(said.status() == 125 && said.stderr.contains("upgrade mongoseal"), "{}", said.stderr);
}

#[tokio::test]
async fn a_standalone_server_fails_with_what_to_do() {
    let server = Standalone::start().await;
    let said = doctor(&server.uri(), &["--json"]).await;
    assert_eq!(said.status(), 1, "{}", said.stderr);
    let (verdict, words) = verdict(&said, "replica set");
    assert!(verdict == "fail" && words.contains("standalone") && words.contains("rs.initiate()"), "{words}");
    assert_eq!(self::verdict(&said, "reachable").0, "pass");
    each_command_says_one_sentence(&server.uri(), 125, "rs.initiate()").await;
    let words = doctor(&server.uri(), &[]).await;
    assert!(words.status() == 1 && words.stdout.contains("fail  replica set"), "{}", words.stdout);
}

#[tokio::test]
async fn a_user_learns_what_is_not_granted_and_a_wrong_password_fails() {
    let set = ReplicaSet::builder().auth().start().await;
    let on = |actions: &[&str]| {
        vec![doc! { "resource": { "db": "app", "collection": "mongoseal" }, "actions": actions.to_vec() }]
    };
    set.add_user("most", PASSWORD, "app", on(&["find", "insert", "update", "changeStream"])).await;
    set.add_user("reader", PASSWORD, "app", on(&["find"])).await;
    set.add_user("nobody", PASSWORD, "app", vec![]).await;

    let root = doctor(&set.uri(), &["--json"]).await;
    let others: Vec<Value> =
        root.json().into_iter().filter(|line| line["verdict"] != "pass" && line["check"] != "version").collect();
    assert_eq!((root.status(), others), (0, vec![]), "{}", root.stdout);

    // The role that the documents give to most programs.
    let most = doctor(&set.uri_as("most", PASSWORD, "app"), &["--json"]).await;
    assert_eq!((most.status(), checks(&most, "fail")), (0, vec![]), "{}", most.stdout);
    for (check, expected) in [
        ("user", "pass"),
        ("may hold", "pass"),
        ("may wait", "pass"),
        ("may index", "warn"),
        ("journal", "warn"),
        ("index", "warn"),
        ("commit", "pass"),
        ("change stream", "pass"),
        ("records", "pass"),
    ] {
        assert_eq!(verdict(&most, check).0, expected, "{check}: {}", most.stdout);
    }
    assert!(verdict(&most, "may index").1.contains("grant createIndex on app.mongoseal"), "{}", most.stdout);

    let reader = doctor(&set.uri_as("reader", PASSWORD, "app"), &["--json"]).await;
    assert_eq!(reader.status(), 1);
    for (check, expected) in
        [("may look", "pass"), ("may hold", "fail"), ("may wait", "warn"), ("change stream", "warn")]
    {
        assert_eq!(verdict(&reader, check).0, expected, "{check}: {}", reader.stdout);
    }
    let nobody = doctor(&set.uri_as("nobody", PASSWORD, "app"), &["--json"]).await;
    assert_eq!((nobody.status(), verdict(&nobody, "may look").0.as_str()), (1, "fail"), "{}", nobody.stdout);

    let uri = set.uri_as("most", &format!("{PASSWORD}!"), "app");
    each_command_says_one_sentence(&uri, 125, "password").await;
    let wrong = doctor(&set.uri_as("most", &format!("{PASSWORD}!"), "app"), &["--json"]).await;
    let (verdict, words) = verdict(&wrong, "reachable");
    assert!(wrong.status() == 1 && verdict == "fail" && words.contains("password"), "{}", wrong.stdout);
    // Without a login.
    let anonymous =
        doctor(&set.uri_as("most", PASSWORD, "app").replace(&format!("most:{PASSWORD}@"), ""), &["--json"]).await;
    assert_eq!(anonymous.status(), 1, "{}", anonymous.stdout);
    assert_eq!(self::verdict(&anonymous, "user").0, "fail", "{}", anonymous.stdout);
}

#[tokio::test]
async fn a_host_where_nobody_listens_is_one_failed_check() {
    let uri = format!("mongodb://user:{PASSWORD}@127.0.0.1:9/?replicaSet=rs0");
    let said = doctor(&uri, &["--json", "--timeout", "3s"]).await;
    assert_eq!((said.status(), checks(&said, "fail")), (1, vec!["reachable".into()]), "{}", said.stdout);
    each_command_says_one_sentence(&uri, 123, "Connection refused").await;
    let nonsense = doctor(&format!("mongodbb://user:{PASSWORD}@h"), &["--json"]).await;
    assert_eq!((nonsense.status(), checks(&nonsense, "fail")), (1, vec!["reachable".into()]), "{}", nonsense.stdout);
}

#[tokio::test]
async fn a_sharded_cluster_fails_and_only_warns_if_it_is_allowed() {
    let set = ReplicaSet::builder().proxied().start().await;
    // The answers of a member with the mark of a router: there is no router here.
    set.proxy().tamper_with(|_client, way, reply| {
        let is_hello = way == Way::Reply && reply.contains_key("maxWireVersion");
        if is_hello {
            reply.remove("setName");
            reply.insert("msg", "isdbgrid");
        }
        is_hello
    });
    let uri = format!("mongodb://{}/?directConnection=true&appName=look", set.hosts()[0]);
    let refused = doctor(&uri, &["--json"]).await;
    let (verdict, words) = verdict(&refused, "replica set");
    assert!(refused.status() == 1 && verdict == "fail" && words.contains("--allow-sharded"), "{words}");
    each_command_says_one_sentence(&uri, 125, "--allow-sharded").await;
    let allowed = doctor(&uri, &["--json", "--allow-sharded"]).await;
    assert_eq!(self::verdict(&allowed, "replica set").0, "warn", "{}", allowed.stdout);
    assert_eq!(self::verdict(&allowed, "commit").0, "pass", "{}", allowed.stdout);
}
