//! Inspecting, listing and purging records on a real server.

use std::{mem::forget, time::Duration};

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongoseal::{
    Deadline, Error, Key, LeaseId, Leases, ListedLease, Mongoseal, Sharing,
    record::{Acquire, Filter, LeaseSpec, Position, Record, Request, SharingFilter, StoreTime},
    store::{MemoryStore, MongoStore, Snapshot, Store},
};

use crate::{GRACE, TestDatabase, by_length, millis, noting_client, secs, terms};

async fn all(leases: Leases) -> Vec<ListedLease> {
    let (mut leases, mut listed) = (leases.await.unwrap(), Vec::new());
    while let Some(lease) = leases.next().await {
        listed.push(lease.unwrap());
    }
    listed
}

async fn keys(leases: Leases) -> Vec<String> {
    all(leases).await.into_iter().map(|lease| lease.key.to_string()).collect()
}

pub(crate) fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn acquire(owner: &str, limit: u32, ttl: Duration) -> Request {
    let terms = LeaseSpec {
        owner: owner.parse().unwrap(),
        sharing: Sharing::from_limit(limit),
        group: (limit == 0).then(|| owner.parse().unwrap()),
        ..terms(LeaseId::random(), ttl.as_millis().try_into().unwrap())
    };
    Request::Acquire(Acquire { terms, wait: None })
}

pub(crate) fn store(db: &TestDatabase, retention: Duration) -> MongoStore {
    MongoStore::new(&db.database, "mongoseal", retention)
}

pub(crate) async fn seen(store: &dyn Store, of: &str) -> (Record, StoreTime) {
    match store.read(&key(of), Deadline::after(store.clock(), secs(5))).await.unwrap() {
        Some(Snapshot { record, at }) => (*record, at.now),
        None => panic!("{of} has no record"),
    }
}

#[tokio::test]
async fn an_inspection_is_one_linearizable_read_and_a_list_is_one_aggregation() {
    let db = TestDatabase::new("mongoseal_inspected").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_inspected"));
    assert_eq!(seal.inspect("k").await.unwrap(), None);
    // By another handle: one that holds a lease listens.
    let holder = db.build(Mongoseal::builder().owner("me"));
    let lease = holder.acquire("k").ttl(secs(30)).metadata("build", "1.4").without_refresh().await.unwrap();
    let names = || sent.take_names();
    names();

    let seen = seal.inspect("k").await.unwrap().unwrap();
    assert_eq!(names(), ["find"]);
    let [holder] = seen.holders.as_slice() else { panic!("{seen:?}") };
    assert_eq!((holder.token, seen.version, holder.sharing), (lease.token(), lease.token(), Sharing::Exclusive));
    assert_eq!((holder.owner.as_str(), holder.metadata.get("build")), ("me", Some("1.4")));
    let remaining = holder.remaining.unwrap();
    assert!(remaining > secs(20) && remaining <= secs(30) + GRACE, "{remaining:?}");
    assert_eq!(
        seen.read_at.since(holder.since),
        (secs(30) + GRACE).checked_sub(remaining).unwrap(),
        "by the server's clock"
    );

    let listed = all(seal.leases()).await;
    assert_eq!(names(), ["aggregate"]);
    let [only] = listed.as_slice() else { panic!("{listed:?}") };
    let elapsed = only.read_at.since(seen.read_at);
    assert_eq!(only.holder.remaining, remaining.checked_sub(elapsed));
    assert_eq!((&only.key, &only.holder.owner, only.holder.since), (lease.key(), &holder.owner, holder.since));
    assert_eq!((&only.holder.metadata, only.holder.token), (&holder.metadata, lease.token()));
}

/// Puts a copy of all records into memory, as old as they are.
async fn copied(store: &MongoStore, keys: &[String]) -> (MemoryStore, i64) {
    let memory = MemoryStore::default();
    // What a clock reads in memory, by a record that was made there.
    memory.apply(&key("clock"), acquire("clock", 0, secs(1)), Deadline::after(memory.clock(), secs(1))).await.unwrap();
    let (_, memory_now) = seen(&memory, "clock").await;
    memory.remove(&key("clock"));
    let (_, now) = seen(store, &keys[0]).await;
    let ahead = now.millis() - memory_now.millis();
    for of in keys {
        let (mut record, _) = seen(store, of).await;
        let shift = |time: &mut StoreTime| *time = shifted(*time, ahead);
        shift(&mut record.last_seen);
        shift(&mut record.expires_at);
        for holder in &mut record.holders {
            shift(&mut holder.since);
            shift(&mut holder.last_seen);
            shift(&mut holder.expires_at);
        }
        memory.restore(key(of), record);
    }
    (memory, ahead)
}

fn shifted(time: StoreTime, back: i64) -> StoreTime {
    StoreTime::from_millis(time.millis() - back)
}

/// A selection by chance, of what the leases have.
fn any_selection(leases: &[(String, StoreTime)]) -> Filter {
    fn maybe<T>(value: impl FnOnce() -> T) -> Option<T> {
        (fastrand::u8(..) < 60).then(value)
    }
    let some = || &leases[fastrand::usize(..leases.len())];
    let mut selection = Filter::default();
    selection.key = maybe(|| key(&some().0));
    selection.prefix = maybe(|| some().0.chars().take(fastrand::usize(..4)).collect()).unwrap_or_default();
    selection.owner = maybe(|| format!("owner-{}", fastrand::u8(..4)).parse().unwrap());
    selection.group = maybe(|| format!("owner-{}", fastrand::u8(..4)).parse().unwrap());
    selection.sharing = maybe(|| if fastrand::bool() { SharingFilter::Exclusive } else { SharingFilter::Shared });
    selection.since_after = maybe(|| some().1);
    selection.since_before = maybe(|| some().1);
    // Far from what is left of any, which grows less while this runs.
    let bound = || fastrand::choice([secs(0), secs(150), secs(450), secs(750), Duration::MAX]).unwrap();
    selection.remaining_at_least = maybe(bound);
    selection.remaining_less_than = maybe(bound);
    selection.with_expired = fastrand::bool();
    selection
}

/// All pages of a list, and how many there were; without what depends on the moment.
async fn pages(
    store: &dyn Store,
    selection: &Filter,
    most: u32,
    ahead: i64,
) -> (Vec<impl PartialEq + std::fmt::Debug>, usize) {
    let (mut after, mut listed, mut pages): (Option<Position>, _, _) = (None, Vec::new(), 0);
    loop {
        let page = store.list(selection, after, most, Deadline::after(store.clock(), secs(5))).await.unwrap();
        assert!(page.leases.len() <= usize::try_from(most).unwrap());
        pages += 1;
        listed.extend(page.leases.into_iter().map(|lease| {
            let holding = lease.holder;
            let expired = holding.is_expired();
            let (since, last_seen) = (shifted(holding.since, ahead), shifted(holding.last_seen, ahead));
            let forever = holding.remaining.is_none();
            (lease.key, holding.owner, holding.token, holding.sharing, since, last_seen, expired, forever)
        }));
        let Some(next) = page.next else { return (listed, pages) };
        after = Some(next);
    }
}

#[tokio::test]
async fn both_stores_give_equal_lists_for_random_selections() {
    let db = TestDatabase::new("mongoseal_selections").await;
    let store = store(&db, secs(24 * 3600));
    let mut leases = Vec::new();
    for number in 0..40 {
        let of = format!("{}/{}", fastrand::choice(["a", "b", "bc", "ключ"]).unwrap(), number / 2);
        let ttl = fastrand::choice([millis(10), secs(300), secs(600), secs(900), secs(500 * 24 * 3600)]).unwrap();
        let owner = format!("owner-{}", fastrand::u8(..4));
        store
            .apply(&key(&of), acquire(&owner, fastrand::u32(..3), ttl), Deadline::after(store.clock(), secs(5)))
            .await
            .unwrap();
        let (record, now) = seen(&store, &of).await;
        leases.push((of, record.holders.last().map_or(now, |holder| holder.since)));
    }
    tokio::time::sleep(millis(20)).await;
    let names: Vec<_> = leases.iter().map(|(of, _)| of.clone()).collect();
    let (memory, ahead) = copied(&store, &names).await;

    let (mut found, mut several_pages) = (0, 0);
    for _ in 0..by_length(60, 200) {
        let selection = any_selection(&leases);
        let most = fastrand::u32(1..=12);
        let mut own = selection.clone();
        own.since_after = own.since_after.map(|time| shifted(time, ahead));
        own.since_before = own.since_before.map(|time| shifted(time, ahead));
        let (in_memory, _) = pages(&memory, &own, most, 0).await;
        let (on_server, count) = pages(&store, &selection, most, ahead).await;
        assert_eq!(on_server, in_memory, "{selection:?}, {most} at once");
        found += on_server.len();
        several_pages += usize::from(count > 1);
    }
    println!("{found} leases found, {several_pages} lists in several pages");
    assert!(found > 0 && several_pages > 0, "{found} {several_pages}");
}

/// Puts copies of a record with one holder under other keys, which are its key and a number.
async fn copy_records(db: &TestDatabase, of: &str, count: usize) {
    let whole = db.record(of).await.unwrap();
    let copies = (0..count).map(|number| {
        let mut copy = whole.clone();
        copy.insert("_id", format!("{of}/{number:05}"));
        // The server reads 4 MB of records at a time, however short the page is.
        let holder = copy.get_array_mut("holders").unwrap()[0].as_document_mut().unwrap();
        holder.insert("metadata", doc! { "padding": "x".repeat(3_000) });
        copy
    });
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
    assert_eq!(all(seal.leases().with_expired().remaining_less_than(millis(1))).await.len(), 6_001);
    let (finding, pages) = examined(&db).await;
    assert!(pages > 5, "{pages}");
    // Pages that each read all records behind their key read 42,000.
    assert!(finding < 25_000, "{pages} pages of 12,002 records examined {finding} documents");
}

/// A document of ours with a holder, and what somebody else made of it.
async fn strangers(db: &TestDatabase) -> Vec<Document> {
    let whole = db.record("lease").await.unwrap();
    let mut number = 0;
    let mut like = |change: &dyn Fn(&mut Document, &mut Document)| {
        number += 1;
        let mut document = whole.clone();
        document.insert("_id", format!("strange-{number}"));
        let mut holder = document.get_array("holders").unwrap()[0].as_document().unwrap().clone();
        change(&mut document, &mut holder);
        if document.get_array("holders").is_ok_and(|holders| holders.len() == 1) {
            document.insert("holders", vec![holder]);
        }
        document
    };
    vec![
        doc! { "_id": 7, "holders": "me" },
        doc! { "_id": "locked", "locked": true },
        like(&|document, _| drop(document.insert("_id", 7.5))),
        like(&|document, _| drop(document.insert("_id", ""))),
        like(&|document, _| drop(document.insert("_id", "k".repeat(2_000)))),
        like(&|document, _| drop(document.remove("v"))),
        like(&|document, _| drop(document.insert("v", 1_i64))),
        like(&|document, _| drop(document.insert("v", vec![1]))),
        like(&|document, _| drop(document.insert("v", 2))),
        like(&|document, _| drop(document.insert("version", 7))),
        like(&|document, _| drop(document.insert("version", vec![7_i64]))),
        like(&|document, _| drop(document.insert("queue", doc! {}))),
        like(&|document, _| drop(document.insert("history", 1))),
        like(&|document, _| drop(document.insert("history", vec![1]))),
        like(&|document, _| drop(document.insert("holders", Bson::Null))),
        like(&|document, _| drop(document.insert("holders", vec![Bson::from(1), vec![Bson::from(2)].into()]))),
        like(&|_, holder| drop(holder.remove("lease"))),
        like(&|_, holder| drop(holder.insert("expires_at", "tomorrow"))),
        like(&|_, holder| drop(holder.insert("limit", -1))),
        like(&|_, holder| drop(holder.insert("version", vec![7_i64]))),
        like(&|_, holder| drop(holder.insert("version", i64::MAX))),
        like(&|_, holder| drop(holder.insert("owner", ""))),
        like(&|_, holder| drop(holder.insert("metadata", doc! { "a": { "b": 1 } }))),
        like(&|_, holder| drop(holder.insert("since", 5))),
    ]
}

#[tokio::test]
async fn documents_of_somebody_else_are_left_out_of_lists_and_left_by_purges() {
    let db = TestDatabase::new("mongoseal_strangers").await;
    let seal = db.seal();
    let lease = seal.acquire("lease").ttl(secs(60)).await.unwrap();
    let strangers = strangers(&db).await;
    db.records().insert_many(&strangers).await.unwrap();
    // Dates at the ends of time are dates.
    let mut extreme = db.record("lease").await.unwrap();
    for (of, millis) in [("first", i64::MIN), ("last", i64::MAX)] {
        extreme.insert("_id", of);
        let mut holder = extreme.get_array("holders").unwrap()[0].as_document().unwrap().clone();
        holder.insert("expires_at", DateTime::from_millis(millis));
        extreme.insert("holders", vec![holder]);
        db.records().insert_one(&extreme).await.unwrap();
    }
    for leases in [seal.leases(), seal.leases().remaining_at_least(secs(1)).remaining_less_than(Duration::MAX)] {
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
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_full_reply"));
    seal.prepare().await.unwrap();
    // By another handle: one that holds a lease listens.
    let _lease = db.seal().acquire("lease").ttl(secs(60)).without_refresh().await.unwrap();
    let mut large = db.record("lease").await.unwrap();
    let mut holder = large.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    holder.insert("metadata", doc! { "large": "x".repeat(1 << 20) });
    holder.insert("version", 1_i64);
    large.insert("holders", vec![holder]);
    for number in 0..20 {
        large.insert("_id", format!("{number}"));
        db.records().insert_one(&large).await.unwrap();
    }
    sent.take();
    assert_eq!(keys(seal.leases()).await, ["lease"]);
    let names = sent.take_names();
    assert_eq!(names, ["aggregate", "killCursors", "aggregate"]);
}
