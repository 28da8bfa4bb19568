//! Fenced writes and transactions on a real replica set.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod bulk;
mod cancel_safety;
mod claim;
mod commands;
mod commit;
mod documents;
mod faults;
mod hidden_errors;
mod set_transaction;
mod spans;
mod takeover;
mod transaction;
mod upsert;
mod verbs;
mod work_errors;

use std::error::Error as _;

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use mongoseal::{Error, Fence, Fenced, FencingToken};
use mongoseal_test_support::{Sent, TestDatabase, eventually, millis, noting_client, secs};

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// What tests do with the orders in their database.
trait Orders {
    fn orders(&self) -> Collection<Document>;

    /// The orders, by a client of their own with these options.
    async fn orders_with(&self, options: &str) -> Collection<Document>;

    /// The orders by a client of their own, and the commands that it sends.
    async fn noted_orders(&self) -> (Collection<Document>, Sent);

    /// The orders as the holder of this token writes them.
    fn by(&self, number: u64) -> Fenced<'static, Document> {
        self.orders().fenced(token(number))
    }

    async fn put(&self, document: Document) {
        let id = document.get("_id").unwrap().clone();
        self.orders().replace_one(doc! { "_id": id }, document).upsert(true).await.unwrap();
    }

    async fn order(&self, id: i32) -> Document {
        self.orders().find_one(doc! { "_id": id }).await.unwrap().expect("the order is there")
    }
}

impl Orders for TestDatabase {
    fn orders(&self) -> Collection<Document> {
        self.database.collection("orders")
    }

    async fn orders_with(&self, options: &str) -> Collection<Document> {
        let client = Client::with_uri_str(self.set.uri_with(options)).await.unwrap();
        client.database(self.database.name()).collection("orders")
    }

    async fn noted_orders(&self) -> (Collection<Document>, Sent) {
        let (client, sent) = noting_client(&self.set.uri()).await;
        (client.database(self.database.name()).collection("orders"), sent)
    }
}

/// Demands a refusal on behalf of this token.
#[track_caller]
fn refused_by<T: std::fmt::Debug>(result: Result<T, Error>, number: u64) {
    match result {
        Err(Error::Fenced { newer }) if newer == token(number) => {}
        other => panic!("a refusal for {number} was expected and not {other:?}"),
    }
}

/// Demands that the caller is told to change something, in words that say this.
#[track_caller]
fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, says: &str) -> Error {
    match result {
        Err(error @ Error::Invalid { .. }) if error.to_string().contains(says) => error,
        other => panic!("{says:?} was expected and not {other:?}"),
    }
}

/// Whether the driver says that there is a duplicate.
fn is_duplicate(error: &Error) -> bool {
    let driver = error.source().and_then(|source| source.downcast_ref::<mongodb::error::Error>());
    driver.is_some_and(|driver| driver.to_string().contains("E11000"))
}
