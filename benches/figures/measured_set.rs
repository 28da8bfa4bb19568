//! The measured replica set, and the floor: plain writes on the same set.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
    options::{ClientOptions, ReturnDocument, WriteConcern},
};
use mongoseal::Mongoseal;
use mongoseal_test_support::{Builder, ReplicaSet, shared};

use crate::cpu::Clocks;

/// The samples of a case between two blocks of its floor. What a secondary has left to do after a block counts to the
/// next block, so blocks of single samples would blur the processor times.
pub(crate) const BLOCK: usize = 10;

pub(crate) struct MeasuredSet {
    pub(crate) set: &'static ReplicaSet,
    /// How many rounds every case runs.
    pub(crate) rounds: usize,
    floor: Collection<Document>,
}

/// Where the set is, without the monitoring ten times as often that tests ask for.
pub(crate) fn as_users(set: &ReplicaSet) -> String {
    let uri = set.uri();
    let (address, options) = uri.split_once('?').unwrap_or((&uri, ""));
    let kept = options.split('&').filter(|option| !option.starts_with("heartbeat") && !option.contains("Monitoring"));
    format!("{address}?{}", kept.collect::<Vec<_>>().join("&"))
}

/// Three members that keep their files in this folder, or else in memory.
pub(crate) fn three_members(disk: Option<&Path>) -> Builder {
    let builder = ReplicaSet::builder().members(3);
    match disk {
        Some(folder) => builder.on_disk(folder),
        None => builder,
    }
}

/// A client for the floor.
pub(crate) async fn bare_client(set: &ReplicaSet) -> Client {
    let mut options = ClientOptions::parse(as_users(set)).await.expect("the URI of the set is valid");
    options.retry_writes = Some(false);
    Client::with_options(options).expect("the options of the set are valid")
}

impl MeasuredSet {
    pub(crate) async fn start(rounds: usize, disk: Option<&Path>) -> Self {
        let set = match disk {
            // It ends with the process, as the shared one does.
            Some(_) => Box::leak(Box::new(three_members(disk).start().await)),
            None => shared(3).await,
        };
        let client = bare_client(set).await;
        let database = client.database("mongoseal_figures");
        database.drop().await.expect("the database can be dropped");
        let measured = Self { set, rounds, floor: database.collection("floor") };
        // Connections, caches and files that are there from the beginning in real life.
        measured.floor(200).await;
        measured
    }

    /// The floor: the driver's bare `find_one_and_update` with `$inc`, confirmed by a majority.
    pub(crate) async fn floor(&self, times: usize) -> Vec<Duration> {
        self.floor_after(Duration::ZERO, times).await
    }

    /// The same, each after a pause, in which processors fall asleep and others' data into their caches.
    pub(crate) async fn floor_after(&self, pause: Duration, times: usize) -> Vec<Duration> {
        let mut took = Vec::new();
        for _ in 0..times {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let began = Instant::now();
            self.floor
                .find_one_and_update(doc! { "_id": "floor" }, doc! { "$inc": { "n": 1 } })
                .upsert(true)
                .return_document(ReturnDocument::After)
                .write_concern(WriteConcern::majority())
                .await
                .expect("the floor is updated");
            took.push(began.elapsed());
        }
        took
    }

    /// A handle with a client of its own, as a process has.
    pub(crate) async fn handle(&self) -> Mongoseal {
        Mongoseal::builder().database("mongoseal_figures").connect(as_users(self.set)).await.expect("the set is fit")
    }

    /// So many handles, each with a client of its own.
    pub(crate) async fn handles(&self, count: usize) -> Vec<Mongoseal> {
        let mut handles = Vec::new();
        for _ in 0..count {
            handles.push(self.handle().await);
        }
        handles
    }

    /// The processor clocks of the members, with the current primary.
    pub(crate) async fn clocks(&self) -> Clocks {
        Clocks::new(self.set).await
    }

    pub(crate) fn database(&self) -> Database {
        self.floor.client().database("mongoseal_figures")
    }

    /// The records of the keys.
    pub(crate) fn records(&self) -> Collection<Document> {
        self.database().collection("mongoseal")
    }

    /// How long the primary's writes took since it started, each until it was confirmed.
    pub(crate) async fn writes(&self) -> Duration {
        let status = self.status().await;
        let writes = status.get_document("opLatencies").and_then(|latencies| latencies.get_document("writes"));
        let micros = writes.and_then(|writes| writes.get_i64("latency"));
        Duration::from_micros(micros.map_or(0, i64::unsigned_abs))
    }

    async fn status(&self) -> Document {
        let admin = self.floor.client().database("admin");
        admin.run_command(doc! { "serverStatus": 1 }).await.expect("serverStatus answers")
    }

    /// How many commands the primary ran that write records.
    pub(crate) async fn writes_sent(&self) -> u64 {
        self.commands("findAndModify").await + self.commands("update").await
    }

    /// How often the primary ran a command since it started.
    pub(crate) async fn commands(&self, name: &str) -> u64 {
        let status = self.status().await;
        let count = status
            .get_document("metrics")
            .and_then(|metrics| metrics.get_document("commands"))
            .and_then(|commands| commands.get_document(name))
            .and_then(|command| command.get_i64("total"));
        count.map_or(0, i64::unsigned_abs)
    }
}
