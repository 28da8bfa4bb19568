//! `conform`.

use std::collections::BTreeSet;

use mongodb::bson::{Document, doc};
use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::{ReplicaSet, Standalone, eventually};
use nix::sys::signal::Signal::{SIGINT, SIGTERM};

use crate::{Console, Ended, ended::PASSWORD, run, secs};

/// The names of the findings of a kind with a verdict.
fn names(said: &Ended, kind: &str, verdict: &str) -> Vec<String> {
    let findings = said.json().into_iter().filter(|line| line["kind"] == kind && line["verdict"] == verdict);
    findings.map(|line| line["check"].as_str().unwrap().to_owned()).collect()
}

impl Console {
    /// The collections of the database.
    async fn collections(&self) -> Vec<String> {
        self.db.database.list_collection_names().await.unwrap()
    }
}

#[tokio::test]
#[ignore = "night: on a busy machine a requirement holds only with longer times"]
async fn all_probes_and_requirements_hold_on_a_replica_set() {
    let console = Console::new("conform_all").await;
    let said = console.run(&["conform", "--json", "--slow"]).await;
    said.is_quiet(0);
    assert!(said.json().iter().all(|line| line["verdict"] == "pass"), "{}", said.stdout);
}

#[tokio::test]
async fn each_probe_and_requirement_is_reported_once_and_the_scratch_collection_is_gone() {
    let console = Console::new("conform").await;
    let said = console.run(&["conform", "--json", "--slow", "--collection", "leases"]).await;
    let reported: Vec<_> = said.json().into_iter().filter(|line| line["kind"] == "requirement").collect();
    let failed = reported.iter().any(|line| line["verdict"] == "fail");
    assert_eq!((said.code, said.messages()), (i32::from(failed), Vec::new()), "{}", said.stdout);
    let reported: Vec<&str> = reported.iter().map(|line| line["check"].as_str().unwrap()).collect();
    let requirements: Vec<&str> = requirements().iter().map(Requirement::name).collect();
    assert_eq!(reported, requirements, "each requirement once, in the order of the suite");
    let probes = names(&said, "probe", "pass");
    assert_eq!(probes.iter().collect::<BTreeSet<_>>().len(), probes.len(), "each probe once");
    for probe in ["server", "library", "clocks in an update", "resumed stream", "write conflict", "TTL deletion"] {
        assert!(probes.iter().any(|name| name == probe), "{probe}: {probes:?}");
    }
    assert_eq!(names(&said, "scratch", "pass"), ["scratch"]);
    // Neither the scratch collection is left nor that of the leases made.
    assert_eq!(console.collections().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_terminal_shows_how_far_the_requirements_are() {
    let console = Console::new("conform_progress").await;
    let (said, status) = crate::on_a_terminal_of(100, &console.uri, "mongoseal conform").await;
    let all = requirements().len();
    assert!(said.contains(&format!("mongoseal: checked 0 of {all} requirements")), "{said}");
    // The line is erased before the report goes on.
    let report = said.rsplit_once("\u{1b}[K").unwrap().1;
    assert!(report.contains("requirements  ") && report.contains(&format!("of {all} requirements")), "{said}");
    assert_eq!(status, i32::from(said.contains("see the failed requirements above")), "{said}");
}

#[tokio::test]
async fn a_collection_that_exists_is_refused_and_left_as_it_is() {
    let console = Console::new("conform_existing").await;
    console.db.database.create_collection("empty").await.unwrap();
    let orders = console.db.database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    for name in ["empty", "orders"] {
        let said = console.run(&["conform", "--scratch", name]).await;
        said.says(125, "exists");
        said.says(125, "--scratch");
    }
    assert_eq!(
        console.collections().await.into_iter().collect::<BTreeSet<_>>(),
        ["empty", "orders"].map(Into::into).into()
    );
    assert_eq!(orders.list_index_names().await.unwrap(), ["_id_"]);
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn a_signal_ends_the_checks_and_the_scratch_collection_is_gone() {
    for (sent, code, name, after) in [
        (SIGTERM, 143, "conform_term", "TTL index"),
        (SIGINT, -2, "conform_int", "library"),
        (SIGTERM, 143, "conform_late", "tokens_grow_over_release_and_expiry"),
    ] {
        let console = Console::new(name).await;
        let mut conform = console.start(&["conform", "--json"]);
        let mut out = String::new();
        while !out.contains(after) {
            out += &conform.line().await;
        }
        assert_eq!(console.collections().await.len(), 1, "the scratch collection is there");
        conform.signal(sent);
        let mut last = String::new();
        while let Some(line) = conform.next_line().await {
            out += &line;
            last = line;
        }
        assert_eq!(conform.end().await.code, code, "{out}");
        assert!(last.contains("\"check\":\"scratch\",\"verdict\":\"pass\""), "{out}");
        assert!(!out.contains("random_requests"), "the checks did not go on: {out}");
        assert_eq!(console.collections().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_standalone_server_fails_with_clear_lines_and_no_requirement_is_run() {
    let server = Standalone::start().await;
    let said = run(&server.uri(), &["conform", "--json"]).await;
    assert_eq!((said.code, said.stderr.as_str()), (1, ""), "{}", said.stdout);
    said.check("library", "fail", "standalone");
    said.check("library", "fail", "rs.initiate()");
    for probe in ["clocks in an update", "linearizable read", "change stream", "transaction"] {
        said.check(probe, "fail", "use a replica set of MongoDB 6.0 or later");
    }
    said.check("update pipeline", "pass", "");
    assert_eq!(names(&said, "requirement", "skip").len(), requirements().len());
    said.check("scratch", "pass", "is dropped");
    let words = run(&server.uri(), &["conform"]).await;
    assert!(words.code == 1 && words.stdout.contains("\nskip  requirements  "), "{}", words.stdout);
    assert!(words.stdout.lines().count() < 25, "requirements that are not run are one line:\n{}", words.stdout);
}

#[tokio::test]
#[ignore = "night: runs the suite twice"]
async fn a_requirement_and_a_probe_that_fail_are_reported_and_the_others_still_run() {
    let set = ReplicaSet::builder().start().await;
    // Batches, and releases of keys without waiters, are `update`s. Most requirements have neither.
    let refuse = doc! {
        "configureFailPoint": "failCommand", "mode": "alwaysOn",
        "data": { "failCommands": ["update", "createIndexes"], "errorCode": 8000, "appName": "mongoseal conform" },
    };
    let point = set.fail_point(0, refuse).await;
    let said = run(&set.uri(), &["conform", "--json"]).await;
    assert_eq!((said.code, said.stderr.as_str()), (1, ""), "{}", said.stdout);
    let requirement = "a_batch_revocation_is_recorded_with_its_tokens";
    let failed = names(&said, "requirement", "fail");
    assert!(failed.contains(&requirement.to_owned()) && failed.len() < requirements().len() / 2, "{failed:?}");
    assert_eq!(names(&said, "requirement", "pass").len() + failed.len(), requirements().len());
    said.check(requirement, "fail", "8000");
    assert_eq!(names(&said, "probe", "fail"), ["library", "change count", "TTL index"], "{}", said.stdout);
    said.check("TTL index", "fail", "so idle records stay");

    let words = run(&set.uri(), &["conform", "--verbose"]).await;
    assert_eq!((words.code, words.stderr.as_str()), (1, ""), "{}", words.stdout);
    assert!(words.stdout.contains(&format!("fail  requirement          {requirement}: ")), "{}", words.stdout);
    let held = words.stdout.lines().filter(|line| line.starts_with("pass  requirement  ")).count();
    let sum = format!("fail  requirements         {held} of {} requirements", requirements().len());
    assert!(words.stdout.contains(&sum), "{}", words.stdout);
    point.off().await;
}

#[tokio::test]
#[ignore = "night: runs the suite for two users"]
async fn a_missing_privilege_is_named_and_a_collection_that_cannot_be_dropped_too() {
    let set = ReplicaSet::builder().auth().start().await;
    let on_all =
        |actions: &[&str]| vec![doc! { "resource": { "db": "app", "collection": "" }, "actions": actions.to_vec() }];
    set.add_user("reader", PASSWORD, "app", on_all(&["find"])).await;
    let uses = ["find", "insert", "update", "createCollection", "createIndex"];
    set.add_user("no_drop", PASSWORD, "app", on_all(&uses)).await;
    let all = [&uses[..], &["changeStream", "dropCollection"]].concat();
    set.add_user("enough", PASSWORD, "app", on_all(&all)).await;

    let said = run(&set.uri_as("reader", PASSWORD, "app"), &["conform"]).await;
    said.says(125, "grant createCollection and dropCollection");

    let said = run(&set.uri_as("no_drop", PASSWORD, "app"), &["conform", "--json", "--scratch", "left"]).await;
    assert_eq!(said.code, 1, "{}", said.stderr);
    said.check("scratch", "fail", "dropCollection");
    said.check("scratch", "fail", "app.left");
    said.check("change stream", "fail", "grant find and changeStream on app.left");

    let said = run(&set.uri_as("enough", PASSWORD, "app"), &["conform", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.stdout);
    let wrong = run(&set.uri_as("enough", "wrong", "app"), &["conform"]).await;
    assert!(wrong.code == 125 && wrong.stderr.contains("password") && wrong.stdout.is_empty(), "{}", wrong.stderr);
}

#[tokio::test]
async fn the_collection_is_dropped_even_if_the_reader_of_the_report_has_gone() {
    let console = Console::new("conform_pipe").await;
    let said = crate::shell(&console.uri, "mongoseal conform | head -1").await;
    said.is_quiet(0);
    let is_gone = async || console.collections().await.is_empty();
    eventually(secs(60), "the scratch collection is dropped", is_gone).await;
}
