//! Errors name what is wrong with a deployment or a record and what to do, and no lease is lost by them.

use mongodb::{
    IndexModel,
    bson::{Bson, DateTime, Document, doc},
    options::{ClientOptions, IndexOptions, ServerApi, ServerApiVersion},
};
use mongoseal::{
    Error, Key, LeaseId, Mongoseal, Sharing,
    record::{self, HoldLimits, LeaseSpec, Outcome, Request},
    store::{Applied, Deadline, MongoStore, Store},
};
use mongoseal_test_support::Standalone;

use crate::{TestDatabase, secs, terms};

/// A minimum and a maximum hold, so that an entry has all fields.
const HOLD: HoldLimits = HoldLimits { min: Some(1), max: Some(3_600_000) };

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, says: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{error:?}");
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
async fn a_name_that_cannot_name_a_collection_is_refused() {
    let builder = Mongoseal::builder().collection("a$b");
    invalid(builder.connect("mongodb://localhost/").await, "cannot name a collection");
}

#[tokio::test]
async fn a_login_that_needs_a_feature_which_is_off_is_refused_with_its_name() {
    let db = TestDatabase::new("mongoseal_features").await;
    for cloud in ["azure", "gcp"] {
        let properties = format!("authMechanismProperties=ENVIRONMENT:{cloud},TOKEN_RESOURCE:mongodb%3A%2F%2Fcluster");
        let uri = db.set.uri_with(&format!("authMechanism=MONGODB-OIDC&{properties}"));
        invalid(Mongoseal::connect(uri).await, &format!("needs the cargo feature `{cloud}-oidc`"));
    }
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
    // The settings can follow the index.
    db.records().create_index(other(Some(after(60, "mine")))).await.unwrap();
    drop(db.build(Mongoseal::builder().retention(secs(60))).acquire("k2").await.unwrap());
}

#[tokio::test]
async fn a_record_with_any_one_field_broken_is_corrupt_and_keeps_what_it_has() {
    let db = TestDatabase::new("mongoseal_fields").await;
    let (key, within): (Key, _) = ("k".parse().unwrap(), secs(5));
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let wait = Some(record::WaitSpec { ttl: 3_600_000, queue_limit: 100 });
    let acquire = |lease, patience| {
        let terms = LeaseSpec { hold: HOLD, ..terms(lease, 3_600_000) };
        Request::Acquire(record::Acquire { terms, wait: patience })
    };
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

    // The tokens of a revocation are for people, and who waits is not looked at: there may be a thousand.
    let unseen = |path: &str| path == "_id" || path.starts_with("history.0.tokens.") || path.starts_with("queue.");
    let paths: Vec<String> = paths(&whole, "").into_iter().filter(|path| !unseen(path)).collect();
    assert!(paths.len() > 20, "{paths:?}");
    let mut cases = Vec::new();
    for path in &paths {
        cases.extend([Bson::Boolean(true), Bson::Int64(-1), Bson::Null].map(|wrong| (path.as_str(), Some(wrong))));
        if !["queue", "history.0.tokens"].contains(&path.as_str()) {
            cases.push((path, Some(Bson::Array(vec![Bson::Null]))));
        }
        if !path.ends_with("_hold") && !path.ends_with("not_after") {
            cases.push((path, None));
        }
    }
    let numbers = [("v", 1_i64.into()), ("v", 1.0.into()), ("v", 0.into()), ("version", 7.into())];
    let tokens = [("version", 0_i64.into()), ("version", ((1_i64 << 53) - 1).into())];
    cases.extend(numbers.into_iter().chain(tokens).map(|(path, wrong)| (path, Some(wrong))));
    for (path, wrong) in cases {
        db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
        put(&db, "k", path, wrong.as_ref()).await;
        let before = db.record("k").await.unwrap();
        let acquired = store.apply(&key, another.clone(), Deadline::after(store.clock(), within)).await.map(drop);
        let read = store.read(&key, Deadline::after(store.clock(), within)).await.map(drop);
        for answer in [acquired, read] {
            let error = answer.expect_err(path);
            assert!(matches!(error, Error::Corrupt { .. }), "{path} as {wrong:?}: {error:?}");
            assert!(error.to_string().contains("choose another key"), "{error}");
        }
        let after = db.record("k").await.unwrap();
        // Whom a broken holder stands in the way of may be queued behind it.
        if path.starts_with("holders.0.") {
            assert_eq!(after.get("holders"), before.get("holders"), "{path} as {wrong:?}");
            assert_eq!(after.get("version"), before.get("version"), "{path} as {wrong:?}");
        } else {
            assert_eq!(after, before, "{path} as {wrong:?}");
        }
    }
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    store.apply(&key, another, Deadline::after(store.clock(), within)).await.unwrap();
}

/// For an entry that is no waiter, an expression yields `null`, which must not become the record.
#[tokio::test]
async fn a_broken_entry_of_the_queue_costs_no_more_than_its_time() {
    let db = TestDatabase::new("mongoseal_entries").await;
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let send = async |key: &Key, request| store.apply(key, request, Deadline::after(store.clock(), secs(5))).await;
    let acquire = |terms: &LeaseSpec, wait| Request::Acquire(record::Acquire { terms: terms.clone(), wait });
    // A held key with one that waits.
    let waited_for = async |key: &Key| {
        let holder = terms(LeaseId::random(), 60_000);
        let waiter = LeaseSpec { hold: HOLD, ..terms(LeaseId::random(), 300) };
        send(key, acquire(&holder, None)).await.unwrap();
        send(key, acquire(&waiter, Some(record::WaitSpec { ttl: 300, queue_limit: 100 }))).await.unwrap();
        holder
    };
    waited_for(&"whole".parse().unwrap()).await;
    let whole = db.record("whole").await.unwrap().get_array("queue").unwrap()[0].as_document().unwrap().clone();
    let wrong = [Bson::Boolean(true), Bson::MaxKey, "x".into(), DateTime::from_millis(1).into(), doc! {}.into()];
    let mut broken = Vec::new();
    for field in whole.keys() {
        for wrong in wrong.iter().map(Some).chain([None]) {
            let key: Key = format!("{field} as {wrong:?}").parse().unwrap();
            let holder = waited_for(&key).await;
            put(&db, key.as_str(), &format!("queue.0.{field}"), wrong).await;
            broken.push((key, Request::Leave(record::Leave { lease: holder.lease, acquire_id: holder.acquire_id })));
        }
    }
    // Until its time is over, a broken entry may stand in the way.
    for (key, leave) in &broken {
        drop(send(key, leave.clone()).await);
    }
    tokio::time::sleep(secs(1)).await;
    for (key, leave) in broken {
        drop(send(&key, leave).await);
        let answer = send(&key, acquire(&terms(LeaseId::random(), 300), None)).await;
        let is_granted = matches!(&answer, Ok(Applied { outcome: Outcome::Granted { .. }, .. }));
        assert!(is_granted, "{key:?}: {answer:?} {:?}", db.record(key.as_str()).await);
    }
}

/// To the pipeline, an existing document `{ _id }` looks like the `{ _id }` that an upsert inserts.
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
            Request::Raise(record::Raise { to: mongoseal::FencingToken::new(1_000).unwrap() }),
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

/// A decoder that skips such an entry hides it, so the pipeline checks them as well.
#[tokio::test]
async fn a_history_with_an_entry_that_cannot_be_read_is_corrupt_and_nothing_is_written() {
    let db = TestDatabase::new("mongoseal_history").await;
    let seal = db.seal();
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    for entry in [Bson::from(1), doc! { "by": "ops" }.into()] {
        put(&db, "k", "history", Some(&Bson::from([entry.clone()].to_vec()))).await;
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
    let revocation = doc! { "by": "ops", "reason": "", "at": DateTime::now(), "tokens": ["x", 7_i64] };
    put(&db, "k", "history", Some(&Bson::from(vec![revocation]))).await;
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
        let elements = value.as_array().into_iter().flatten().cloned();
        let elements: Document = elements.enumerate().map(|(index, element)| (index.to_string(), element)).collect();
        found.extend(paths(value.as_document().unwrap_or(&elements), &format!("{path}.")));
        found.push(path);
    }
    found
}

/// Sets a field of the record of a key, or removes it.
pub(crate) async fn put(db: &TestDatabase, key: &str, path: &str, value: Option<&Bson>) {
    let update = value.map_or_else(|| doc! { "$unset": { path: "" } }, |value| doc! { "$set": { path: value } });
    db.records().update_one(doc! { "_id": key }, update).await.unwrap();
}

#[tokio::test]
async fn a_wrong_index_is_refused_though_it_could_not_be_looked_at_the_first_time() {
    let db = TestDatabase::new("mongoseal_blip").await;
    let index = IndexOptions::builder().expire_after(secs(0)).build();
    let index = IndexModel::builder().keys(doc! { "expires_at": 1 }).options(index).build();
    db.records().create_index(index).await.unwrap();
    let client = mongodb::Client::with_uri_str(db.set.uri_with("appName=blip")).await.unwrap();
    let blip = db.set.fail_command("blip", &["listIndexes"], doc! { "closeConnection": true }, 1).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_blip"));
    invalid(seal.acquire("k").await, "drop it, or set the retention");
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

#[test]
fn connecting_outside_of_a_runtime_is_an_error_and_not_a_panic() {
    let mut connecting = std::pin::pin!(Mongoseal::connect("mongodb://localhost/"));
    match connecting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => invalid(result, "no tokio runtime"),
        std::task::Poll::Pending => panic!("it does not wait for a runtime"),
    }
}
