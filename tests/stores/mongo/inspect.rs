//! Lists and purges: what they read, and the documents of others that they leave out.

use std::{mem::forget, time::Duration};

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongoseal::{Error, action::Leases, inspect::ListedLease};

use crate::{TestDatabase, bad_input::put, millis, noting_seal, secs};

async fn all(leases: Leases) -> Vec<ListedLease> {
    leases.await.unwrap().collect().await.unwrap()
}

/// A copy of a record under another key, whose only holder is changed.
fn like(record: &Document, id: impl Into<Bson>, change: impl FnOnce(&mut Document)) -> Document {
    let mut copy = record.clone();
    copy.insert("_id", id);
    change(copy.get_array_mut("holders").unwrap()[0].as_document_mut().unwrap());
    copy
}

/// Puts copies of a record with one holder under other keys, which are its key and a number.
async fn copy_records(db: &TestDatabase, of: &str, count: usize) {
    let whole = db.record(of).await.unwrap();
    // The server reads 4 MB of records at a time, however short the page is.
    let pad = |holder: &mut Document| drop(holder.insert("metadata", doc! { "padding": "x".repeat(3_000) }));
    let copies = (0..count).map(|number| like(&whole, format!("{of}/{number:05}"), pad));
    db.records().insert_many(copies).await.unwrap();
}

/// How many documents the server has examined for aggregations since its profiler was switched on for this database,
/// and how many aggregations it has run.
async fn examined(db: &TestDatabase) -> (i64, usize) {
    let profile = db.database.collection::<Document>("system.profile");
    let mut entries = profile.find(doc! { "command.aggregate": "mongoseal" }).await.unwrap();
    let (mut examined, mut count) = (0, 0);
    while entries.advance().await.unwrap() {
        let entry = entries.deserialize_current().unwrap();
        examined +=
            entry.get("docsExamined").and_then(|number| number.as_i64().or(number.as_i32().map(i64::from))).unwrap();
        count += 1;
    }
    (examined, count)
}

/// In the order of tokens, each page would read all keys.
#[tokio::test]
#[ignore = "night: lists 12,000 records"]
async fn a_list_and_a_purge_read_each_record_a_few_times_at_most_however_many_pages_they_have() {
    let db = TestDatabase::new("mongoseal_pages").await;
    let seal = db.seal();
    forget(seal.acquire("held").ttl(secs(600)).without_refresh().await.unwrap());
    copy_records(&db, "held", 6_000).await;
    db.database.run_command(doc! { "profile": 2 }).await.unwrap();
    assert_eq!(all(seal.leases()).await.len(), 6_001);
    let (listing, pages) = examined(&db).await;
    db.database.run_command(doc! { "profile": 0 }).await.unwrap();
    assert!(pages > 3, "{pages}");
    // Pages that each read all records behind their key read 17,000.
    assert!(listing < 13_000, "{pages} pages of a list of 6,001 leases examined {listing} documents");

    forget(seal.acquire("over").ttl(millis(500)).without_refresh().await.unwrap());
    copy_records(&db, "over", 6_000).await;
    tokio::time::sleep(millis(600)).await;
    db.database.collection::<Document>("system.profile").drop().await.unwrap();
    db.database.run_command(doc! { "profile": 2 }).await.unwrap();
    // What a purge lists. Its removals would push the pages out of the profile, which has a bound.
    assert_eq!(all(seal.leases().with_expired().free_in_less_than(millis(1))).await.len(), 6_001);
    let (finding, pages) = examined(&db).await;
    assert!(pages > 5, "{pages}");
    // Pages that each read all records behind their key read 42,000.
    assert!(finding < 25_000, "{pages} pages of 12,002 records examined {finding} documents");
}

#[tokio::test]
async fn documents_of_somebody_else_are_left_out_of_lists_and_left_by_purges() {
    let db = TestDatabase::new("mongoseal_strangers").await;
    let seal = db.seal();
    let lease = seal.acquire("lease").ttl(secs(60)).await.unwrap();
    let whole = db.record("lease").await.unwrap();
    let ids = [Bson::from(7.5), "".into(), "k".repeat(2_000).into()].map(|id| like(&whole, id, |_| {}));
    let others = [doc! { "_id": 7, "holders": "me" }, doc! { "_id": "locked", "locked": true }];
    let mut strangers: Vec<Document> = ids.into_iter().chain(others).collect();
    db.records().insert_many(&strangers).await.unwrap();
    let broken: [(&str, Option<Bson>); 19] = [
        ("v", None),
        ("v", Some(1_i64.into())),
        ("v", Some(vec![1].into())),
        ("v", Some(2.into())),
        ("version", Some(7.into())),
        ("version", Some(vec![7_i64].into())),
        ("queue", Some(doc! {}.into())),
        ("history", Some(1.into())),
        ("history", Some(vec![1].into())),
        ("holders", Some(Bson::Null)),
        ("holders", Some(vec![Bson::from(1), vec![Bson::from(2)].into()].into())),
        ("holders.0.lease", None),
        ("holders.0.expires_at", Some("tomorrow".into())),
        ("holders.0.limit", Some((-1).into())),
        ("holders.0.version", Some(vec![7_i64].into())),
        ("holders.0.version", Some(i64::MAX.into())),
        ("holders.0.owner", Some("".into())),
        ("holders.0.metadata", Some(doc! { "a": { "b": 1 } }.into())),
        ("holders.0.since", Some(5.into())),
    ];
    for (number, (path, value)) in broken.iter().enumerate() {
        let key = format!("broken-{number}");
        db.records().insert_one(like(&whole, key.as_str(), |_| {})).await.unwrap();
        put(&db, &key, path, value.as_ref()).await;
        strangers.extend(db.record(&key).await);
    }
    // Dates at the ends of time are dates.
    for (of, millis) in [("first", i64::MIN), ("last", i64::MAX)] {
        let extreme = like(&whole, of, |holder| drop(holder.insert("expires_at", DateTime::from_millis(millis))));
        db.records().insert_one(extreme).await.unwrap();
    }
    for leases in [seal.leases(), seal.leases().free_in_at_least(secs(1)).free_in_less_than(Duration::MAX)] {
        let listed = all(leases).await;
        assert!(listed.iter().all(|lease| ["last", "lease"].contains(&lease.key.as_str())), "{listed:?}");
        assert!(listed.iter().any(|listed| listed.key == *lease.key()), "{listed:?}");
    }
    assert!(matches!(seal.inspect("locked").await, Err(Error::Corrupt { .. })));

    let purged = seal.purge().await.unwrap();
    let gone: Vec<_> = purged.iter().map(|lease| lease.key.as_str()).collect();
    assert_eq!(gone, ["first"]);
    for stranger in strangers {
        let id = stranger.get("_id").unwrap();
        assert_eq!(db.records().find_one(doc! { "_id": id }).await.unwrap(), Some(stranger));
    }
    lease.verify().await.unwrap();
}

#[tokio::test]
async fn a_list_goes_on_where_a_reply_was_full() {
    let db = TestDatabase::new("mongoseal_full_reply").await;
    let (seal, sent) = noting_seal(&db, "appName=noting").await;
    // By another handle: one that holds a lease listens.
    let _lease = db.seal().acquire("lease").ttl(secs(60)).without_refresh().await.unwrap();
    let whole = db.record("lease").await.unwrap();
    for number in 0..20 {
        let large = like(&whole, format!("{number}"), |holder| {
            holder.insert("metadata", doc! { "large": "x".repeat(1 << 20) });
            holder.insert("version", 1_i64);
        });
        db.records().insert_one(large).await.unwrap();
    }
    sent.take();
    let listed = all(seal.leases()).await;
    assert_eq!((listed.len(), listed[0].key.as_str()), (1, "lease"));
    assert_eq!(sent.take_names(), ["aggregate", "killCursors", "aggregate"]);
}
