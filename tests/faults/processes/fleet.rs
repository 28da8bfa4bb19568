//! The fixture of a test: a database, workers, and a handle of its own.

use std::time::Duration;

use mongodb::{
    Collection, Database,
    bson::{Document, doc},
};
use mongoseal::{Error, FencingToken, Lease, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::{ReplicaSet, by_length, shared};

use crate::{
    crew::{Heard, Worker},
    eventually, millis, secs,
    words::{Ask, now},
    worker::KEY,
};

/// What a hand-over may take. A push judges that it is sooner than any ttl, and the night how much.
pub(crate) fn at_once() -> Duration {
    by_length(secs(60), millis(600))
}

/// Gives a lease back. Returns when that began.
pub(crate) async fn release(lease: Lease) -> Duration {
    let began = now();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    began
}

pub(crate) struct Fleet {
    uri: String,
    database: Database,
    seal: Mongoseal,
    grace: Duration,
    pub(crate) heard: Heard,
}

impl Fleet {
    /// On the shared set, which nobody hurts.
    pub(crate) async fn new(name: &str) -> Self {
        Self::on(shared(1).await, name).await
    }

    pub(crate) async fn on(set: &ReplicaSet, name: &str) -> Self {
        let database = set.client().await.database(&format!("mongoseal_{name}"));
        database.drop().await.unwrap();
        let seal = Mongoseal::on_shared_client(&database);
        Self { uri: set.uri(), database, seal, grace: Duration::ZERO, heard: Heard::new() }
    }

    /// With workers that ask for this grace.
    pub(crate) fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Workers that have connected.
    pub(crate) async fn workers<const N: usize>(&self) -> [Worker; N] {
        let mut workers = Vec::new();
        for number in 0..N {
            workers.push(self.worker(number).await);
        }
        workers.try_into().unwrap_or_else(|_| unreachable!("so many were started"))
    }

    /// A worker that has connected.
    pub(crate) async fn worker(&self, number: usize) -> Worker {
        Worker::start(number, &self.uri, self.database.name(), self.grace, &self.heard).await
    }

    /// The collection of the records, with its database.
    pub(crate) fn namespace(&self) -> String {
        format!("{}.mongoseal", self.database.name())
    }

    /// The key, held by the test.
    pub(crate) async fn hold(&self) -> Lease {
        self.seal.acquire(KEY).ttl(secs(300)).await.unwrap()
    }

    fn records(&self) -> Collection<Document> {
        self.database.collection("mongoseal")
    }

    pub(crate) async fn record(&self) -> Document {
        self.records().find_one(doc! { "_id": KEY }).await.unwrap().unwrap()
    }

    /// The owners of the entries of an array of the record.
    pub(crate) async fn owners(&self, array: &str) -> Vec<String> {
        let record = self.record().await;
        let owner = |entry: &mongodb::bson::Bson| entry.as_document().unwrap().get_str("owner").unwrap().to_owned();
        let mut owners: Vec<String> = record.get_array(array).unwrap().iter().map(owner).collect();
        if array == "queue" {
            // Whose turn is next comes last.
            owners.reverse();
        }
        owners
    }

    /// How many wait.
    pub(crate) async fn waiting(&self) -> usize {
        self.measure(doc! { "$size": "$queue" }).await
    }

    /// How large the record is, in bytes.
    pub(crate) async fn size(&self) -> usize {
        self.measure(doc! { "$bsonSize": "$$ROOT" }).await
    }

    /// How long the first holder lasts if nobody refreshes it, by the server's clock.
    pub(crate) async fn remaining(&self) -> Duration {
        let until = doc! { "$first": "$holders.expires_at" };
        let left = self.measure(doc! { "$toInt": { "$subtract": [until, "$$NOW"] } }).await;
        millis(left.try_into().unwrap())
    }

    async fn measure(&self, what: Document) -> usize {
        let measure = doc! { "_id": 0, "number": what };
        let found = self.records().find_one(doc! { "_id": KEY }).projection(measure).await.unwrap().unwrap();
        usize::try_from(found.get_i32("number").unwrap()).unwrap()
    }

    /// Lets a worker ask, and waits until it is in this place of the queue.
    pub(crate) async fn queue(&self, worker: &mut Worker, ask: Ask, place: usize) {
        worker.ask(ask).await;
        self.queued(place).await;
    }

    /// Waits until so many wait.
    pub(crate) async fn queued(&self, count: usize) {
        eventually(secs(60), &format!("{count} wait"), async || self.waiting().await == count).await;
    }

    /// Waits, for at most `within`, until the key can be had; that is with a larger token than all
    /// before, and nobody waits.
    pub(crate) async fn is_free(&self, within: Duration) {
        let began = now();
        let lease = loop {
            match self.seal.acquire(KEY).await {
                Ok(lease) => break lease,
                Err(Error::Held { owner, token, free_in, .. }) => {
                    let waited = now().saturating_sub(began);
                    assert!(waited < within, "{owner} has the key with {token} for {free_in:?} after {waited:?}");
                    tokio::time::sleep(millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert!(Some(lease.token()) > self.last_token(), "{} after {:?}", lease.token(), self.last_token());
        lease.release().await.unwrap();
        assert_eq!(self.waiting().await, 0, "nobody waits any more");
    }

    /// The key can be had within this time, and no two believed to hold it at once.
    pub(crate) async fn ends_well(&self, within: Duration) {
        self.is_free(within).await;
        self.heard.check();
    }

    fn last_token(&self) -> Option<FencingToken> {
        self.heard.grants().last().map(|grant| grant.0)
    }
}
