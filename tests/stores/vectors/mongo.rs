//! The test vectors of `protocol/` on MongoDB. `tests/stores/vectors/main.rs` has them on the state machine and the memory store.

#[path = "notation.rs"]
mod notation;
#[path = "replay.rs"]
mod replay;

use std::time::Duration;

use mongoseal::{
    Error, FencingToken, Key, LeaseId, Sharing,
    mongodb::{
        Collection, Database,
        bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype},
    },
    record::{Acquire, CompletedTick, LeaseSpec, PastRun, Raise, Record, Refresh, Request, StoreTime, StoredValue},
    store::{Deadline, HybridTime, MongoStore, Store},
};
use mongoseal_test_support::{TestDatabase, secs};
use serde_json::Value;

use crate::notation::Notation;

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
    let date = |time: StoreTime| Bson::from(DateTime::from_millis(time.millis()));
    let long = |number: u64| Bson::from(i64::try_from(number).unwrap());
    let entry = |terms: &LeaseSpec, rest: Document, optional: [(&str, Option<Bson>); 2]| {
        let metadata: Document =
            terms.metadata.iter().map(|(name, text)| (name.to_owned(), Bson::from(text))).collect();
        let mut entry = doc! {
            "lease": Binary { subtype: BinarySubtype::Uuid, bytes: terms.lease.to_bytes().to_vec() },
            "caller": terms.acquire_id.to_string(),
            "owner": terms.owner.as_str(),
            "limit": i32::try_from(terms.sharing.limit()).unwrap(),
            "ttl": long(terms.ttl),
            "grace": long(terms.grace),
            "group": terms.group.as_ref().map_or("", |group| group.as_str()),
            "metadata": metadata,
        };
        entry.extend(rest);
        let limits = [("min_hold", terms.hold.min.map(long)), ("max_hold", terms.hold.max.map(long))];
        for (name, value) in limits.into_iter().chain(optional) {
            entry.extend(value.map(|value| (name.to_owned(), value)));
        }
        entry
    };
    let holders = record.holders.iter().map(|holder| {
        let rest = doc! {
            "version": long(holder.version.get()), "wait_ttl": 60_000_i64, "refreshes": long(holder.refreshes),
            "since": date(holder.since), "last_seen": date(holder.last_seen), "expires_at": date(holder.expires_at),
        };
        let ends = [("not_after", holder.not_after.map(date)), ("released_at", holder.released_at.map(date))];
        entry(&holder.terms, rest, ends)
    });
    let queue = record.queue.iter().rev().map(|waiter| {
        let rest = doc! {
            "version": 0_i64, "wait_ttl": long(waiter.wait_ttl), "refreshes": long(waiter.refreshes),
            "since": date(waiter.since), "last_seen": date(waiter.last_seen), "expires_at": date(waiter.expires_at),
        };
        entry(&waiter.terms, rest, [("", None), ("", None)])
    });
    let history = record.history.iter().map(|revocation| {
        let tokens: Vec<Bson> = revocation.tokens.iter().map(|token| long(token.get())).collect();
        doc! { "by": &revocation.by, "reason": &revocation.reason, "at": date(revocation.at), "tokens": tokens }
    });
    let handed = record.handover.iter();
    let handed = handed.map(|(acquire_id, token)| format!("{acquire_id}={};", token.map_or(0, FencingToken::get)));
    let mut document = doc! {
        "v": 1,
        "version": long(record.version.get()),
        "holders": holders.collect::<Vec<_>>(),
        "queue": queue.collect::<Vec<_>>(),
        "handover": handed.collect::<String>(),
        "last_seen": date(record.last_seen),
        "expires_at": date(record.expires_at),
        "history": history.collect::<Vec<_>>(),
    };
    if let Some(CompletedTick { tick, token, by, at }) = &record.done {
        let done = doc! { "tick": long(*tick), "token": long(token.get()), "by": by, "at": date(*at) };
        document.insert("done", done);
    }
    let run = |run: &PastRun| {
        let mut entry = doc! {
            "tick": long(run.tick), "token": long(run.token.get()), "by": &run.by, "since": date(run.since),
            "at": date(run.at), "failed": run.is_failed, "note": &run.note,
        };
        entry.extend(run.period.map(|period| ("period".to_owned(), long(period))));
        entry
    };
    if !record.runs.is_empty() {
        document.insert("runs", record.runs.iter().map(run).collect::<Vec<_>>());
    }
    if let Some(StoredValue { content, token, write, at }) = &record.value {
        let mut value = doc! { "token": long(token.get()), "write": long(*write), "at": date(*at) };
        let content = content.as_ref().map(|content| content.parse::<Value>().unwrap().try_into().unwrap());
        value.extend(content.map(|content: Bson| ("content".to_owned(), content)));
        document.insert("value", value);
    }
    document
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
    let documents = documents();
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
        let mut answers = vec![("read", store.read(&key, deadline(&store)).await.map(drop))];
        // The version of the file is 101.
        let to = if case["error"].is_null() { 1 } else { 1_000 };
        for (call, request) in requests(to) {
            answers.push((call, store.apply(&key, request, deadline(&store)).await.map(drop)));
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

/// Requests that change nothing in the record of the file, if the raise is to a token below its version.
fn requests(to: u64) -> [(&'static str, Request); 3] {
    let lease = LeaseId::from_bytes([9; 16]);
    let terms = LeaseSpec {
        lease,
        acquire_id: "0000000000000009/1".parse().unwrap(),
        owner: "host/9".parse().unwrap(),
        sharing: Sharing::Exclusive,
        ttl: 60_000,
        grace: 0,
        group: None,
        metadata: mongoseal::Metadata::default(),
        hold: mongoseal::record::HoldLimits::default(),
    };
    [
        ("acquire", Request::Acquire(Acquire { terms, wait: None })),
        ("refresh", Request::Refresh(Refresh { lease, ttl: 60_000, grace: 0, metadata: None, acquire_id: None })),
        ("raise", Request::Raise(Raise { to: FencingToken::new(to).unwrap() })),
    ]
}
