//! `doctor`.

use mongodb::bson::doc;
use mongoseal_test_support::{ReplicaSet, Standalone, Way, eventually};

use crate::{Ended, Sandbox, ended::PASSWORD, run, secs};

async fn doctor(uri: &str, arguments: &[&str]) -> Ended {
    run(uri, &[&["doctor", "--json"], arguments].concat()).await
}

/// Checks that those who need MongoDB say what is wrong in a sentence, with this status and these words in it.
async fn each_command_says_one_sentence(uri: &str, status: i32, words: &str) {
    // Of a server that answers, the machine may be busy.
    let timeout = if status == 123 { "2s" } else { "30s" };
    let asked = [
        &["run", "k", "--", "true"][..],
        &["elect", "k", "v"],
        &["leader", "k"],
        &["verify", "k", "1"],
        &["ls"],
        &["show", "k"],
        &["watch", "k"],
        &["revoke", "k", "--reason", "r", "--yes"],
        &["audit"],
        &["fences", "orders"],
        &["raise", "k", "--to", "7"],
        &["purge"],
    ];
    let asked = asked.into_iter().map(async |arguments| {
        let said = run(uri, &[&["--timeout", timeout], arguments].concat()).await;
        said.says(status, words);
        assert!(
            !said.stderr.contains("labels") && !said.stderr.contains(['{', '}']),
            "it is for people: {}",
            said.stderr
        );
        assert!(said.stderr.matches("Authentication failed").count() < 2, "{}", said.stderr);
    });
    futures_util::future::join_all(asked).await;
}

#[tokio::test]
async fn all_is_well_on_a_replica_set_and_a_wrong_name_of_it_is_corrected() {
    let sandbox = Sandbox::new("doctor").await;
    let name = sandbox.uri().split_once("replicaSet=").unwrap().1.split('&').next().unwrap();
    let another = sandbox.uri().replace(&format!("replicaSet={name}"), "replicaSet=another");
    let said = doctor(&another, &[]).await;
    assert_eq!(said.code, 1);
    said.check("reachable", "fail", &format!("called {name}: write replicaSet={name}"));

    let said = sandbox.done(&["doctor", "--json"]).await;
    said.is_quiet(0);
    let checks = "reachable, replica set, journal, index, user, clocks, round trip, commit, change stream, records";
    for check in checks.split(", ") {
        said.check(check, "pass", "");
    }
    // The server of the tests may be one whose support has ended.
    let is_supported = said.checks("warn").is_empty();
    if !is_supported {
        said.check("version", "warn", "support");
    }
    let all = said.json().len();
    assert_eq!(said.checks("pass").len(), all - usize::from(!is_supported), "{}", said.stdout);
    // The table of MongoDB is the first of the page.
    let page = include_str!("../../../docs/doctor.md").split("## On Redis").next().unwrap();
    for check in said.json() {
        let check = check["check"].as_str().unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        assert!(rows.flat_map(|row| row.split(", ")).any(|name| name == check), "docs/doctor.md has no row of {check}");
    }
    let words = sandbox.done(&["doctor"]).await.stdout;
    let is_well = |line: &str| line.starts_with("pass  ") || (line.starts_with("warn  version") && !is_supported);
    assert!(words.lines().all(is_well) && words.lines().count() == all, "{words}");
}

#[tokio::test]
async fn an_index_with_another_retention_fails_with_what_to_do() {
    let sandbox = Sandbox::new("doctor_index").await;
    sandbox.seal_of("other").prepare().await.unwrap();
    let said = sandbox.done(&["doctor", "--json", "--retention", "60s"]).await;
    assert_eq!((said.code, said.checks("fail")), (1, vec!["index".to_owned()]), "{}", said.stdout);
    said.check("index", "fail", "for 1 d, but --retention is 1 m");
    said.check("index", "fail", "--retention 1d here");

    sandbox.records().drop_indexes().await.unwrap();
    let plain =
        doc! { "createIndexes": "mongoseal", "indexes": [{ "key": { "expires_at": 1 }, "name": "expires_at_1" }] };
    sandbox.database.run_command(plain).await.unwrap();
    let said = sandbox.done(&["doctor", "--json"]).await;
    assert_eq!(said.code, 1);
    said.check("index", "fail", "no expireAfterSeconds");
}

#[tokio::test]
#[ignore = "night: three servers with clocks of their own"]
async fn a_member_whose_clock_is_ahead_by_more_than_the_grace_fails_with_what_to_do() {
    let set = ReplicaSet::builder().members(3).own_clocks().start().await;
    let ahead = (set.primary().await + 1) % 3;
    set.set_clock(ahead, "+3");
    let mut said = doctor(&set.uri(), &[]).await;
    eventually(secs(30), "the member notices", async || {
        said = doctor(&set.uri(), &[]).await;
        said.checks("fail") == ["clocks"]
    })
    .await;
    assert_eq!(said.code, 1);
    let ahead = format!("{} is ahead", set.hosts()[ahead]);
    for part in ["the grace is 500 ms", "run NTP on each member", &ahead] {
        said.check("clocks", "fail", part);
    }
    let said = doctor(&set.uri(), &["--grace", "30s"]).await;
    said.check("clocks", "pass", "");
    assert_eq!(said.code, 0);
}

#[tokio::test]
async fn records_of_a_newer_build_and_documents_of_somebody_else_are_named() {
    let sandbox = Sandbox::new("doctor_foreign").await;
    sandbox.seal_of("alice").acquire("newer").await.unwrap().orphan();
    let records = sandbox.records();
    records.update_one(doc! { "_id": "newer" }, doc! { "$set": { "v": 2 } }).await.unwrap();
    let said = sandbox.done(&["doctor", "--json"]).await;
    said.is_quiet(0);
    // The other is the doctor's own.
    said.check("records", "warn", "a newer mongoseal wrote 1 of 2 documents");
    said.check("records", "warn", "upgrade this mongoseal");
    sandbox.done(&["show", "newer"]).await.fails(125, "upgrade mongoseal");

    for foreign in [doc! { "_id": "theirs" }, doc! { "_id": "two\u{1b}[2J" }, doc! { "_id": 7 }] {
        records.insert_one(foreign).await.unwrap();
    }
    let said = sandbox.done(&["doctor", "--json"]).await;
    said.is_quiet(0);
    said.check("records", "warn", "3 of 5 documents cannot be read");
    said.check("records", "warn", "theirs");
    let words = sandbox.done(&["doctor"]).await.stdout;
    assert!(!words.contains('\u{1b}') && words.contains("warn  records"), "{words}");
}

#[tokio::test]
async fn a_standalone_server_fails_with_what_to_do_and_runs_no_requirement() {
    let server = Standalone::start().await;
    let said = doctor(&server.uri(), &["--deep"]).await;
    said.is_quiet(1);
    said.check("replica set", "fail", "standalone");
    said.check("replica set", "fail", "rs.initiate()");
    said.check("reachable", "pass", "");
    said.check("requirements", "skip", "the library cannot use the deployment: make the failed check pass first");
    run(&server.uri(), &["doctor", "--deep", "-o", "prometheus"]).await.says(125, "--deep prints no gauges");
    each_command_says_one_sentence(&server.uri(), 125, "this MongoDB server is a standalone").await;
    let words = run(&server.uri(), &["doctor"]).await;
    assert!(words.code == 1 && words.stdout.contains("fail  replica set"), "{}", words.stdout);
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

    let root = doctor(&set.uri(), &[]).await;
    let mut others = root.json();
    others.retain(|line| line["verdict"] != "pass" && line["check"] != "version");
    assert_eq!((root.code, others), (0, vec![]), "{}", root.stdout);

    // The role that the documents give to most programs.
    let of_most = set.uri_as("most", PASSWORD, "app");
    let most = doctor(&of_most, &[]).await;
    assert_eq!((most.code, most.checks("fail")), (0, vec![]), "{}", most.stdout);
    for (check, verdict) in [
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
        most.check(check, verdict, "");
    }
    most.check("may index", "warn", "grant createIndex on app.mongoseal");

    let reader = doctor(&set.uri_as("reader", PASSWORD, "app"), &[]).await;
    assert_eq!(reader.code, 1);
    for (check, verdict) in
        [("may look", "pass"), ("may hold", "fail"), ("may wait", "warn"), ("change stream", "warn")]
    {
        reader.check(check, verdict, "");
    }
    let nobody = doctor(&set.uri_as("nobody", PASSWORD, "app"), &[]).await;
    assert_eq!(nobody.code, 1);
    nobody.check("may look", "fail", "");

    let uri = set.uri_as("most", &format!("{PASSWORD}!"), "app");
    each_command_says_one_sentence(&uri, 125, "MongoDB refused the credentials").await;
    let wrong = doctor(&uri, &[]).await;
    assert_eq!(wrong.code, 1);
    wrong.check("reachable", "fail", "password");
    // Without a login.
    let anonymous = doctor(&of_most.replace(&format!("most:{PASSWORD}@"), ""), &[]).await;
    assert_eq!(anonymous.code, 1);
    anonymous.check("user", "fail", "");
}

#[tokio::test]
async fn a_host_where_nobody_listens_is_one_failed_check() {
    let uri = format!("mongodb://user:{PASSWORD}@127.0.0.1:9/?replicaSet=rs0");
    let nonsense = format!("mongodbb://user:{PASSWORD}@h");
    for said in [doctor(&uri, &["--timeout", "3s"]).await, doctor(&nonsense, &[]).await] {
        assert_eq!((said.code, said.checks("fail")), (1, vec!["reachable".to_owned()]), "{}", said.stdout);
    }
    each_command_says_one_sentence(&uri, 123, "Connection refused").await;
    let unknown = "mongodb://no-such-host.invalid/?replicaSet=none";
    each_command_says_one_sentence(unknown, 123, "no primary of the MongoDB replica set").await;
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
    let refused = doctor(&uri, &[]).await;
    assert_eq!(refused.code, 1);
    refused.check("replica set", "fail", "--allow-sharded");
    each_command_says_one_sentence(&uri, 125, "--allow-sharded").await;
    let allowed = doctor(&uri, &["--allow-sharded"]).await;
    allowed.check("replica set", "warn", "");
    allowed.check("commit", "pass", "");
}
