//! Work that ignores an error and continues in a transaction that MongoDB has aborted.

use std::sync::{Arc, Mutex};

use mongodb::{
    Client, ClientSession, Collection,
    bson::{Document, doc},
    error::ErrorKind,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::ReplicaSet;

use crate::{Orders, add_one, invalid, one, secs, shop};

const HIDDEN: &str = "return each error of a statement from the work instead of hiding it";

/// Hides that there is an order 1 already, for which MongoDB aborts the transaction.
async fn order_and_hide(orders: &Collection<Document>, session: &mut ClientSession) {
    drop(orders.insert_one(doc! { "_id": 2 }).session(&mut *session).await);
    drop(orders.insert_one(one()).session(session).await);
}

/// MongoDB reports a transaction that no longer exists as a transient error.
#[tokio::test]
async fn work_that_hides_an_error_of_a_statement_is_told_so_after_two_runs() {
    let db = shop("hidden").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let orders = db.orders();
    // Where the next statement finds the transaction aborted, the work returns that, and not what it hid.
    for goes_on in [false, true] {
        let mut runs = 0;
        let done = lease
            .transaction(async |session| {
                runs += 1;
                order_and_hide(&orders, session).await;
                if goes_on { add_one(&orders, session).await } else { Ok(()) }
            })
            .await;
        assert_eq!(runs, 2, "{done:?}");
        let error = invalid(done, HIDDEN);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(!goes_on || source.contains("return the first error of a statement from the work"), "{source}");
    }
    // The error of the work can be of another kind.
    let done = lease
        .transaction(async |session| -> anyhow::Result<()> {
            order_and_hide(&orders, session).await;
            Ok(add_one(&orders, session).await?)
        })
        .await;
    invalid(done.map_err(|error| error.downcast::<Error>().unwrap()), HIDDEN);
    assert_eq!((db.n().await, orders.count_documents(doc! {}).await.unwrap()), (0, 1), "nothing was committed");
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
    let mut runs = 0;
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            runs += 1;
            add_one(&orders, session).await?;
            if runs <= 2 {
                set.step_down().await;
                set.primary().await;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs, 3);
    let failures = failures.lock().unwrap().clone();
    let aborted = failures.iter().filter(|failure| **failure == ("findAndModify".to_owned(), 251)).count();
    assert_eq!(aborted, 2, "{failures:?}");
    let order = orders.find_one(one()).await.unwrap().unwrap();
    assert_eq!(order.get_i32("n").unwrap(), 1);
    assert!(!matches!(lease.verify().await, Err(Error::Lost { .. })));
}
