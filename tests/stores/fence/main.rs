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
    ClientSession, Collection,
    bson::{Document, doc},
};
use mongoseal::{Error, Fence, Fenced, FencingToken, Lease, fence::Change};
use mongoseal_test_support::{Sent, TestDatabase, eventually, millis, noting_client, secs};

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn one() -> Document {
    doc! { "_id": 1 }
}

fn plus() -> Document {
    doc! { "$inc": { "n": 1 } }
}

/// A database with order 1, of which there are 0.
async fn shop(name: &str) -> TestDatabase {
    let db = TestDatabase::new(&format!("mongoseal_fence_{name}")).await;
    db.put(doc! { "_id": 1, "n": 0 }).await;
    db
}

/// What tests do with the orders in their database.
trait Orders: Sized {
    fn orders(&self) -> Collection<Document>;

    /// The database by a client of its own with these options, and the commands that the client sends.
    async fn by_client(&self, options: &str) -> (Self, Sent);

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

    /// How many there are of order 1.
    async fn n(&self) -> i32 {
        self.order(1).await.get_i32("n").unwrap()
    }
}

impl Orders for TestDatabase {
    fn orders(&self) -> Collection<Document> {
        self.database.collection("orders")
    }

    async fn by_client(&self, options: &str) -> (Self, Sent) {
        let (client, sent) = noting_client(&self.set.uri_with(options)).await;
        (Self { set: self.set, database: client.database(self.database.name()), client }, sent)
    }
}

/// Writes order 1 by each verb and each kind of change, and passes each on with its answer.
async fn write_in_each_way(
    by: &Fenced<'_, Document>,
    mut answered: impl AsyncFnMut(&'static str, mongoseal::Result<()>),
) {
    // Neither a stage that makes a new document nor a token that was read takes the own token away.
    let anew = || vec![doc! { "$replaceWith": { "_id": 1, "m": 1 } }];
    let read = || doc! { "_id": 1, "m": 2, "fence": 99_i64 };
    let bulk = async |change| by.bulk_write([change]).await.map(drop);
    answered("update", by.update_one(one(), plus()).await.map(drop)).await;
    answered("update by a pipeline", by.update_one(one(), anew()).await.map(drop)).await;
    answered("upsert", by.update_one(one(), plus()).upsert(true).await.map(drop)).await;
    answered("replacement", by.replace_one(one(), read()).await.map(drop)).await;
    answered("replacing upsert", by.replace_one(one(), read()).upsert(true).await.map(drop)).await;
    answered("find and update", by.find_one_and_update(one(), plus()).await.map(drop)).await;
    answered("find and upsert", by.find_one_and_update(one(), plus()).upsert(true).await.map(drop)).await;
    answered("claim", by.claim(one()).await.map(drop)).await;
    answered("claiming upsert", by.claim(one()).upsert(true).await.map(drop)).await;
    answered("deletion", by.delete_one(one()).await.map(drop)).await;
    answered("insertion", by.insert_one(one()).await.map(drop)).await;
    answered("bulk update", bulk(Change::update_one(one(), plus())).await).await;
    answered("bulk upsert", bulk(Change::update_one(one(), plus()).upsert(true)).await).await;
    answered("bulk upsert by a pipeline", bulk(Change::update_one(one(), anew()).upsert(true)).await).await;
    answered("bulk replacement", bulk(Change::replace_one(one(), read())).await).await;
    answered("bulk replacing upsert", bulk(Change::replace_one(one(), read()).upsert(true)).await).await;
    answered("bulk deletion", bulk(Change::delete_one(one())).await).await;
    answered("bulk insertion", bulk(Change::insert_one(one())).await).await;
}

/// The work of a transaction: adds one to order 1.
async fn add_one(orders: &Collection<Document>, session: &mut ClientSession) -> mongoseal::Result<()> {
    orders.update_one(one(), plus()).session(session).await?;
    Ok(())
}

/// Adds one to order 1 in a transaction. Says how often its work ran.
async fn add(db: &TestDatabase, lease: &Lease) -> (mongoseal::Result<()>, u32) {
    let (orders, mut runs) = (db.orders(), 0);
    let work = async |session: &mut ClientSession| {
        runs += 1;
        add_one(&orders, session).await
    };
    (lease.transaction(work).await, runs)
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
