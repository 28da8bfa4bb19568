//! `conform`.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt};

use mongodb::bson::{Document, doc};
use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::{ReplicaSet, Standalone, eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{Console, Ended, done, ended::PASSWORD, mongoseal, secs};

async fn conform(uri: &str, options: &[&str]) -> Ended {
    let mut program = mongoseal(&["conform"]);
    program.args(options).env("MONGODB_URI", uri).env("MONGOSEAL_DB", "app");
    done(program).await
}

/// The names of the findings of a kind with a verdict.
fn names(said: &Ended, kind: &str, verdict: &str) -> Vec<String> {
    let findings = said.json().into_iter().filter(|line| line["kind"] == kind && line["verdict"] == verdict);
    findings.map(|line| line["check"].as_str().unwrap().to_owned()).collect()
}

/// The verdict of a check, what was found, and what to do.
fn finding(said: &Ended, check: &str) -> (String, String) {
    let found = said.json().into_iter().find(|line| line["check"] == check);
    let line = found.unwrap_or_else(|| panic!("{check} is reported:\n{}", said.stdout));
    let advice = line["advice"].as_str().unwrap_or_default();
    (line["verdict"].as_str().unwrap().into(), format!("{}: {advice}", line["found"].as_str().unwrap()))
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
    assert_eq!((said.status(), said.messages()), (i32::from(failed), Vec::new()), "{}", said.stdout);
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
        assert_eq!((said.status(), said.stdout.as_str()), (125, ""), "{}", said.stderr);
        assert!(said.stderr.contains("exists") && said.stderr.contains("--scratch"), "{}", said.stderr);
        assert_eq!(said.messages().len(), 1, "{}", said.stderr);
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
    for (signal, name, after) in [
        (Signal::SIGTERM, "conform_term", "TTL index"),
        (Signal::SIGINT, "conform_int", "library"),
        (Signal::SIGTERM, "conform_late", "tokens_grow_over_release_and_expiry"),
    ] {
        let console = Console::new(name).await;
        let mut child = mongoseal(&[]);
        let mut child = child.args(["conform", "--json"]).env("MONGODB_URI", &console.uri).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut out = String::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            let is_last = line.contains(after);
            out.extend([line.as_str(), "\n"]);
            if is_last {
                break;
            }
        }
        assert_eq!(console.collections().await.len(), 1, "the scratch collection is there");
        kill(Pid::from_raw(child.id().unwrap().try_into().unwrap()), signal).unwrap();
        while let Some(line) = lines.next_line().await.unwrap() {
            out.extend([line.as_str(), "\n"]);
        }
        let ended = tokio::time::timeout(secs(60), child.wait()).await.expect("it ends").unwrap();
        let by = (ended.code(), ended.signal());
        assert_eq!(by, if signal == Signal::SIGINT { (None, Some(2)) } else { (Some(143), None) }, "{out}");
        let last = out.lines().last().unwrap();
        assert!(last.contains("\"check\":\"scratch\",\"verdict\":\"pass\""), "{out}");
        assert!(!out.contains("random_requests"), "the checks did not go on: {out}");
        assert_eq!(console.collections().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_standalone_server_fails_with_clear_lines_and_no_requirement_is_run() {
    let server = Standalone::start().await;
    let said = conform(&server.uri(), &["--json"]).await;
    assert_eq!((said.status(), said.stderr.as_str()), (1, ""), "{}", said.stdout);
    let (verdict, words) = finding(&said, "library");
    assert!(verdict == "fail" && words.contains("standalone") && words.contains("rs.initiate()"), "{words}");
    for probe in ["clocks in an update", "linearizable read", "change stream", "transaction"] {
        let (verdict, words) = finding(&said, probe);
        assert!(verdict == "fail" && words.contains("use a replica set of MongoDB 6.0 or later"), "{probe}: {words}");
    }
    assert_eq!(finding(&said, "update pipeline").0, "pass", "{}", said.stdout);
    assert_eq!(names(&said, "requirement", "skip").len(), requirements().len());
    let (verdict, words) = finding(&said, "scratch");
    assert!(verdict == "pass" && words.contains("is dropped"), "{words}");
    let words = conform(&server.uri(), &[]).await;
    assert!(words.status() == 1 && words.stdout.contains("\nskip  requirements  "), "{}", words.stdout);
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
    let said = conform(&set.uri(), &["--json"]).await;
    assert_eq!((said.status(), said.stderr.as_str()), (1, ""), "{}", said.stdout);
    let requirement = "a_batch_revocation_is_recorded_with_its_tokens";
    let failed = names(&said, "requirement", "fail");
    assert!(failed.contains(&requirement.to_owned()) && failed.len() < requirements().len() / 2, "{failed:?}");
    assert_eq!(names(&said, "requirement", "pass").len() + failed.len(), requirements().len());
    assert!(finding(&said, requirement).1.contains("8000"), "{}", finding(&said, requirement).1);
    assert_eq!(names(&said, "probe", "fail"), ["library", "change count", "TTL index"], "{}", said.stdout);
    assert!(finding(&said, "TTL index").1.contains("so idle records stay"), "{}", said.stdout);

    let words = conform(&set.uri(), &["--verbose"]).await;
    assert_eq!((words.status(), words.stderr.as_str()), (1, ""), "{}", words.stdout);
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

    let said = conform(&set.uri_as("reader", PASSWORD, "app"), &[]).await;
    assert_eq!((said.status(), said.stdout.as_str()), (125, ""), "{}", said.stderr);
    assert!(said.stderr.contains("grant createCollection and dropCollection"), "{}", said.stderr);

    let said = conform(&set.uri_as("no_drop", PASSWORD, "app"), &["--json", "--scratch", "left"]).await;
    assert_eq!(said.status(), 1, "{}", said.stderr);
    let (verdict, words) = finding(&said, "scratch");
    assert!(verdict == "fail" && words.contains("dropCollection") && words.contains("app.left"), "{words}");
    let (verdict, words) = finding(&said, "change stream");
    assert!(verdict == "fail" && words.contains("grant find and changeStream on app.left"), "{words}");

    let said = conform(&set.uri_as("enough", PASSWORD, "app"), &["--json"]).await;
    assert_eq!(said.status(), 0, "{}", said.stdout);
    let wrong = conform(&set.uri_as("enough", "wrong", "app"), &[]).await;
    assert!(wrong.status() == 125 && wrong.stderr.contains("password") && wrong.stdout.is_empty(), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_status_123() {
    let said = conform("mongodb://127.0.0.1:9/?replicaSet=rs0", &["--timeout", "3s"]).await;
    assert_eq!((said.status(), said.stdout.as_str()), (123, ""), "{}", said.stderr);
    assert!(
        said.notes.contains("MongoDB has not answered for 1 s") && said.stderr.contains("Connection refused"),
        "{}",
        said.stderr
    );
}

#[tokio::test]
async fn the_collection_is_dropped_even_if_the_reader_of_the_report_has_gone() {
    let console = Console::new("conform_pipe").await;
    let said = crate::shell(&console.uri, "mongoseal conform | head -1").await;
    said.is_quiet(0);
    let is_gone = async || console.collections().await.is_empty();
    eventually(secs(60), "the scratch collection is dropped", is_gone).await;
}
