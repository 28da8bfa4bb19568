//! The test vectors of `protocol/` on MongoDB. `tests/stores/vectors/main.rs` has them on the state machine and the memory store.

#[path = "notation.rs"]
mod notation;
#[path = "replay.rs"]
mod replay;

use std::time::Duration;

use mongoseal::{
    Error, FencingToken, Key, LeaseId,
    mongodb::{
        Collection, Database,
        bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype},
    },
    record::{Record, StoreTime},
    store::{Deadline, HybridTime, MongoStore, Store},
};
use mongoseal_test_support::{TestDatabase, secs};
use serde_json::{Value, json};

use crate::notation::{Notation, Sent, only};

const RETENTION: Duration = secs(24 * 3600);

fn documents() -> Value {
    serde_json::from_str(include_str!("../../../protocol/documents.json")).expect("it is JSON")
}

async fn store(database: &Database) -> (MongoStore, Collection<Document>) {
    let store = MongoStore::new(database, "mongoseal", RETENTION);
    store.prepare(deadline(&store)).await.unwrap();
    (store, database.collection("mongoseal"))
}

fn deadline(store: &MongoStore) -> Deadline {
    Deadline::after(store.clock(), secs(20))
}

/// The document of a record, as `protocol/README.md` says.
fn document(record: &Record) -> Document {
    let mut document = members(&serde_json::to_value(record).unwrap());
    let handed = record.handover.iter();
    let handed = handed.map(|(acquire_id, token)| format!("{acquire_id}={};", token.map_or(0, FencingToken::get)));
    document.extend(doc! { "v": 1, "handover": handed.collect::<String>() });
    let add = |entries: &mut Bson, name: &str| {
        for entry in entries.as_array_mut().unwrap() {
            entry.as_document_mut().unwrap().insert(name, if name == "version" { 0_i64 } else { 60_000 });
        }
    };
    add(document.get_mut("holders").unwrap(), "wait_ttl");
    add(document.get_mut("queue").unwrap(), "version");
    document.get_array_mut("queue").unwrap().reverse();
    document
}

/// The fields that stand for the members of an object in the JSON of a record.
fn members(of: &Value) -> Document {
    let mut document = Document::new();
    for (name, value) in of.as_object().unwrap() {
        match (name.as_str(), value) {
            ("terms" | "hold", _) => document.extend(members(value)),
            ("content", _) => drop(document.insert("content", Bson::try_from(value.clone()).unwrap())),
            ("group", Value::Null) => drop(document.insert("group", "")),
            ("at_least" | "at_most" | "period", Value::Number(number)) if number.as_u64() == Some(0) => {}
            (_, Value::Null) => {}
            ("at_least", _) => drop(document.insert("min_hold", field(name, value))),
            ("at_most", _) => drop(document.insert("max_hold", field(name, value))),
            _ => drop(document.insert(name, field(name, value))),
        }
    }
    document
}

fn field(name: &str, value: &Value) -> Bson {
    match (name, value) {
        ("limit", _) => i32::try_from(value.as_i64().unwrap()).unwrap().into(),
        ("lease", _) => {
            let lease: LeaseId = value.as_str().unwrap().parse().unwrap();
            Binary { subtype: BinarySubtype::Uuid, bytes: lease.to_bytes().to_vec() }.into()
        }
        ("since" | "last_seen" | "expires_at" | "not_after" | "released_at" | "at", _) => {
            DateTime::from_millis(value.as_i64().unwrap()).into()
        }
        (_, Value::Number(number)) => number.as_i64().unwrap().into(),
        (_, Value::Array(values)) => values.iter().map(|value| field("", value)).collect::<Vec<_>>().into(),
        (_, Value::Object(_)) => members(value).into(),
        _ => value.clone().try_into().unwrap(),
    }
}

async fn put(records: &Collection<Document>, key: &Key, document: &Document) {
    let mut document = document.clone();
    document.insert("_id", key.as_str());
    records.replace_one(doc! { "_id": key.as_str() }, document).upsert(true).await.unwrap();
}

#[tokio::test]
async fn the_store_does_what_the_vectors_say() {
    let db = TestDatabase::new("mongoseal_vectors").await;
    let (store, records) = store(&db.database).await;
    replay::replay_all(&store, async |key, record| put(&records, key, &document(record)).await).await;
}

#[tokio::test]
async fn the_document_of_a_record_is_read_and_written_as_the_file_says() {
    let db = TestDatabase::new("mongoseal_documents").await;
    let (store, records) = store(&db.database).await;
    let (defaults, documents) = (&replay::vectors()["defaults"], documents());
    let base: Document = serde_json::from_value(documents["document"].clone()).unwrap();
    let now: Bson = documents["now"].clone().try_into().unwrap();
    let now = StoreTime::from_millis(now.as_datetime().unwrap().timestamp_millis());
    let tick = HybridTime { seconds: HybridTime::EPOCH_SECONDS, ordinal: 0 };
    let record = Notation::at(defaults, now, tick).record(&documents["record"]).unwrap();
    assert_eq!(document(&record), base);
    let key: Key = "k".parse().unwrap();
    put(&records, &key, &base).await;
    assert_eq!(*store.read(&key, deadline(&store)).await.unwrap().unwrap().record, record);
}

#[tokio::test]
async fn a_document_that_is_no_record_is_refused_as_the_file_says_and_stays_as_it_is() {
    let db = TestDatabase::new("mongoseal_foreign").await;
    let (store, records) = store(&db.database).await;
    let (defaults, documents) = (&replay::vectors()["defaults"], documents());
    let notation =
        Notation::at(defaults, StoreTime::default(), HybridTime { seconds: HybridTime::EPOCH_SECONDS, ordinal: 0 });
    let base: Document = serde_json::from_value(documents["document"].clone()).unwrap();
    for (number, case) in documents["cases"].as_array().unwrap().iter().enumerate() {
        let (name, key): (_, Key) = (&case["name"], format!("documents/{number}").parse().unwrap());
        let mut document = base.clone();
        if let Some(set) = case.get("set") {
            let set: Document = serde_json::from_value(set.clone()).unwrap();
            document.extend(set);
        }
        for field in case["unset"].as_array().into_iter().flatten() {
            document.remove(field.as_str().unwrap());
        }
        put(&records, &key, &document).await;
        let stored = records.find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
        let mut answers = vec![("read".to_owned(), store.read(&key, deadline(&store)).await.map(drop))];
        // The version of the file is 101. Where the record is one, none of these changes it.
        let to = if case["error"].is_null() { 1 } else { 1_000 };
        for sent in [
            json!({ "acquire": { "lease": 9 } }),
            json!({ "refresh": { "lease": 9 } }),
            json!({ "raise": { "to": to } }),
        ] {
            let Sent::One(request) = notation.sent(&sent) else { panic!("{sent} is one request") };
            answers.push((only(&sent).0.to_owned(), store.apply(&key, request, deadline(&store)).await.map(drop)));
        }
        for (call, answer) in answers {
            let is_as_said = match case["error"].as_str() {
                None => answer.is_ok(),
                // A request that makes no record finds none here, and its handle reads the document then.
                Some(_) if call == "refresh" && answer.is_ok() => true,
                Some("corrupt") => matches!(answer, Err(Error::Corrupt { .. })),
                Some("invalid") => matches!(answer, Err(Error::Invalid { .. })),
                Some(other) => panic!("{other} is no error"),
            };
            assert!(is_as_said, "{name}: {call}: {answer:?}");
            if let (Err(error), Some(says)) = (answer, case["says"].as_str()) {
                assert!(error.to_string().contains(says), "{name}: {call}: {error}");
            }
        }
        let after = records.find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
        assert_eq!(after, stored, "{name}");
    }
}
