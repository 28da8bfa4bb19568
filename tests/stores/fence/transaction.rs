//! Transactions that commit only while their lease is valid.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use mongodb::{
    Client, Collection,
    bson::{Bson, DateTime, Document, doc},
    options::ClientOptions,
};
use mongoseal::{Error, Lease, LossCause, Mongoseal, inspect::EventKind};

use crate::{Orders, TestDatabase, invalid, millis, secs};

const ONE: i32 = 1;

/// Adds one to two documents, and says how often that was tried.
async fn add(db: &TestDatabase, lease: &Lease, slow: std::time::Duration) -> (mongoseal::Result<()>, u32) {
    let (orders, tries) = (db.orders(), AtomicU32::new(0));
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            tries.fetch_add(1, Ordering::Relaxed);
            let plus = doc! { "$inc": { "n": 1 } };
            orders.update_one(doc! { "_id": ONE }, plus.clone()).session(&mut *session).await?;
            tokio::time::sleep(slow).await;
            orders.update_one(doc! { "_id": 2 }, plus).session(session).await?;
            Ok(())
        })
        .await;
    (done, tries.into_inner())
}

async fn two_orders(name: &str) -> TestDatabase {
    let db = TestDatabase::new(&format!("mongoseal_fence_{name}")).await;
    for id in [ONE, 2] {
        db.put(doc! { "_id": id, "n": 0 }).await;
    }
    db
}

/// Demands that both documents say this.
async fn both(db: &TestDatabase, n: i32) {
    for id in [ONE, 2] {
        assert_eq!(db.order(id).await.get_i32("n").unwrap(), n);
    }
}

#[tokio::test]
async fn it_commits_while_the_lease_holds_and_leaves_the_record_a_record() {
    let db = two_orders("commits").await;
    let seal = db.seal();
    let lease = seal.acquire("k").without_refresh().await.unwrap();
    let holder = |record: &Document| record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let before = db.record("k").await.unwrap();
    assert_eq!(add(&db, &lease, millis(0)).await.1, 1);
    both(&db, 1).await;
    let after = db.record("k").await.unwrap();
    let (mut was, mut is) = (holder(&before), holder(&after));
    let refreshes = |holder: &mut Document| holder.remove("refreshes").unwrap().as_i64().unwrap();
    assert_eq!(refreshes(&mut is), refreshes(&mut was) + 1);
    assert_eq!(is, was, "all else of the holder stays, its expiry too");
    assert_eq!(after.get("expires_at"), before.get("expires_at"));
    assert!(after.get_datetime("last_seen").unwrap() > before.get_datetime("last_seen").unwrap());

    assert_eq!(seal.inspect("k").await.unwrap().unwrap().holders.len(), 1);
    lease.refresh().await.unwrap();
    lease.verify().await.unwrap();
    assert_eq!(lease.release().await.unwrap(), mongoseal::ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_lease_that_was_revoked_aborts_it_and_the_caller_is_told_why() {
    let db = two_orders("revoked").await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    db.seal().revoke("k").by("alice").reason("drill").await.unwrap();
    let (done, _) = add(&db, &lease, millis(0)).await;
    let revoked = LossCause::Revoked { by: "alice".into(), reason: "drill".into() };
    assert!(matches!(&done, Err(Error::Lost { cause, .. }) if *cause == revoked), "{done:?}");
    both(&db, 0).await;
    assert!(!lease.is_valid(), "and is lost from then on");
    assert!(matches!(add(&db, &lease, millis(0)).await, (Err(Error::Lost { .. }), 0)));
}

#[tokio::test]
async fn a_lease_that_ended_on_the_servers_clock_aborts_it_although_nobody_took_over() {
    let db = two_orders("expired").await;
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    let records = db.database.collection::<Document>("mongoseal");
    let over = doc! { "$set": { "holders.0.expires_at": DateTime::from_millis(1) } };
    records.update_one(doc! { "_id": "k" }, over).await.unwrap();
    let (done, _) = add(&db, &lease, millis(0)).await;
    assert!(matches!(&done, Err(Error::Lost { cause: LossCause::Expired, .. })), "{done:?}");
    both(&db, 0).await;
}

#[tokio::test]
async fn a_record_that_is_gone_or_none_aborts_it() {
    let db = two_orders("gone").await;
    let records = db.database.collection::<Document>("mongoseal");
    for (number, (field, value)) in [
        ("version", Bson::from("x")),
        ("holders", 1.into()),
        ("holders.0.refreshes", "x".into()),
        ("history.0", 1.into()),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("corrupt/{number}");
        let lease = db.seal().acquire(key.as_str()).without_refresh().await.unwrap();
        records.update_one(doc! { "_id": &key }, doc! { "$set": { field: value } }).await.unwrap();
        let before = db.record(&key).await;
        let (done, _) = add(&db, &lease, millis(0)).await;
        assert!(matches!(&done, Err(Error::Corrupt { .. })), "{field}: {done:?}");
        assert_eq!(db.record(&key).await, before, "it is left as it was");
    }
    let lease = db.seal().acquire("k").without_refresh().await.unwrap();
    records.delete_one(doc! { "_id": "k" }).await.unwrap();
    let (done, _) = add(&db, &lease, millis(0)).await;
    assert!(matches!(&done, Err(Error::Lost { cause: LossCause::Removed, .. })), "{done:?}");
    assert_eq!(db.record("k").await, None, "and is not made again");
    both(&db, 0).await;
}

#[tokio::test]
async fn in_memory_there_is_none() {
    let seal = Mongoseal::in_memory();
    let (lease, set) = (seal.acquire("k").await.unwrap(), seal.acquire_all(["a", "b"]).await.unwrap());
    let work = async |_: &mut mongodb::ClientSession| -> mongoseal::Result<()> { unreachable!() };
    invalid(lease.transaction(work).await, "which a transaction needs");
    invalid(set.transaction(work).await, "is not on MongoDB");
}

#[tokio::test]
async fn what_can_be_tried_again_is_and_counts_once() {
    let db = two_orders("transient").await;
    let client = Client::with_uri_str(db.set.uri_with("appName=transient")).await.unwrap();
    let ours = TestDatabase { set: db.set, database: client.database(db.database.name()), client };
    let lease = ours.seal().acquire("k").await.unwrap();
    let conflict = || doc! { "errorCode": 112, "errorLabels": ["TransientTransactionError"] };
    let mut n = 0;
    for (commands, error, tries) in [
        ("update", conflict(), 3),
        ("findAndModify", conflict(), 3),
        ("commitTransaction", conflict(), 3),
        ("update", doc! { "closeConnection": true }, 3),
        ("commitTransaction", doc! { "closeConnection": true }, 1),
        ("commitTransaction", doc! { "errorCode": 91 }, 1),
        ("commitTransaction", doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } }, 1),
    ] {
        let trouble = db.set.fail_command("transient", &[commands], error.clone(), 2).await;
        let (done, tried) = add(&ours, &lease, millis(0)).await;
        assert!(done.is_ok(), "{commands} {error}: {done:?}");
        assert!(trouble.off().await >= 1);
        // A refresh that goes between may take one of the two.
        assert!((1..=tries).contains(&tried) && (tries == 1 || tried > 1), "{commands} {error}: {tried} tries");
        n += 1;
        both(&db, n).await;
    }
    let never = db.set.fail_command("transient", &["commitTransaction"], doc! { "errorCode": 91 }, 1_000_000).await;
    let impatient = Mongoseal::builder().operation_timeout(secs(1)).on_shared_client(&ours.database).unwrap();
    let other = impatient.acquire("other").await.unwrap();
    let (done, _) = add(&ours, &other, millis(0)).await;
    assert!(matches!(&done, Err(Error::Unavailable { .. })), "{done:?}");
    assert!(done.unwrap_err().to_string().contains("may have been committed or not"));
    never.off().await;
}

#[tokio::test]
async fn work_that_ends_its_transaction_itself_is_told_so() {
    let db = two_orders("ends_itself").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let orders = db.orders();
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            orders.update_one(doc! { "_id": ONE }, doc! {"$inc": { "n": 1 }}).session(&mut *session).await?;
            session.abort_transaction().await?;
            Ok(())
        })
        .await;
    invalid(done, "ended by its own work");
    both(&db, 0).await;
    lease.refresh().await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_meets_a_refresh_in_each_run_says_so_and_does_not_cost_the_lease() {
    let db = two_orders("long").await;
    let seal = Mongoseal::builder().operation_timeout(secs(3)).on_shared_client(&db.database).unwrap();
    let lease = seal.acquire("k").ttl(secs(300)).await.unwrap();
    let (orders, mut runs) = (db.orders(), 0);
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs += 1;
            orders.update_one(doc! { "_id": ONE }, doc! { "$inc": { "n": 1 } }).session(session).await?;
            lease.refresh().await
        })
        .await;
    let error = done.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("shorter than a third of the ttl"), "{error}");
    assert!(runs > 1, "it was run again");
    both(&db, 0).await;
    lease.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: it judges seconds"]
async fn a_transaction_of_less_than_a_third_of_the_ttl_commits_beside_refreshes() {
    let db = two_orders("beside").await;
    let lease = db.seal().acquire("k").ttl(secs(3)).await.unwrap();
    let (done, tries) = add(&db, &lease, millis(800)).await;
    println!("a work of 0.8 s under a ttl of 3 s: {done:?} after {tries} tries");
    done.unwrap();
    both(&db, 1).await;
    lease.verify().await.unwrap();
}

#[tokio::test]
async fn who_watches_the_key_is_told_of_nothing_by_it_and_goes_on() {
    let db = two_orders("watched").await;
    let seal = db.seal();
    let lease = seal.acquire("k").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    let mut next =
        async || tokio::time::timeout(secs(60), events.next()).await.unwrap().unwrap().unwrap().into_event().unwrap();
    assert!(matches!(next().await.kind, EventKind::Holds { .. }));
    add(&db, &lease, millis(0)).await.0.unwrap();
    add(&db, &lease, millis(0)).await.0.unwrap();
    lease.release().await.unwrap();
    assert_eq!(next().await.kind, EventKind::Released);
}

#[tokio::test]
async fn a_collection_of_another_client_is_named_as_the_cause_and_one_of_the_client_of_the_handle_is_written() {
    let db = two_orders("other_client").await;
    let options = ClientOptions::parse(db.uri()).await.unwrap();
    let seal = Mongoseal::builder().connect_with(options).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let orders = db.orders();
    let own: Collection<Document> =
        seal.client().unwrap().database(&orders.namespace().db).collection(&orders.namespace().coll);
    let sold = async |session: &mut mongodb::ClientSession| -> mongoseal::Result<()> {
        orders.update_one(doc! { "_id": ONE }, doc! { "$inc": { "n": 1 } }).session(session).await?;
        Ok(())
    };
    invalid(lease.transaction(sold).await, "`session.client()`");
    both(&db, 0).await;
    lease.check().unwrap();
    let sold = async |session: &mut mongodb::ClientSession| -> mongoseal::Result<()> {
        own.update_many(doc! {}, doc! { "$inc": { "n": 1 } }).session(session).await?;
        Ok(())
    };
    lease.transaction(sold).await.unwrap();
    both(&db, 1).await;
    seal.shutdown().await;
    assert!(Mongoseal::in_memory().client().is_none());
}

/// As on the page about fencing.
async fn add_one(lease: Arc<Lease>, database: String, id: i32) -> mongoseal::Result<()> {
    let work = async move |session: &mut mongodb::ClientSession| -> mongoseal::Result<()> {
        let orders = session.client().database(&database).collection::<Document>("orders");
        orders.update_one(doc! { "_id": id }, doc! { "$inc": { "n": 1 } }).session(&mut *session).await?;
        Ok(())
    };
    lease.transaction(work).await
}

#[tokio::test]
async fn it_runs_in_a_spawned_task_and_compiles_in_a_handler_of_axum() {
    let db = two_orders("spawned").await;
    let lease = Arc::new(db.seal().acquire("k").await.unwrap());
    let database = db.orders().namespace().db;
    for id in [ONE, 2] {
        tokio::spawn(add_one(Arc::clone(&lease), database.clone(), id)).await.unwrap().unwrap();
    }
    both(&db, 1).await;
    let handle = |State((lease, database)): State<(Arc<Lease>, String)>, Path(id): Path<i32>| async move {
        add_one(lease, database, id).await.map_or(StatusCode::CONFLICT, |()| StatusCode::OK)
    };
    let _routes: Router = Router::new().route("/orders/{id}", post(handle)).with_state((lease, database));
}
