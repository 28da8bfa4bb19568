//! Transactions that commit only while their lease is valid.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use mongodb::{
    ClientSession,
    bson::{Bson, DateTime, Document, doc},
    options::ClientOptions,
};
use mongoseal::{Error, Lease, LossCause, Mongoseal, Sharing, inspect::EventKind};

use crate::{Orders, add, add_one, invalid, millis, one, plus, secs, shop};

#[tokio::test]
async fn it_commits_while_the_lease_holds_and_leaves_the_record_a_record() {
    let db = shop("commits").await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let holder = |record: &Document| record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let before = db.record("k").await.unwrap();
    let (done, runs) = add(&db, &lease).await;
    done.unwrap();
    assert_eq!((runs, db.n().await), (1, 1));
    let after = db.record("k").await.unwrap();
    let (mut was, mut is) = (holder(&before), holder(&after));
    let refreshes = |holder: &mut Document| holder.remove("refreshes").unwrap().as_i64().unwrap();
    assert_eq!(refreshes(&mut is), refreshes(&mut was) + 1);
    assert_eq!(is, was, "all else of the holder stays, its expiry too");
    assert_eq!(after.get("expires_at"), before.get("expires_at"));
    assert!(after.get_datetime("last_seen").unwrap() > before.get_datetime("last_seen").unwrap());

    lease.refresh().await.unwrap();
    lease.verify().await.unwrap();
    assert_eq!(lease.release().await.unwrap(), mongoseal::ReleaseOutcome::Released);
}

/// An expired lease has ended on the clock of the server, although nobody took the key over.
#[tokio::test]
async fn a_lease_that_has_ended_aborts_it_and_the_caller_is_told_why() {
    let db = shop("ended").await;
    let revoked = LossCause::Revoked { by: "alice".into(), reason: "drill".into() };
    for ended in [revoked, LossCause::Expired, LossCause::Removed] {
        let key = format!("{ended:?}");
        let lease = db.seal().acquire(key.as_str()).without_refresh().await.unwrap();
        let of_key = doc! { "_id": &key };
        match ended {
            LossCause::Expired => {
                let over = doc! { "$set": { "holders.0.expires_at": DateTime::from_millis(1) } };
                db.records().update_one(of_key, over).await.map(drop).unwrap();
            }
            LossCause::Removed => db.records().delete_one(of_key).await.map(drop).unwrap(),
            _ => db.seal().revoke(key.as_str()).by("alice").reason("drill").await.map(drop).unwrap(),
        }
        let (done, _) = add(&db, &lease).await;
        assert!(matches!(&done, Err(Error::Lost { cause, .. }) if *cause == ended), "{key}: {done:?}");
        assert!(!lease.is_valid(), "{key}: it is lost from then on");
        assert!(matches!(add(&db, &lease).await, (Err(Error::Lost { .. }), 0)), "{key}");
        assert_eq!(db.record(&key).await.is_none(), ended == LossCause::Removed, "a record is not made again");
    }
    assert_eq!(db.n().await, 0);
}

#[tokio::test]
async fn a_record_that_is_none_aborts_it_and_is_left_as_it_was() {
    let db = shop("corrupt").await;
    for (field, value) in [
        ("version", Bson::from("x")),
        ("holders", 1.into()),
        ("holders.0.refreshes", "x".into()),
        ("history.0", 1.into()),
    ] {
        let lease = db.seal().acquire(field).without_refresh().await.unwrap();
        db.records().update_one(doc! { "_id": field }, doc! { "$set": { field: value } }).await.unwrap();
        let before = db.record(field).await;
        let (done, _) = add(&db, &lease).await;
        assert!(matches!(&done, Err(Error::Corrupt { .. })), "{field}: {done:?}");
        assert_eq!(db.record(field).await, before, "{field}");
    }
    assert_eq!(db.n().await, 0);
}

#[tokio::test]
async fn in_memory_there_is_none() {
    let seal = Mongoseal::in_memory();
    let (lease, set) = (seal.acquire("k").await.unwrap(), seal.acquire_all(["a", "b"]).await.unwrap());
    let work = async |_: &mut ClientSession| -> mongoseal::Result<()> { unreachable!() };
    invalid(lease.transaction(work).await, "which a transaction needs");
    invalid(set.transaction(work).await, "is not on MongoDB");
}

#[tokio::test]
async fn what_can_be_tried_again_is_and_counts_once() {
    let db = shop("transient").await;
    let (ours, _) = db.by_client("appName=transient").await;
    let lease = ours.seal().acquire("k").await.unwrap();
    let conflict = || doc! { "errorCode": 112, "errorLabels": ["TransientTransactionError"] };
    for (n, (command, error, tries)) in (1..).zip([
        ("update", conflict(), 3),
        ("findAndModify", conflict(), 3),
        ("commitTransaction", conflict(), 3),
        ("update", doc! { "closeConnection": true }, 3),
        ("commitTransaction", doc! { "closeConnection": true }, 1),
        ("commitTransaction", doc! { "errorCode": 91 }, 1),
        ("commitTransaction", doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } }, 1),
    ]) {
        let trouble = db.set.fail_command("transient", &[command], error.clone(), 2).await;
        let (done, tried) = add(&ours, &lease).await;
        assert!(done.is_ok(), "{command} {error}: {done:?}");
        assert!(trouble.off().await >= 1);
        // A refresh that goes between may take one of the two.
        assert!((1..=tries).contains(&tried) && (tries == 1 || tried > 1), "{command} {error}: {tried} tries");
        assert_eq!(db.n().await, n, "{command} {error}");
    }
}

#[tokio::test]
async fn work_that_ends_its_transaction_itself_is_told_so() {
    let db = shop("ends_itself").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let orders = db.orders();
    let done = lease
        .transaction(async |session| {
            add_one(&orders, session).await?;
            Ok(session.abort_transaction().await?)
        })
        .await;
    invalid(done, "ended by its own work");
    assert_eq!(db.n().await, 0);
    lease.refresh().await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_meets_a_refresh_in_each_run_says_so_and_does_not_cost_the_lease() {
    let db = shop("long").await;
    let seal = db.build(Mongoseal::builder().operation_timeout(secs(3)));
    let lease = seal.acquire("k").ttl(secs(300)).await.unwrap();
    let (orders, mut runs) = (db.orders(), 0);
    let done = lease
        .transaction(async |session| {
            runs += 1;
            add_one(&orders, session).await?;
            lease.refresh().await
        })
        .await;
    let error = done.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("shorter than a third of the ttl"), "{error}");
    assert!(runs > 1, "it was run again");
    assert_eq!(db.n().await, 0);
    lease.verify().await.unwrap();
}

/// The record of a lease is written by its transaction and by its downgrade, so one of the two comes first.
#[tokio::test]
async fn a_transaction_whose_lease_is_downgraded_meanwhile_starts_over_and_commits() {
    let db = shop("downgraded").await;
    let lease = db.seal().acquire("k").ttl(secs(60)).await.unwrap();
    let (orders, mut runs) = (db.orders(), 0);
    lease
        .transaction(async |session| {
            runs += 1;
            add_one(&orders, session).await?;
            if runs == 1 { lease.downgrade(Sharing::UpTo(2)).await } else { Ok(()) }
        })
        .await
        .unwrap();
    assert_eq!((runs, db.n().await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: it judges seconds"]
async fn a_transaction_of_less_than_a_third_of_the_ttl_commits_beside_refreshes() {
    let db = shop("beside").await;
    let lease = db.seal().acquire("k").ttl(secs(3)).await.unwrap();
    let orders = db.orders();
    let slow = async |session: &mut ClientSession| -> mongoseal::Result<()> {
        add_one(&orders, session).await?;
        tokio::time::sleep(millis(800)).await;
        Ok(())
    };
    lease.transaction(slow).await.unwrap();
    assert_eq!(db.n().await, 1);
    lease.verify().await.unwrap();
}

#[tokio::test]
async fn who_watches_the_key_is_told_of_nothing_by_it_and_goes_on() {
    let db = shop("watched").await;
    let seal = db.seal();
    let lease = seal.acquire("k").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    let mut next =
        async || tokio::time::timeout(secs(60), events.next()).await.unwrap().unwrap().unwrap().into_event().unwrap();
    assert!(matches!(next().await.kind, EventKind::Holds { .. }));
    add(&db, &lease).await.0.unwrap();
    add(&db, &lease).await.0.unwrap();
    lease.release().await.unwrap();
    assert_eq!(next().await.kind, EventKind::Released);
}

#[tokio::test]
async fn a_collection_of_another_client_is_named_as_the_cause_and_one_of_the_client_of_the_handle_is_written() {
    let db = shop("other_client").await;
    let options = ClientOptions::parse(db.uri()).await.unwrap();
    let seal = Mongoseal::builder().connect_with(options).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    invalid(add(&db, &lease).await.0, "`session.client()`");
    assert_eq!(db.n().await, 0);
    lease.check().unwrap();
    let own = seal.client().unwrap().database(db.database.name()).collection("orders");
    lease.transaction(async |session| add_one(&own, session).await).await.unwrap();
    assert_eq!(db.n().await, 1);
    seal.shutdown().await;
    assert!(Mongoseal::in_memory().client().is_none());
}

/// As on the page about fencing.
async fn add_in_a_task(lease: Arc<Lease>, database: String) -> mongoseal::Result<()> {
    let work = async move |session: &mut ClientSession| -> mongoseal::Result<()> {
        let orders = session.client().database(&database).collection::<Document>("orders");
        orders.update_one(one(), plus()).session(&mut *session).await?;
        Ok(())
    };
    lease.transaction(work).await
}

#[tokio::test]
async fn it_runs_in_a_spawned_task_and_compiles_in_a_handler_of_axum() {
    let db = shop("spawned").await;
    let lease = Arc::new(db.seal().acquire("k").await.unwrap());
    let database = db.orders().namespace().db;
    tokio::spawn(add_in_a_task(Arc::clone(&lease), database.clone())).await.unwrap().unwrap();
    assert_eq!(db.n().await, 1);
    let handle = |State((lease, database)): State<(Arc<Lease>, String)>, Path(_): Path<i32>| async move {
        add_in_a_task(lease, database).await.map_or(StatusCode::CONFLICT, |()| StatusCode::OK)
    };
    let _routes: Router = Router::new().route("/orders/{id}", post(handle)).with_state((lease, database));
}
