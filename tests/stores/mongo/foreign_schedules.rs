//! Fields of schedules and of hold limits that another program has written: an error names the field, and nothing is
//! lost.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongoseal::{
    Deadline, Error, Key, LeaseId, Mongoseal, OnceOutcome, Result, Tick, TickLease,
    record::{self, HoldLimits, LeaseSpec, Outcome, Request},
    store::{Applied, MongoStore, Store},
};

use crate::{TestDatabase, eventually, millis, secs, terms};

/// Sets a field of the record, or removes it.
async fn put(db: &TestDatabase, path: &str, value: Option<&Bson>) {
    let update = value.map_or_else(|| doc! { "$unset": { path: "" } }, |value| doc! { "$set": { path: value } });
    db.records().update_one(doc! { "_id": "k" }, update).await.unwrap();
}

fn corrupt<T: std::fmt::Debug>(of: &str, result: &Result<T>) {
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{of}: {result:?}");
}

async fn nothing(_: &TickLease) -> Result<()> {
    Ok(())
}

/// Runs the tick 6, whose work must not run.
async fn run_no_work(seal: &Mongoseal) -> Result<OnceOutcome<()>> {
    seal.once("k", Tick::number(6)).run(async |_| panic!("the work runs")).await
}

#[tokio::test]
async fn a_completed_tick_that_cannot_be_read_is_corrupt_and_stays_as_it_is() {
    let db = TestDatabase::new("mongoseal_foreign_done").await;
    let seal = db.seal();
    seal.once("k", Tick::number(5)).run(nothing).await.unwrap();
    let whole = db.record("k").await.unwrap();
    let wrong = [true.into(), "5".into(), Bson::Null, Bson::Array(vec![]), doc! {}.into(), 5_i64.into()];
    let fields = ["tick", "token", "by", "at"].map(|name| format!("done.{name}"));
    let mut cases: Vec<(&str, Option<Bson>)> = wrong.iter().map(|wrong| ("done", Some(wrong.clone()))).collect();
    for field in &fields {
        cases.push((field, None));
        cases.extend(
            [Bson::from(true), Bson::Null, 5.0.into(), vec![5_i64].into()].map(|wrong| (field.as_str(), Some(wrong))),
        );
    }
    for (path, wrong) in cases {
        let case = format!("{path} as {wrong:?}");
        db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
        put(&db, path, wrong.as_ref()).await;
        let before = db.record("k").await.unwrap();
        corrupt(&case, &run_no_work(&seal).await);
        corrupt(&case, &seal.rewind_tick("k", 1).await);
        corrupt(&case, &seal.inspect("k").await);
        assert_eq!(db.record("k").await.unwrap(), before, "{case}");
        // Leases do not read it.
        let lease = seal.acquire("k").await.unwrap();
        lease.refresh().await.unwrap();
        lease.release().await.unwrap();
        assert_eq!(db.record("k").await.unwrap().get("done"), before.get("done"), "{case}");
    }
    // Of the right type, and no tick or token.
    for (path, wrong) in [("done.tick", -1_i64), ("done.token", -1), ("done.token", 0)] {
        db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
        put(&db, path, Some(&wrong.into())).await;
        corrupt(path, &run_no_work(&seal).await);
        corrupt(path, &seal.inspect("k").await);
    }
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    assert!(matches!(seal.once("k", Tick::number(5)).run(nothing).await, Ok(OnceOutcome::AlreadyDone { .. })));
}

#[tokio::test]
async fn a_completion_of_a_record_that_was_broken_meanwhile_is_corrupt_and_writes_nothing() {
    let db = TestDatabase::new("mongoseal_broken_done").await;
    let seal = db.seal();
    let broken = Bson::from("x");
    let ended = seal.once("k", Tick::number(1)).ttl(millis(500)).grace(Duration::ZERO).run(async |_| -> Result<()> {
        put(&db, "done", Some(&broken)).await;
        Ok(())
    });
    corrupt("a completion", &ended.await);
    assert_eq!(db.record("k").await.unwrap().get("done"), Some(&broken));
    put(&db, "done", None).await;
    let again = seal.once("k", Tick::number(1)).wait(secs(20)).run(nothing);
    assert_eq!(again.await.unwrap(), OnceOutcome::Ran(()), "the tick was not completed");
}

#[tokio::test]
async fn a_hold_limit_that_cannot_be_read_is_corrupt_and_the_key_stays_held() {
    let db = TestDatabase::new("mongoseal_foreign_hold").await;
    let seal = db.seal();
    let lease =
        seal.acquire("k").ttl(secs(600)).min_hold(secs(60)).max_hold(secs(900)).without_refresh().await.unwrap();
    let whole = db.record("k").await.unwrap();
    let number = [Bson::from(true), "x".into(), Bson::Null, (-1_i64).into(), 60_000_i32.into(), doc! {}.into()];
    let date = [Bson::from(true), "x".into(), Bson::Null, 5_i64.into(), Bson::Array(vec![])];
    let cases =
        [("min_hold", &number[..]), ("max_hold", &number[..]), ("not_after", &date[..]), ("released_at", &date[..])];
    for (field, wrong) in cases.into_iter().flat_map(|(field, wrong)| wrong.iter().map(move |wrong| (field, wrong))) {
        let (case, path) = (format!("{field} as {wrong:?}"), format!("holders.0.{field}"));
        db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
        put(&db, &path, Some(wrong)).await;
        let before = db.record("k").await.unwrap();
        corrupt(&case, &seal.acquire("k").await);
        corrupt(&case, &seal.inspect("k").await);
        corrupt(&case, &run_no_work(&seal).await);
        let after = db.record("k").await.unwrap();
        assert_eq!(after.get("holders"), before.get("holders"), "{case}");
        assert_eq!(after.get("version"), before.get("version"), "{case}");
        corrupt(&case, &lease.refresh().await);
        let after = db.record("k").await.unwrap();
        let holders = after.get_array("holders").unwrap();
        assert_eq!(holders.len(), 1, "{case}");
        let holder = holders[0].as_document().unwrap();
        assert_eq!(holder.get(field), Some(wrong), "{case}: a refresh keeps it");
    }
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { is_released: true, .. })));
}

#[tokio::test]
async fn a_waiter_with_a_hold_limit_that_cannot_be_read_costs_no_more_than_its_time() {
    let db = TestDatabase::new("mongoseal_foreign_waiter").await;
    let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
    let key: Key = "k".parse().unwrap();
    let send = async |request| store.apply(&key, request, Deadline::after(store.clock(), secs(5))).await;
    let acquire = |terms: &LeaseSpec, ttl: Option<u64>| {
        let wait = ttl.map(|ttl| record::WaitSpec { ttl, queue_limit: 9 });
        Request::Acquire(record::Acquire { terms: terms.clone(), wait })
    };
    for field in ["min_hold", "max_hold"] {
        for wrong in
            [Bson::from(true), "x".into(), Bson::MaxKey, DateTime::from_millis(1).into(), Document::new().into()]
        {
            let holder = terms(LeaseId::random(), 60_000);
            let hold = HoldLimits { min: Some(1), max: Some(60_000) };
            let waiter = LeaseSpec { hold, ..terms(LeaseId::random(), 300) };
            send(acquire(&holder, None)).await.unwrap();
            send(acquire(&waiter, Some(300))).await.unwrap();
            put(&db, &format!("queue.0.{field}"), Some(&wrong)).await;
            drop(send(Request::Leave(record::Leave { lease: holder.lease, acquire_id: holder.acquire_id })).await);
            let next = terms(LeaseId::random(), 1);
            let is_granted = async || {
                drop(send(Request::Leave(record::Leave { lease: holder.lease, acquire_id: holder.acquire_id })).await);
                matches!(send(acquire(&next, None)).await, Ok(Applied { outcome: Outcome::Granted { .. }, .. }))
            };
            eventually(secs(5), &format!("the key is granted after {field} as {wrong:?}"), is_granted).await;
            tokio::time::sleep(millis(5)).await;
        }
    }
}
