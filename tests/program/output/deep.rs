//! `doctor --deep`.

use std::collections::BTreeSet;

use mongodb::bson::{Document, doc};
use mongoseal_conformance::{Requirement, requirements};
use mongoseal_test_support::{ReplicaSet, eventually};
use nix::sys::signal::Signal::{SIGINT, SIGTERM};

use crate::{Ended, Sandbox, ended::PASSWORD, run, secs};

const DEEP: [&str; 3] = ["doctor", "--deep", "--json"];

/// The requirements that were reported, those with this verdict or all.
fn reported(said: &Ended, verdict: Option<&str>) -> Vec<String> {
    let all: BTreeSet<&str> = requirements().iter().map(Requirement::name).collect();
    let lines = said.json().into_iter().filter(|line| verdict.is_none_or(|verdict| line["verdict"] == verdict));
    let checks = lines.map(|line| line["check"].as_str().unwrap().to_owned());
    checks.filter(|check| all.contains(check.as_str())).collect()
}

impl Sandbox {
    /// The collections of the database, without that of the leases.
    async fn others(&self) -> BTreeSet<String> {
        let all = self.database.list_collection_names().await.unwrap();
        all.into_iter().filter(|name| name != "mongoseal").collect()
    }
}

#[tokio::test]
async fn each_requirement_is_reported_once_and_the_scratch_collection_is_gone() {
    let sandbox = Sandbox::new("deep").await;
    let said = sandbox.done(&DEEP).await;
    let failed = reported(&said, Some("fail"));
    assert_eq!((said.code, said.messages()), (i32::from(!failed.is_empty()), Vec::new()), "{}", said.stdout);
    let all: Vec<&str> = requirements().iter().map(Requirement::name).collect();
    assert_eq!(reported(&said, None), all, "each requirement once, in the order of the suite");
    let found = said.found("requirements");
    assert!(found.contains(&format!(" of {} requirements", all.len())), "{found}");
    said.check("scratch", "pass", "is dropped");
    assert_eq!(sandbox.others().await, BTreeSet::new());
}

#[tokio::test]
async fn a_terminal_shows_how_far_the_requirements_are() {
    let sandbox = Sandbox::new("deep_progress").await;
    let (said, status) = sandbox.on_a_terminal_of(100, "mongoseal doctor --deep", "").await;
    let all = requirements().len();
    assert!(said.contains(&format!("mongoseal: checked 0 of {all} requirements")), "{said}");
    // The line is erased before the report goes on.
    let report = said.rsplit_once("\u{1b}[K").unwrap().1;
    assert!(report.contains("requirements  ") && report.contains(&format!("of {all} requirements")), "{said}");
    assert_eq!(status, i32::from(said.contains("see the failed requirements above")), "{said}");
}

#[tokio::test]
async fn a_collection_that_exists_is_refused_and_left_as_it_is() {
    let sandbox = Sandbox::new("deep_existing").await;
    sandbox.database.create_collection("empty").await.unwrap();
    let orders = sandbox.database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    for name in ["empty", "orders"] {
        let said = sandbox.done(&[&DEEP[..], &["--scratch", name]].concat()).await;
        assert_eq!(said.code, 1, "{}", said.stdout);
        said.check("scratch", "fail", "exists, and is left as it is: pass another name with --scratch");
    }
    assert_eq!(sandbox.others().await, ["empty", "orders"].map(Into::into).into());
    assert_eq!(orders.list_index_names().await.unwrap(), ["_id_"]);
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1);
    sandbox.done(&["doctor", "--scratch", "name"]).await.fails(125, "--deep");
}

#[tokio::test]
async fn a_signal_ends_the_requirements_and_the_scratch_collection_is_gone() {
    for (sent, code, name) in [(SIGTERM, 143, "deep_term"), (SIGINT, -2, "deep_int")] {
        let sandbox = Sandbox::new(name).await;
        let mut doctor = sandbox.start(&DEEP);
        let mut out = String::new();
        while !out.contains("tokens_grow_over_release_and_expiry") {
            out += &doctor.line().await;
        }
        assert_eq!(sandbox.others().await.len(), 1, "the scratch collection is there");
        doctor.signal(sent);
        let mut last = String::new();
        while let Some(line) = doctor.next_line().await {
            out += &line;
            last = line;
        }
        assert_eq!(doctor.end().await.code, code, "{out}");
        assert!(last.contains("\"check\":\"scratch\",\"verdict\":\"pass\""), "{out}");
        assert!(!out.contains("random_requests"), "the requirements did not go on: {out}");
        assert_eq!(sandbox.others().await, BTreeSet::new());
    }
}

#[tokio::test]
#[ignore = "night: runs the suite"]
async fn a_requirement_that_fails_is_reported_and_the_others_still_run() {
    let set = ReplicaSet::builder().start().await;
    // Batches, and releases of keys without waiters, are `update`s. Most requirements have neither.
    let refuse = doc! {
        "configureFailPoint": "failCommand", "mode": "alwaysOn",
        "data": { "failCommands": ["update"], "errorCode": 8000, "appName": "mongoseal doctor" },
    };
    let point = set.fail_point(0, refuse).await;
    let said = run(&set.uri(), &DEEP).await;
    assert_eq!((said.code, said.stderr.as_str()), (1, ""), "{}", said.stdout);
    let requirement = "a_batch_revocation_is_recorded_with_its_tokens";
    let failed = reported(&said, Some("fail"));
    assert!(failed.contains(&requirement.to_owned()) && failed.len() < requirements().len() / 2, "{failed:?}");
    assert_eq!(reported(&said, Some("pass")).len() + failed.len(), requirements().len());
    said.check(requirement, "fail", "8000");
    let held = format!("{} of {} requirements", requirements().len() - failed.len(), requirements().len());
    said.check("requirements", "fail", &held);
    point.off().await;
}

#[tokio::test]
#[ignore = "night: runs the suite for two users"]
async fn a_missing_privilege_is_named_and_a_collection_that_cannot_be_dropped_too() {
    let set = ReplicaSet::builder().auth().start().await;
    let on_all =
        |actions: &[&str]| vec![doc! { "resource": { "db": "app", "collection": "" }, "actions": actions.to_vec() }];
    let leases = |actions: &[&str]| {
        vec![doc! { "resource": { "db": "app", "collection": "mongoseal" }, "actions": actions.to_vec() }]
    };
    let uses = ["find", "insert", "update", "createCollection", "createIndex", "changeStream"];
    set.add_user("leases", PASSWORD, "app", leases(&uses)).await;
    set.add_user("no_drop", PASSWORD, "app", on_all(&uses)).await;
    set.add_user("enough", PASSWORD, "app", on_all(&[&uses[..], &["dropCollection"]].concat())).await;

    let said = run(&set.uri_as("leases", PASSWORD, "app"), &DEEP).await;
    assert_eq!(said.code, 1, "{}", said.stdout);
    said.check("scratch", "fail", "grant createCollection and dropCollection");

    let said = run(&set.uri_as("no_drop", PASSWORD, "app"), &[&DEEP[..], &["--scratch", "left"]].concat()).await;
    assert_eq!(said.code, 1, "{}", said.stdout);
    said.check("scratch", "fail", "dropCollection");
    said.check("scratch", "fail", "app.left");

    let said = run(&set.uri_as("enough", PASSWORD, "app"), &DEEP).await;
    assert_eq!(said.code, 0, "{}", said.stdout);
}

#[tokio::test]
async fn the_collection_is_dropped_even_if_the_reader_of_the_report_has_gone() {
    let sandbox = Sandbox::new("deep_pipe").await;
    let said = sandbox.shell("mongoseal doctor --deep --verbose | grep -m 1 requirement >/dev/null").await;
    said.is_quiet(0);
    let is_gone = async || sandbox.others().await.is_empty();
    eventually(secs(60), "the scratch collection is dropped", is_gone).await;
}
