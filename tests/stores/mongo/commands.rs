//! The commands that the library sends: how many, and with which concerns.

use std::collections::BTreeSet;

use mongodb::{
    bson::{Bson, DateTime, Document, doc},
    options::{Acknowledgment, DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use mongoseal::{Error, Mongoseal, Tick};
use mongoseal_test_support::command_name;

use crate::{TestDatabase, bad_input::put, millis, noting_client, noting_seal, secs};

#[tokio::test]
async fn an_acquire_is_one_find_and_modify_and_a_release_is_one_command() {
    let db = TestDatabase::new("mongoseal_counted").await;
    let (seal, sent) = noting_seal(&db, "appName=noting").await;
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
    // Of a key that the handle knows as held by another one, too.
    let other = db.seal().acquire("other").ttl(secs(60)).without_refresh().await.unwrap();
    assert!(seal.acquire("other").await.is_err());
    names();
    for _ in 0..3 {
        assert!(matches!(seal.acquire("other").await, Err(Error::Held { token, .. }) if token == other.token()));
        assert_eq!(names(), ["findAndModify"]);
    }
    other.release().await.unwrap();
    let lease = seal.acquire("other").await.unwrap();
    assert_eq!(names(), ["findAndModify"], "it sees that the key is free and takes it");
    lease.release().await.unwrap();
    assert_eq!(names(), ["update"]);
    // A maximum hold needs the whole pipeline, and the release that follows does not.
    let lease = seal.acquire("k").max_hold(secs(60)).await.unwrap();
    assert_eq!(names(), ["findAndModify"]);
    lease.release().await.unwrap();
    assert_eq!(names(), ["update"]);
    let all = seal.acquire_all(["a", "b", "c", "d"]).await.unwrap();
    assert_eq!(names(), ["findAndModify"; 4]);
    all.release().await.unwrap();
    assert_eq!(names(), ["update"]);
}

#[tokio::test]
async fn a_read_is_one_command_a_purge_one_for_what_has_expired_and_a_tick_two_reads_and_two_writes() {
    let db = TestDatabase::new("mongoseal_reads").await;
    let (seal, sent) = noting_seal(&db, "appName=noting").await;
    // By another handle: one that holds a lease listens.
    let lease = db.seal().acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
    db.seal().acquire("over").without_refresh().await.unwrap().orphan();
    put(&db, "over", "holders.0.expires_at", Some(&DateTime::from_millis(1).into())).await;
    sent.take();
    assert_eq!(seal.inspect("k").await.unwrap().unwrap().holders[0].token, lease.token());
    assert_eq!(sent.take_names(), ["find"]);
    assert_eq!(seal.leases().await.unwrap().collect().await.unwrap().len(), 1);
    assert_eq!(sent.take_names(), ["aggregate"]);
    assert_eq!(seal.purge().await.unwrap().len(), 1);
    assert_eq!(sent.take_names(), ["aggregate", "findAndModify"]);
    assert!(db.record("over").await.is_some(), "the version protects the tokens");

    // Without a record, the time is read in its place.
    for (tick, commands) in
        [(1, None), (2, Some(&["find", "findAndModify", "find", "findAndModify"][..])), (2, Some(&["find"]))]
    {
        sent.take();
        seal.once("tick", Tick::number(tick)).run(async |_| Ok::<_, Error>(())).await.unwrap();
        assert!(commands.is_none_or(|commands| sent.take_names() == commands), "tick {tick}");
    }

    db.records().drop().await.unwrap();
    sent.take();
    let without_collection = seal.now().await.unwrap();
    assert_eq!(sent.take_names(), ["aggregate"]);
    db.records().insert_one(doc! { "_id": 1, "now": "not a time" }).await.unwrap();
    assert!(seal.now().await.unwrap() >= without_collection);
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

/// Each check of the deployment is six commands.
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

/// On a set of one member, a read that follows the preference finds no server.
#[tokio::test]
async fn whatever_the_client_says_a_write_asks_for_the_journals_of_a_majority_and_a_read_is_linearizable() {
    const NAME: &str = "mongoseal_concerns";
    let db = TestDatabase::new(NAME).await;
    let weak = db.set.uri_with("w=1&journal=false&readConcernLevel=local&readPreference=secondary&retryWrites=true");
    let (client, commands) = noting_client(&weak).await;
    let options = DatabaseOptions::builder()
        .write_concern(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build())
        .read_concern(ReadConcern::available())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Secondary { options: None }))
        .build();
    let seal = Mongoseal::on_shared_client(&client.database_with_options(NAME, options));
    seal.prepare().await.unwrap();
    commands.take();
    // Each kind of command that the store sends, by the call that sends it. On a busy machine a call sends it again.
    let sent = |call: &str, kinds: &[&str]| {
        // A handle that holds a lease for a second listens, which takes no write.
        let is_of_call = |command: &Document| match command_name(command).unwrap() {
            "commitTransaction" => true,
            "findAndModify" | "update" => !command.contains_key("autocommit"),
            other => kinds.contains(&other) && !is_change_stream(command),
        };
        let mut all = commands.take();
        all.retain(is_of_call);
        let names: BTreeSet<_> = all.iter().filter_map(command_name).collect();
        assert!(names.iter().eq(kinds), "{call}: {names:?}");
        for command in all {
            if let Ok(concern) = command.get_document("writeConcern") {
                assert_eq!(
                    (concern.get_str("w"), concern.get_bool("j")),
                    (Ok("majority"), Ok(true)),
                    "{call}: {concern}"
                );
                assert!(concern.contains_key("wtimeout"), "{call}: {concern}");
                let is_commit = command.contains_key("commitTransaction");
                assert!(is_commit || !command.contains_key("txnNumber"), "{call}: not as a retryable write");
            } else {
                let concern = command.get_document("readConcern").unwrap();
                assert_eq!(concern.get_str("level"), Ok("linearizable"), "{call}: {command}");
                assert!(command.contains_key("maxTimeMS"), "{call}: {command}");
            }
        }
    };

    let lease = seal.acquire("k").group("g").without_refresh().await.unwrap();
    sent("acquire", &["findAndModify"]);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent("an acquire that is refused", &["findAndModify"]);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    sent("one that is refused by an update that does nothing", &["findAndModify"]);
    lease.refresh().await.unwrap();
    sent("refresh", &["findAndModify"]);
    lease.verify().await.unwrap();
    sent("verify", &["find"]);
    assert_eq!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.len(), 1);
    sent("refresh of a group", &["aggregate", "update"]);
    lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await.unwrap();
    sent("a transaction", &["commitTransaction"]);
    lease.release().await.unwrap();
    sent("release", &["findAndModify"]);
    seal.acquire("k").group("g").without_refresh().await.unwrap().orphan();
    sent("acquire of a key that was held", &["findAndModify"]);
    assert_eq!(seal.release_group("g").await.unwrap().len(), 1);
    sent("release of a group", &["aggregate", "update"]);
    seal.acquire("k").ttl(millis(500)).without_refresh().await.unwrap().orphan();
    sent("acquire of a key that was revoked", &["findAndModify"]);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 1);
    sent("purge", &["aggregate", "findAndModify"]);
    let both = seal.acquire_all(["a", "b"]).await.unwrap();
    sent("acquire of a set", &["findAndModify"]);
    both.release().await.unwrap();
    sent("release of a set", &["update"]);

    let connected = Mongoseal::builder().database(NAME).connect(&weak).await.unwrap();
    let lease = connected.acquire("connected").await.unwrap();
    lease.verify().await.unwrap();
    lease.release().await.unwrap();
}

fn is_change_stream(command: &Document) -> bool {
    command
        .get_array("pipeline")
        .is_ok_and(|stages| stages[0].as_document().is_some_and(|stage| stage.contains_key("$changeStream")))
}
