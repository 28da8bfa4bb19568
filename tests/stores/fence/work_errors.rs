//! What the work of a transaction returns as its error: pointers to errors as well as errors.

use std::{error::Error as StdError, fmt::Debug};

use anyhow::Context;
use mongodb::{
    Client,
    bson::{Document, doc},
    error::Error as DriverError,
};
use mongoseal::{Error, Lease, LossCause, fence::WorkError};

use crate::{Orders, TestDatabase};

type Boxed = Box<dyn StdError + Send + Sync>;

/// An error of a program that has the driver's error two causes below.
#[derive(Debug)]
struct Shop(Boxed);

impl std::fmt::Display for Shop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the shop is closed")
    }
}

impl StdError for Shop {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

fn plus() -> Document {
    doc! { "$inc": { "n": 1 } }
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
            orders.update_one(doc! { "_id": 1 }, plus()).session(session).await.map_err(&wrap)?;
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
    let db = TestDatabase::new("mongoseal_fence_work_errors").await;
    let client = Client::with_uri_str(db.set.uri_with("appName=work_errors")).await.unwrap();
    let db = TestDatabase { set: db.set, database: client.database(db.database.name()), client };
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let at = (&db, &lease);
    thrice(at, Error::from).await;
    thrice(at, Boxed::from).await;
    thrice(at, |error| Boxed::from(Shop(Error::from(error).into()))).await;
    thrice(at, Box::<dyn StdError>::from).await;
    thrice(at, anyhow::Error::from).await;
    thrice(at, |error| anyhow::Error::from(error).context("the order was not counted").context("try again")).await;
    thrice(at, |error| anyhow::Error::from(Shop(error.into()))).await;
    // As the driver boxes its own sources, and programs a large error.
    thrice(at, |error| Boxed::from(Box::new(error))).await;
    thrice(at, |error| Boxed::from(Shop(Box::new(Box::new(error))))).await;
    assert_eq!(db.order(1).await.get_i32("n").unwrap(), 9);
}

#[tokio::test]
async fn an_error_of_the_work_that_is_final_comes_back_as_it_was() {
    let db = TestDatabase::new("mongoseal_fence_work_final").await;
    db.put(doc! { "_id": 1, "n": "not a number" }).await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let (done, runs) = add(&db, &lease, |error| anyhow::Error::from(error).context("counting")).await;
    let error = done.unwrap_err();
    assert_eq!((runs, error.to_string().as_str()), (1, "counting"));
    assert!(error.chain().any(<dyn std::error::Error>::is::<DriverError>), "{error:?}");
    let (done, runs) = add(&db, &lease, Boxed::from).await;
    assert!(done.unwrap_err().is::<DriverError>());
    assert_eq!(runs, 1);
    let sold_out = lease.transaction(async |_session| -> Result<(), Boxed> { Err("sold out".into()) }).await;
    assert_eq!(sold_out.unwrap_err().to_string(), "sold out");
}

#[tokio::test]
async fn the_code_of_each_kind_of_error_is_found_and_a_duplicate_among_many_inserts_is_invalid() {
    let db = TestDatabase::new("mongoseal_fence_work_codes").await;
    db.put(doc! { "_id": 1 }).await;
    let orders = db.orders();
    let duplicate = || doc! { "_id": 1 };
    let one = orders.insert_one(duplicate()).await.unwrap_err();
    let many = orders.insert_many([duplicate(), doc! { "_id": 2 }]).await.unwrap_err();
    let unknown = db.database.run_command(doc! { "noSuchCommand": 1 }).await.unwrap_err();
    for (error, code) in [(one, 11000), (many, 11000), (unknown, 59)] {
        let error = Error::from(error);
        assert!(matches!(error, Error::Invalid { .. }) && error.code() == Some(code), "{code}: {error:?}");
        assert_eq!(Error::invalid("wrong").caused_by(Box::new(Shop(error.into()))).code(), Some(code));
    }
}

#[tokio::test]
async fn errors_of_the_lease_and_of_hidden_statements_are_in_the_error_of_the_work() {
    let db = TestDatabase::new("mongoseal_fence_work_lease").await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let orders = db.orders();
    let hiding = lease
        .transaction(async |session| -> anyhow::Result<()> {
            drop(orders.insert_one(doc! { "_id": 1 }).session(&mut *session).await);
            orders.update_one(doc! { "_id": 1 }, plus()).session(session).await.context("counting")?;
            Ok(())
        })
        .await;
    let error = hiding.unwrap_err();
    let ours = error.downcast_ref::<Error>().unwrap_or_else(|| panic!("{error:?}"));
    assert!(matches!(ours, Error::Invalid { .. }) && ours.to_string().contains("instead of hiding it"), "{ours}");

    db.seal().revoke("k").by("alice").await.unwrap();
    let (done, _) = add(&db, &lease, Boxed::from).await;
    match done.unwrap_err().downcast::<Error>() {
        Ok(error) => assert!(matches!(*error, Error::Lost { cause: LossCause::Revoked { .. }, .. }), "{error:?}"),
        Err(other) => panic!("{other:?}"),
    }
    assert_eq!(db.order(1).await.get_i32("n").unwrap(), 0);
}
