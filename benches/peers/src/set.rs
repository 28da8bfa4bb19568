//! The replica set that all peers on MongoDB share, the floor on it, and what it counts.

use std::time::{Duration, Instant};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::{ClientOptions, ReturnDocument, WriteConcern},
};
use mongoseal_test_support::{ReplicaSet, shared};

use crate::peer::{Result, Setup};

/// Commands that the primary ran since it started.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// What asks for keys, looks at them, or gives them back.
    pub(crate) requests: u64,
    /// What waits at a cursor: change streams, and the other members that read the oplog.
    pub(crate) reads: u64,
}

pub(crate) struct Set {
    uri: String,
    admin: Client,
}

impl Set {
    pub(crate) async fn start() -> Self {
        let uri = as_users(shared(3).await);
        let admin = Client::with_uri_str(&uri).await.expect("the URI of the set is valid");
        let set = Self { uri, admin };
        let floor = set.floor().await;
        // Connections, caches and files that are there from the beginning in real life.
        for _ in 0..200 {
            floor.update("floor").await;
        }
        set
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The floor, with a client of its own.
    pub(crate) async fn floor(&self) -> Floor {
        let mut options = ClientOptions::parse(&self.uri).await.expect("the URI of the set is valid");
        options.retry_writes = Some(false);
        let client = Client::with_options(options).expect("the options of the set are valid");
        Floor(client.database("peers_floor").collection("floor"))
    }

    pub(crate) async fn sent(&self) -> Sent {
        let status = self.command(doc! { "serverStatus": 1 }).await;
        let commands = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
        let commands = commands.expect("serverStatus counts commands");
        let count = |name: &&str| {
            let total = commands.get_document(name).and_then(|command| command.get_i64("total"));
            // A command never run may have no entry.
            total.map_or(0, i64::unsigned_abs)
        };
        let requests = ["findAndModify", "insert", "update", "delete", "find", "aggregate"];
        Sent { requests: requests.iter().map(count).sum(), reads: count(&"getMore") }
    }

    /// The write concern that the set gives to commands without one.
    pub(crate) async fn default_write_concern(&self) -> String {
        let answer = self.command(doc! { "getDefaultRWConcern": 1 }).await;
        answer.get_document("defaultWriteConcern").map_or_else(|_| "none".into(), described)
    }

    async fn command(&self, command: Document) -> Document {
        self.admin.database("admin").run_command(command).await.expect("the primary answers")
    }
}

/// Where the set is, without the monitoring ten times as often that tests ask for.
fn as_users(set: &ReplicaSet) -> String {
    let uri = set.uri();
    let (address, options) = uri.split_once('?').unwrap_or((&uri, ""));
    let kept = options.split('&').filter(|option| !option.starts_with("heartbeat") && !option.contains("Monitoring"));
    format!("{address}?{}", kept.collect::<Vec<_>>().join("&"))
}

/// A client for a peer, with this database by default; everything else as the driver has it.
pub(crate) async fn client(uri: &str, database: &str, setup: &Setup) -> Result<Client> {
    Ok(Client::with_options(options(uri, database, setup).await?)?)
}

/// The options of such a client.
pub(crate) async fn options(uri: &str, database: &str, setup: &Setup) -> Result<ClientOptions> {
    let mut options = ClientOptions::parse(uri).await?;
    options.default_database = Some(database.into());
    options.write_concern.clone_from(&setup.write_concern);
    options.command_event_handler.clone_from(&setup.listener);
    Ok(options)
}

/// A write concern in a command, in a word.
pub(crate) fn described(concern: &Document) -> String {
    concern.get("w").map_or_else(|| "none".into(), |w| w.as_str().map_or_else(|| w.to_string(), ToOwned::to_owned))
}

/// The least that could do the same: the driver's bare `find_one_and_update` with `$inc`, confirmed by a
/// majority.
pub(crate) struct Floor(Collection<Document>);

impl Floor {
    pub(crate) async fn update(&self, id: &str) -> Duration {
        let began = Instant::now();
        self.0
            .find_one_and_update(doc! { "_id": id }, doc! { "$inc": { "n": 1 } })
            .upsert(true)
            .return_document(ReturnDocument::After)
            .write_concern(WriteConcern::majority())
            .await
            .expect("the floor is updated");
        began.elapsed()
    }

    /// As many updates as a cycle has: one to acquire, one to release.
    pub(crate) async fn cycle(&self, id: &str) -> Duration {
        self.update(id).await + self.update(id).await
    }
}
