//! A database of a test in the shared set.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
};
use mongoseal::{Builder, Mongoseal};

use super::{ReplicaSet, shared};

/// A database of a test's own on the shared set of one member, empty at the beginning.
pub struct TestDatabase {
    /// The shared set, which is not to be hurt.
    pub set: &'static ReplicaSet,
    /// A client of the test's own.
    pub client: Client,
    /// The database, by that client.
    pub database: Database,
}

impl TestDatabase {
    /// The database of this name, emptied.
    ///
    /// # Panics
    ///
    /// If another test of this process has asked for this name: it would empty that test's database.
    pub async fn new(name: &str) -> Self {
        static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let is_new = NAMES.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        assert!(is_new, "two tests have the database {name}: give one of them another");
        let set = shared(1).await;
        let client = set.client().await;
        let database = client.database(name);
        database.drop().await.expect("the database can be dropped");
        Self { set, client, database }
    }

    /// A connection string whose default database this is.
    pub fn uri(&self) -> String {
        let (name, uri) = (self.database.name(), self.set.uri());
        let with_name = uri.replacen("/?", &format!("/{name}?"), 1);
        assert!(with_name.contains(name), "{uri} has no place for a database");
        with_name
    }

    /// A handle on the database.
    pub fn seal(&self) -> Mongoseal {
        self.build(Mongoseal::builder())
    }

    /// A handle with other settings than the default ones.
    pub fn build(&self, builder: Builder) -> Mongoseal {
        builder.on_shared_client(&self.database).expect("the settings are valid")
    }

    /// The records of the database's keys.
    pub fn records(&self) -> Collection<Document> {
        self.database.collection("mongoseal")
    }

    /// The record of a key as it is stored.
    pub async fn record(&self, key: &str) -> Option<Document> {
        self.records().find_one(doc! { "_id": key }).await.expect("the record can be read")
    }
}
