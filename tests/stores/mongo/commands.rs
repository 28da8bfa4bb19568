//! Counts the commands that the library sends.

use mongodb::bson::{Bson, Document, doc};
use mongoseal::{Error, Lease, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::command_name;
use tokio::task::JoinSet;

use crate::{TestDatabase, eventually, millis, noting_client, secs};

#[tokio::test]
async fn an_acquire_is_one_find_and_modify_and_a_release_is_one_command() {
    let db = TestDatabase::new("mongoseal_counted").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_counted"));
    seal.prepare().await.unwrap();
    let names = || sent.take_names();
    let mut checks = names();
    assert_eq!(checks.pop().unwrap(), "createIndexes", "what writes comes last");
    checks.sort();
    assert_eq!(checks, ["buildInfo", "explain", "hello", "replSetGetConfig"], "the checks, once");

    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    assert_eq!(names(), ["findAndModify"]);
    lease.refresh().await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    lease.release().await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    // The second acquire finds another holder, so for the third the handle sends the whole pipeline at once.
    let mut sharers = Vec::new();
    for commands in [1, 2, 1] {
        sharers.push(seal.acquire("shared").shared().await.unwrap());
        assert_eq!(names(), vec!["findAndModify"; commands]);
    }
    for sharer in sharers {
        sharer.release().await.unwrap();
    }
    names();
    // A maximum hold needs the whole pipeline, and the release that follows does not.
    let lease = seal.acquire("k").max_hold(secs(60)).await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    lease.release().await.unwrap();
    assert_eq!(names(), ["update"]);
}

#[tokio::test]
async fn a_refused_attempt_leaves_no_oplog_entry() {
    let db = TestDatabase::new("mongoseal_oplog").await;
    let seal = db.seal();
    let entries = || async { db.set.oplog_entries("mongoseal_oplog.mongoseal", &Bson::from("k")).await.len() };
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    assert_eq!(entries().await, 1);
    for _ in 0..20 {
        assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    }
    assert_eq!(entries().await, 1);
    lease.refresh().await.unwrap();
    assert_eq!(entries().await, 2, "a refresh writes");
    lease.release().await.unwrap();
    assert_eq!(entries().await, 3);
}

#[tokio::test]
async fn the_release_of_a_lease_whose_record_is_gone_writes_nothing() {
    let db = TestDatabase::new("mongoseal_absent").await;
    let seal = db.seal();
    let lease = seal.acquire("k").ttl(secs(1)).without_refresh().await.unwrap();
    db.records().delete_one(doc! { "_id": "k" }).await.unwrap();
    drop(lease);
    seal.shutdown().await;
    eventually(secs(2), "no record came back", || async { db.record("k").await.is_none() }).await;
}

#[tokio::test]
async fn of_fifty_first_acquires_two_check_the_deployment() {
    let db = TestDatabase::new("mongoseal_first").await;
    let (client, sent) = noting_client(&db.set.uri_with("appName=first")).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_first"));
    let acquires: Vec<_> = (0..50).map(|key| tokio::spawn(seal.acquire(format!("{key}")).into_future())).collect();
    for acquire in acquires {
        drop(acquire.await.unwrap().unwrap());
    }
    let checks = sent.count("createIndexes");
    assert!((1..=2).contains(&checks), "{checks}");
}

#[tokio::test]
async fn every_write_is_confirmed_by_the_journals_of_a_majority_and_says_how_long_it_may_take() {
    let db = TestDatabase::new("mongoseal_journaled").await;
    let (client, commands) = noting_client(&db.set.uri_with("w=1&journal=false")).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_journaled"));
    seal.prepare().await.unwrap();
    // Each kind of write that the store sends, by the call that sends it. On a busy machine a call sends it again.
    let sent = |call: &str, kind: &str| {
        // A findAndModify has a field `update`, too, so the name counts.
        let is_write = |command: &Document| match command_name(command) {
            Some("commitTransaction") => true,
            Some("findAndModify" | "update") => !command.contains_key("autocommit"),
            _ => false,
        };
        let writes: Vec<_> = commands.take().into_iter().filter(is_write).collect();
        assert!(
            !writes.is_empty() && writes.iter().all(|write| command_name(write) == Some(kind)),
            "{call}: {writes:?}"
        );
        for write in writes {
            let concern = write.get_document("writeConcern").unwrap();
            assert_eq!(concern.get_str("w").unwrap(), "majority", "{call}: {concern}");
            assert!(concern.get_bool("j").is_ok_and(|journal| journal), "{call}: {concern}");
            assert!(concern.contains_key("wtimeout"), "{call}: {concern}");
        }
    };

    let lease = seal.acquire("k").group("g").without_refresh().await.unwrap();
    sent("acquire", "findAndModify");
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent("an acquire that is refused", "findAndModify");
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent("one that is refused by an update that does nothing", "findAndModify");
    lease.refresh().await.unwrap();
    sent("refresh", "findAndModify");
    seal.refresh_group("g", secs(60)).await.unwrap();
    sent("refresh of a group", "update");
    lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await.unwrap();
    sent("a transaction", "commitTransaction");
    lease.release().await.unwrap();
    sent("release", "findAndModify");
    std::mem::forget(seal.acquire("k").group("g").without_refresh().await.unwrap());
    sent("acquire of a key that was held", "findAndModify");
    seal.release_group("g").await.unwrap();
    sent("release of a group", "update");
    std::mem::forget(seal.acquire("k").ttl(millis(500)).without_refresh().await.unwrap());
    sent("acquire of a key that was revoked", "findAndModify");
    tokio::time::sleep(secs(1)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 1);
    sent("purge", "findAndModify");
    let both = seal.acquire_all(["a", "b"]).await.unwrap();
    sent("acquire of a set", "findAndModify");
    both.release().await.unwrap();
    sent("release of a set", "update");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_acquires_and_releases_at_once_is_a_command_of_its_own() {
    const MANY: usize = 70;
    let db = TestDatabase::new("mongoseal_many").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::builder().owner("$owner").on_shared_client(&client.database("mongoseal_many")).unwrap();
    seal.prepare().await.unwrap();
    // Of new keys, and of known ones.
    for _ in 0..2 {
        sent.take();
        let acquire = |number| seal.acquire(format!("$key/{number}")).metadata("said", "$$ROOT").without_refresh();
        let asking: JoinSet<_> = (0..MANY).map(|number| acquire(number).into_future()).collect();
        let leases: Vec<Lease> = asking.join_all().await.into_iter().map(Result::unwrap).collect();
        let record = db.record("$key/7").await.unwrap();
        let holder = record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
        assert_eq!(holder.get_str("owner").unwrap(), "$owner", "no text is read as an expression");
        assert_eq!(holder.get_document("metadata").unwrap().get_str("said").unwrap(), "$$ROOT");
        let releasing: JoinSet<_> = leases.into_iter().map(Lease::release).collect();
        for released in releasing.join_all().await {
            assert_eq!(released.unwrap(), ReleaseOutcome::Released);
        }
        for (name, of_each) in [("findAndModify", "acquire"), ("update", "release")] {
            // A slow machine sends some of them again.
            assert!(sent.count(name) >= MANY, "one command for each {of_each}");
        }
    }
    let held = db.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
    assert_eq!(held, 0, "nothing is left held");
}
