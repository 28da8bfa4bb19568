//! Fields of schedules and of hold limits that another program has written: an error names the field, and nothing is
//! lost.

use mongodb::bson::{Bson, doc};
use mongoseal::{Error, Mongoseal, OnceOutcome, Result, Skipped, Tick, TickLease};

use crate::{TestDatabase, bad_input::put, secs};

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
    // Of the right type, and no tick or token.
    let no_numbers = [("done.tick", -1_i64), ("done.token", -1), ("done.token", 0)];
    cases.extend(no_numbers.map(|(path, wrong)| (path, Some(wrong.into()))));
    for (path, wrong) in cases {
        let case = format!("{path} as {wrong:?}");
        db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
        put(&db, "k", path, wrong.as_ref()).await;
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
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    assert!(matches!(
        seal.once("k", Tick::number(5)).run(nothing).await,
        Ok(OnceOutcome::Skipped(Skipped::AlreadyDone { .. }))
    ));
}

#[tokio::test]
async fn a_completion_of_a_record_that_was_broken_meanwhile_is_corrupt_and_writes_nothing() {
    let db = TestDatabase::new("mongoseal_broken_done").await;
    let seal = db.seal();
    let broken = Bson::from("x");
    let ended = seal.once("k", Tick::number(1)).ttl(secs(600)).run(async |_| -> Result<()> {
        put(&db, "k", "done", Some(&broken)).await;
        Ok(())
    });
    corrupt("a completion", &ended.await);
    assert_eq!(db.record("k").await.unwrap().get("done"), Some(&broken));
    put(&db, "k", "done", None).await;
    seal.revoke("k").reason("its completion failed").await.unwrap();
    let again = seal.once("k", Tick::number(1)).run(nothing);
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
        put(&db, "k", &path, Some(wrong)).await;
        corrupt(&case, &seal.acquire("k").await);
        corrupt(&case, &seal.inspect("k").await);
        corrupt(&case, &run_no_work(&seal).await);
        corrupt(&case, &lease.refresh().await);
        let after = db.record("k").await.unwrap();
        let holders = after.get_array("holders").unwrap();
        let kept = holders[0].as_document().unwrap().get(field);
        assert_eq!((holders.len(), kept), (1, Some(wrong)), "{case}: a refresh keeps it");
    }
    db.records().replace_one(doc! { "_id": "k" }, &whole).await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { is_released: true, .. })));
}
