//! Work that ignores an error and continues in a transaction that MongoDB has aborted.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use mongodb::{
    Client, ClientSession, Collection,
    bson::{Document, doc},
    error::ErrorKind,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::ReplicaSet;

use crate::{Orders, TestDatabase, invalid, secs};

const HIDDEN: &str = "return each error of a statement from the work instead of hiding it";

/// Orders 1 and hides that there is such an order already, for which MongoDB aborts the transaction.
async fn order_and_hide(orders: &Collection<Document>, session: &mut ClientSession) {
    drop(orders.insert_one(doc! { "_id": 2 }).session(&mut *session).await);
    drop(orders.insert_one(doc! { "_id": 1 }).session(session).await);
}

/// MongoDB reports a transaction that no longer exists as a transient error.
#[tokio::test]
async fn work_that_hides_an_error_of_a_statement_is_told_so_after_two_runs() {
    let db = TestDatabase::new("mongoseal_fence_hidden").await;
    db.put(doc! { "_id": 1 }).await;
    let lease = db.seal().acquire("k").await.unwrap();
    let orders = db.orders();
    let runs = AtomicU32::new(0);
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs.fetch_add(1, Ordering::Relaxed);
            order_and_hide(&orders, session).await;
            Ok(())
        })
        .await;
    assert_eq!(runs.load(Ordering::Relaxed), 2, "{done:?}");
    invalid(done, HIDDEN);

    // Where the next statement finds the transaction aborted, the work returns that, and not what it hid.
    let done = lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs.fetch_add(1, Ordering::Relaxed);
            order_and_hide(&orders, session).await;
            orders.insert_one(doc! { "_id": 3 }).session(session).await?;
            Ok(())
        })
        .await;
    assert_eq!(runs.into_inner(), 4, "{done:?}");
    let error = invalid(done, HIDDEN);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("return the first error of a statement from the work"), "{source}");

    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1, "nothing was committed");
    lease.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_primary_steps_down_twice_is_run_again_and_commits() {
    let set = ReplicaSet::start(1).await;
    let mut options = ClientOptions::parse(set.uri()).await.unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&failures);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Failed(failed) = event
            && let ErrorKind::Command(error) = &*failed.failure.kind
        {
            note.lock().unwrap().push((failed.command_name, error.code));
        }
    }));
    let database = Client::with_options(options).unwrap().database("shop");
    let orders = database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();
    let seal = Mongoseal::builder().operation_timeout(secs(120)).on_shared_client(&database).unwrap();
    let lease = seal.acquire("k").ttl(secs(300)).without_refresh().await.unwrap();
    let runs = AtomicU32::new(0);
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            let plus = doc! { "$inc": { "n": 1 } };
            orders.update_one(doc! { "_id": 1 }, plus).session(session).await?;
            if runs.fetch_add(1, Ordering::Relaxed) < 2 {
                set.step_down().await;
                set.primary().await;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs.into_inner(), 3);
    let failures = failures.lock().unwrap().clone();
    let aborted = failures.iter().filter(|failure| **failure == ("findAndModify".to_owned(), 251)).count();
    assert_eq!(aborted, 2, "{failures:?}");
    let order = orders.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(order.get_i32("n").unwrap(), 1);
    assert!(!matches!(lease.verify().await, Err(Error::Lost { .. })));
}
