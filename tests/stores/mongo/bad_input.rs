//! Errors name what is wrong with a deployment or a record and what to do, and no lease is lost by them.

use mongodb::{
    IndexModel,
    bson::{Bson, Document, doc},
    options::{ClientOptions, IndexOptions, ServerApi, ServerApiVersion},
};
use mongoseal::record::{self, Request};
use mongoseal::store::{MongoStore, Store};
use mongoseal::{Deadline, Error, Key, LeaseId, Mongoseal, Sharing};
use mongoseal_test_support::{ReplicaSet, Standalone};

use crate::{TestDatabase, secs, terms};

fn source(error: &Error) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, says: &str) -> Error {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
    error
}

#[tokio::test]
async fn a_standalone_server_is_refused() {
    let server = Standalone::start().await;
    invalid(Mongoseal::connect(server.uri()).await, "run rs.initiate()");
    let client = mongodb::Client::with_uri_str(server.uri()).await.unwrap();
    let seal = Mongoseal::on_shared_client(&client.database("app"));
    invalid(seal.acquire("k").await, "run rs.initiate()");
    assert_eq!(client.database("app").list_collection_names().await.unwrap(), [] as [String; 0]);
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_within_the_operation_timeout_and_tells_why() {
    let builder = Mongoseal::builder().operation_timeout(secs(2));
    // Port 1 is reserved: no server listens on it. The driver looks for a server for 30 seconds.
    let connecting = builder.clone().connect("mongodb://127.0.0.1:1/?replicaSet=rs0");
    let error = tokio::time::timeout(secs(25), connecting).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!source(&error).is_empty(), "{error:?}");
    let client = mongodb::Client::with_uri_str("mongodb://127.0.0.1:1/?replicaSet=rs0").await.unwrap();
    let acquire = builder.on_shared_client(&client.database("app")).unwrap().acquire("k");
    let error = tokio::time::timeout(secs(25), acquire.into_future()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_connection_string_that_is_none_is_refused() {
    for uri in ["", "localhost", "http://localhost", "mongodb://localhost/?w=-5"] {
        let error = invalid(Mongoseal::connect(uri).await, "correct it");
        assert!(!source(&error).is_empty());
    }
    let builder = Mongoseal::builder().collection("a$b");
    invalid(builder.connect("mongodb://localhost/").await, "cannot name a collection");
}

#[tokio::test]
async fn an_index_with_other_options_is_refused_and_left_alone() {
    let db = TestDatabase::new("mongoseal_index").await;
    let other =
        |options: Option<IndexOptions>| IndexModel::builder().keys(doc! { "expires_at": 1 }).options(options).build();
    let after = |seconds, name: &str| IndexOptions::builder().expire_after(secs(seconds)).name(name.to_owned()).build();

    for options in [None, Some(after(60, "expires_at_1")), Some(after(60, "mine"))] {
        db.records().create_index(other(options)).await.unwrap();
        invalid(db.seal().acquire("k").await, "drop it, or set the retention");
        assert_eq!(db.records().list_index_names().await.unwrap().len(), 2);
        assert_eq!(db.record("k").await, None);
        db.records().drop_indexes().await.unwrap();
    }
    // Another name for the same thing is the same thing.
    db.records().create_index(other(Some(after(24 * 3600, "mine")))).await.unwrap();
    drop(db.seal().acquire("k").await.unwrap());
    // And the settings can follow the index.
    db.records().drop_indexes().await.unwrap();
    db.records().create_index(other(Some(after(60, "mine")))).await.unwrap();
    drop(db.build(Mongoseal::builder().retention(secs(60))).acquire("k2").await.unwrap());
}

#[tokio::test]
async fn a_record_of_foreign_shape_is_corrupt_and_left_as_it_is() {
    let db = TestDatabase::new("mongoseal_foreign").await;
    let seal = db.seal();
    // Not to be collected meanwhile.
    let date = mongodb::bson::DateTime::from_millis(4_000_000_000_000);
    let record = |holders: Bson| {
        doc! { "_id": "k", "v": 1, "version": 7_i64, "holders": holders, "queue": [], "handover": "", "history": [], "last_seen": date, "expires_at": date }
    };
    let with = |name: &str, value: Bson| {
        let mut record = record(Bson::Array(vec![]));
        record.insert(name, value);
        record
    };
    let foreign = [
        doc! { "_id": "k", "locked": true },
        doc! { "_id": "k", "version": 7 },
        doc! { "_id": "k", "v": 1 },
        doc! { "_id": "k", "v": [1] },
        doc! { "_id": "k", "v": 1, "version": 7_i64 },
        with("expires_at", 5.into()),
        with("v", 1_i64.into()),
        with("v", 1.0.into()),
        with("v", vec![1].into()),
        with("v", 0.into()),
        with("version", vec![7_i64].into()),
        with("version", 0_i64.into()),
        with("version", ((1_i64 << 53) - 1).into()),
        with("queue", "me".into()),
        {
            let mut without = record(Bson::Array(vec![]));
            without.remove("v");
            without
        },
        record(Bson::from("me")),
        record(Bson::from(vec![1])),
        record(Bson::from(vec![doc! { "owner": "somebody", "expires_at": "tomorrow" }])),
        record(Bson::Null),
    ];
    for document in foreign {
        db.records().replace_one(doc! { "_id": "k" }, &document).upsert(true).await.unwrap();
        let error = seal.acquire("k").await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{document} {error:?}");
        assert!(error.to_string().contains("choose another key"), "{error}");
        assert_eq!(db.record("k").await.unwrap(), document);
    }
    // Whoever waits there and has no time cannot have been queued by us, and falls out.
    let mut strange = record(Bson::Array(vec![]));
    strange.insert("queue", vec![Bson::from(1), doc! { "expires_at": "tomorrow" }.into(), Bson::Null]);
    db.records().replace_one(doc! { "_id": "k" }, strange).await.unwrap();
    seal.acquire("k").wait(secs(1)).await.unwrap().release().await.unwrap();
    assert!(db.record("k").await.unwrap().get_array("queue").unwrap().is_empty());
    // Fields of somebody else beside ours stay.
    let mut annotated = record(Bson::Array(vec![]));
    annotated.insert("note", "keep me");
    db.records().replace_one(doc! { "_id": "k" }, annotated).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(db.record("k").await.unwrap().get_str("note").unwrap(), "keep me");
}

#[tokio::test]
async fn a_record_with_any_one_field_broken_is_corrupt_and_keeps_what_it_has() {
    let db = TestDatabase::new("mongoseal_fields").await;
    let (key, within): (Key, _) = ("k".parse().unwrap(), secs(5));
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let wait = Some(record::WaitSpec { ttl: 3_600_000, queue_limit: 100 });
    let acquire =
        |lease, patience| Request::Acquire(record::Acquire { terms: terms(lease, 3_600_000), wait: patience });
    // A record with all there can be: revoked once, held, and waited for.
    for request in [
        acquire(LeaseId::random(), None),
        Request::Revoke(record::Revoke {
            by: "ops".into(),
            reason: "drill".into(),
            upto: mongoseal::FencingToken::MAX,
        }),
        acquire(LeaseId::random(), None),
        acquire(LeaseId::random(), wait),
    ] {
        store.apply(&key, request, Deadline::after(store.clock(), within)).await.unwrap();
    }
    let whole = db.record("k").await.unwrap();
    // What would be granted, and what would find nothing to do.
    let another = acquire(LeaseId::random(), wait);

    let mut broken = 0;
    // The tokens of a revocation are for people, and who waits is not looked at: there may be a thousand.
    let unseen = |path: &str| path == "_id" || path.starts_with("history.0.tokens.") || path.starts_with("queue.");
    for path in paths(&whole, "").into_iter().filter(|path| !unseen(path)) {
        for wrong in [Some(Bson::Boolean(true)), Some(Bson::Int64(-1)), None] {
            let unset = || doc! { "$unset": { &path: "" } };
            let update = wrong.as_ref().map_or_else(unset, |wrong| doc! { "$set": { &path: wrong } });
            db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
            db.records().update_one(doc! { "_id": "k" }, update).await.unwrap();
            let before = db.record("k").await.unwrap();
            let answer = store.apply(&key, another.clone(), Deadline::after(store.clock(), within)).await;
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{path} as {wrong:?}: {answer:?}");
            let after = db.record("k").await.unwrap();
            // Whom a broken holder stands in the way of may be queued behind it.
            if path.starts_with("holders.0.") {
                assert_eq!(after.get("holders"), before.get("holders"), "{path} as {wrong:?}");
                assert_eq!(after.get("version"), before.get("version"), "{path} as {wrong:?}");
            } else {
                assert_eq!(after, before, "{path} as {wrong:?}");
            }
            broken += 1;
        }
    }
    assert!(broken > 50, "{broken}");
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    store.apply(&key, another, Deadline::after(store.clock(), within)).await.unwrap();
}

#[tokio::test]
async fn a_broken_entry_of_the_queue_costs_no_more_than_its_time() {
    let db = TestDatabase::new("mongoseal_entries").await;
    let within = secs(5);
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let acquire = |ttl, patience| {
        let lease = LeaseId::random();
        (lease, Request::Acquire(record::Acquire { terms: terms(lease, ttl), wait: patience }))
    };
    let wait = Some(record::WaitSpec { ttl: 300, queue_limit: 100 });
    let whole = {
        let key: Key = "whole".parse().unwrap();
        store.apply(&key, acquire(60_000, None).1, Deadline::after(store.clock(), within)).await.unwrap();
        store.apply(&key, acquire(300, wait).1, Deadline::after(store.clock(), within)).await.unwrap();
        let record = db.record("whole").await.unwrap();
        record.get_array("queue").unwrap()[0].as_document().unwrap().clone()
    };
    let mut broken = Vec::new();
    for field in whole.keys() {
        for wrong in [Some(Bson::Boolean(true)), Some(Bson::MaxKey), Some(Bson::from("x")), None] {
            let key: Key = format!("{field} as {wrong:?}").parse().unwrap();
            let (holder, request) = acquire(60_000, None);
            store.apply(&key, request, Deadline::after(store.clock(), within)).await.unwrap();
            store.apply(&key, acquire(300, wait).1, Deadline::after(store.clock(), within)).await.unwrap();
            let path = format!("queue.0.{field}");
            let unset = || doc! { "$unset": { &path: "" } };
            let update = wrong.as_ref().map_or_else(unset, |wrong| doc! { "$set": { &path: wrong } });
            db.records().update_one(doc! { "_id": key.as_str() }, update).await.unwrap();
            let leave = Request::Leave(record::Leave { lease: holder, acquire_id: terms(holder, 1).acquire_id });
            drop(store.apply(&key, leave, Deadline::after(store.clock(), within)).await);
            broken.push(key);
        }
    }
    tokio::time::sleep(secs(1)).await;
    for key in broken {
        let answer = store.apply(&key, acquire(300, None).1, Deadline::after(store.clock(), within)).await;
        assert!(answer.is_ok(), "{key:?}: {answer:?} {:?}", db.record(key.as_str()).await);
    }
}

#[tokio::test]
async fn an_acquire_of_a_key_under_which_another_program_keeps_a_bare_document_is_corrupt_and_the_document_stays() {
    let db = TestDatabase::new("mongoseal_bare").await;
    let (seal, within) = (db.seal(), secs(5));
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let (lease, token) = (LeaseId::random(), mongoseal::FencingToken::new(1).unwrap());
    for (key, bare) in [("b", doc! { "_id": "b" }), ("c", doc! { "_id": "c", "v": 1 })] {
        db.records().insert_one(&bare).await.unwrap();
        for request in [
            Request::Acquire(record::Acquire { terms: terms(lease, 60_000), wait: None }),
            Request::Refresh(record::Refresh { lease, ttl: 1_000, grace: 0, metadata: None, acquire_id: None }),
            Request::Leave(record::Leave { lease, acquire_id: terms(lease, 1).acquire_id }),
            Request::Release(record::Release { lease, token }),
            Request::Revoke(record::Revoke { by: "a".into(), reason: String::new(), upto: token }),
            Request::Transfer(record::Transfer { lease, token, to: LeaseId::random() }),
            Request::Upgrade(record::Transfer { lease, token, to: LeaseId::random() }),
            Request::Downgrade(record::Downgrade { lease, token, sharing: Sharing::UpTo(2) }),
            Request::PutValue(record::PutValue {
                lease,
                token,
                after: 0,
                write: 1,
                content: None,
                keep: 0,
                releases: false,
            }),
            Request::Prune,
        ] {
            drop(store.apply(&key.parse().unwrap(), request.clone(), Deadline::after(store.clock(), within)).await);
            assert_eq!(db.record(key).await.unwrap(), bare, "{request:?}");
        }
        for answer in [seal.acquire(key).await, seal.acquire(key).wait(secs(5)).await] {
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{bare}: {answer:?}");
            assert_eq!(db.record(key).await.unwrap(), bare);
        }
    }
}

#[tokio::test]
async fn a_history_with_an_entry_that_cannot_be_read_is_corrupt_and_nothing_is_written() {
    let db = TestDatabase::new("mongoseal_history").await;
    let seal = db.seal();
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    for entry in [
        Bson::from(1),
        Bson::Null,
        Bson::Array(vec![]),
        doc! { "by": "ops" }.into(),
        doc! { "by": 1, "reason": "", "at": mongodb::bson::DateTime::now(), "tokens": [] }.into(),
        doc! { "by": "ops", "reason": "", "at": mongodb::bson::DateTime::now(), "tokens": {} }.into(),
    ] {
        let history = doc! { "$set": { "history": [&entry] } };
        db.records().update_one(doc! { "_id": "k" }, history).await.unwrap();
        let before = db.record("k").await.unwrap();
        let answers = [
            seal.acquire("k").await.map(drop),
            seal.acquire("k").wait(secs(1)).await.map(drop),
            lease.refresh().await,
            lease.verify().await,
            seal.revoke("k").await.map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{entry}: {answer:?}");
        }
        assert_eq!(db.record("k").await.unwrap(), before, "{entry}");
    }
    // Of the tokens of a revocation those are left out that are none: they take nothing from anybody.
    let revocation = doc! { "by": "ops", "reason": "", "at": mongodb::bson::DateTime::now(), "tokens": ["x", 7_i64] };
    let history = doc! { "$set": { "history": [revocation] } };
    db.records().update_one(doc! { "_id": "k" }, history).await.unwrap();
    lease.refresh().await.unwrap();
    let inspection = seal.inspect("k").await.unwrap().unwrap();
    assert_eq!(inspection.history[0].tokens, [mongoseal::FencingToken::new(7).unwrap()]);
    lease.release().await.unwrap();
}

/// The paths of all fields and elements of a document.
fn paths(document: &Document, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in document {
        let path = format!("{at}{name}");
        match value {
            Bson::Document(inner) => found.extend(paths(inner, &format!("{path}."))),
            Bson::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    found.push(format!("{path}.{index}"));
                    if let Bson::Document(inner) = element {
                        found.extend(paths(inner, &format!("{path}.{index}.")));
                    }
                }
            }
            _ => {}
        }
        found.push(path);
    }
    found
}

#[tokio::test]
async fn a_wrong_index_is_refused_though_it_could_not_be_looked_at_the_first_time() {
    let db = TestDatabase::new("mongoseal_blip").await;
    let index = IndexOptions::builder().expire_after(secs(0)).build();
    let index = IndexModel::builder().keys(doc! { "expires_at": 1 }).options(index).build();
    db.records().create_index(index).await.unwrap();
    let client = mongodb::Client::with_uri_str(db.set.uri_with("appName=blip")).await.unwrap();
    let blip = db.set.fail_command("blip", &["listIndexes"], doc! { "closeConnection": true }, 1).await;
    invalid(
        Mongoseal::on_shared_client(&client.database("mongoseal_blip")).acquire("k").await,
        "drop it, or set the retention",
    );
    assert_eq!(blip.off().await, 1);
}

#[tokio::test]
async fn a_client_that_keeps_to_the_stable_api_is_served() {
    let db = TestDatabase::new("mongoseal_stable").await;
    let mut options = ClientOptions::parse(db.set.uri()).await.unwrap();
    let api = ServerApi::builder().version(ServerApiVersion::V1).strict(true).build();
    options.server_api = Some(api);
    let client = mongodb::Client::with_options(options).unwrap();
    let lease = Mongoseal::on_shared_client(&client.database("mongoseal_stable")).acquire("k").await.unwrap();
    lease.refresh().await.unwrap();
    lease.verify().await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn troubles_that_pass_are_asked_through() {
    let db = TestDatabase::new("mongoseal_passing").await;
    let client = mongodb::Client::with_uri_str(db.set.uri_with("appName=passing")).await.unwrap();
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_passing"));
    let lease = seal.acquire("k").await.unwrap();
    for code in [11600, 11601, 202, 211, 365, 10107, 91, 112] {
        let trouble = doc! { "errorCode": code, "errmsg": "passing" };
        let trouble = db.set.fail_command("passing", &["findAndModify"], trouble, 1).await;
        lease.refresh().await.unwrap_or_else(|error| panic!("{code}: {error:?}"));
        assert_eq!(trouble.off().await, 1, "{code}");
    }
}

#[test]
fn connecting_outside_of_a_runtime_is_an_error_and_not_a_panic() {
    let mut connecting = std::pin::pin!(Mongoseal::connect("mongodb://localhost/"));
    match connecting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => drop(invalid(result, "no tokio runtime")),
        std::task::Poll::Pending => panic!("it does not wait for a runtime"),
    }
}

#[tokio::test]
async fn a_set_whose_majority_does_not_mean_the_journal_is_refused() {
    let set = ReplicaSet::start(1).await;
    let config = set.admin(0, doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = config.get_document("config").unwrap().clone();
    config.insert("version", config.get_i32("version").unwrap() + 1);
    config.insert("writeConcernMajorityJournalDefault", false);
    set.admin(0, doc! { "replSetReconfig": config }).await.unwrap();
    invalid(Mongoseal::connect(set.uri()).await, "writeConcernMajorityJournalDefault to true");
}
