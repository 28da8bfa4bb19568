//! What the work of a transaction returns as its error: pointers to errors as well as errors.

use std::{error::Error as StdError, fmt::Debug};

use mongodb::{bson::doc, error::Error as DriverError};
use mongoseal::{Error, Lease, LossCause, fence::WorkError};

use crate::{Orders, TestDatabase, one, plus, shop};

type Boxed = Box<dyn StdError + Send + Sync>;

/// The error of a program that has this one as its cause.
fn closed(error: impl StdError + Send + Sync + 'static) -> anyhow::Error {
    anyhow::Error::new(error).context("the shop is closed")
}

/// Adds one to the order in a transaction. Says how often the work has run.
async fn add<E, Kind>(db: &TestDatabase, lease: &Lease, wrap: impl Fn(DriverError) -> E) -> (Result<(), E>, u32)
where
    E: From<Error> + WorkError<Kind>,
{
    let (orders, mut runs) = (db.orders(), 0);
    let done = lease
        .transaction(async |session| -> Result<(), E> {
            runs += 1;
            orders.update_one(one(), plus()).session(session).await.map_err(&wrap)?;
            Ok(())
        })
        .await;
    (done, runs)
}

#[tokio::test]
async fn a_transient_error_of_the_driver_is_found_in_whatever_error_the_work_returns() {
    async fn thrice<E: From<Error> + WorkError<Kind> + Debug, Kind>(
        (db, lease): (&TestDatabase, &Lease),
        wrap: impl Fn(DriverError) -> E,
    ) {
        let conflict = doc! { "errorCode": 112, "errorLabels": ["TransientTransactionError"] };
        let trouble = db.set.fail_command("work_errors", &["update"], conflict, 2).await;
        let (done, runs) = add(db, lease, wrap).await;
        done.unwrap();
        assert!(trouble.off().await >= 2);
        assert_eq!(runs, 3);
    }
    let (db, _) = shop("work_errors").await.by_client("appName=work_errors").await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let at = (&db, &lease);
    thrice(at, Error::from).await;
    thrice(at, Boxed::from).await;
    thrice(at, |error| Boxed::from(closed(Error::from(error)))).await;
    thrice(at, Box::<dyn StdError>::from).await;
    thrice(at, anyhow::Error::from).await;
    thrice(at, |error| closed(error).context("try again")).await;
    // As the driver boxes its own sources, and programs a large error.
    thrice(at, |error| Boxed::from(Box::new(error))).await;
    thrice(at, |error| Boxed::from(closed(Box::new(error)))).await;
    assert_eq!(db.n().await, 8);
}

#[tokio::test]
async fn an_error_of_the_work_that_is_final_comes_back_as_it_was_and_one_of_the_lease_is_in_it() {
    let db = TestDatabase::new("mongoseal_fence_work_final").await;
    db.put(doc! { "_id": 1, "n": "not a number" }).await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let (done, runs) = add(&db, &lease, closed).await;
    let error = done.unwrap_err();
    assert_eq!((runs, error.to_string().as_str()), (1, "the shop is closed"));
    assert!(error.chain().any(<dyn std::error::Error>::is::<DriverError>), "{error:?}");
    let (done, runs) = add(&db, &lease, Boxed::from).await;
    assert!(done.unwrap_err().is::<DriverError>());
    assert_eq!(runs, 1);
    let sold_out = lease.transaction(async |_session| -> Result<(), Boxed> { Err("sold out".into()) }).await;
    assert_eq!(sold_out.unwrap_err().to_string(), "sold out");

    db.orders().update_one(one(), doc! { "$set": { "n": 0 } }).await.unwrap();
    db.seal().revoke("k").by("alice").await.unwrap();
    let lost = add(&db, &lease, Boxed::from).await.0.unwrap_err().downcast::<Error>().unwrap();
    assert!(matches!(*lost, Error::Lost { cause: LossCause::Revoked { .. }, .. }), "{lost:?}");
}

#[tokio::test]
async fn the_code_of_each_kind_of_error_is_found_and_a_duplicate_among_many_inserts_is_invalid() {
    let db = shop("work_codes").await;
    let duplicate = db.orders().insert_one(one()).await.unwrap_err();
    let many = db.orders().insert_many([one(), doc! { "_id": 2 }]).await.unwrap_err();
    let unknown = db.database.run_command(doc! { "noSuchCommand": 1 }).await.unwrap_err();
    for (error, code) in [(duplicate, 11000), (many, 11000), (unknown, 59)] {
        let error = Error::from(error);
        assert!(matches!(error, Error::Invalid { .. }) && error.code() == Some(code), "{code}: {error:?}");
        assert_eq!(Error::invalid("wrong").caused_by(closed(error)).code(), Some(code));
    }
}
