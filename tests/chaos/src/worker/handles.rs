//! The handles of a worker.

use std::{sync::Arc, time::Duration};

use mongodb::{Client, Collection, bson::Document, options::ClientOptions};
use mongoseal::{
    Builder, Error, Mongoseal, Result,
    store::{CompareAndSwap, MongoStore, Store},
};
use mongoseal_redis::{RedisBackend, RedisStore};

use super::{
    Backing, DOCUMENTS, OPERATION_TIMEOUT, REDIS_RETENTION, RETENTION, Spec,
    observed::{Notes, Observed},
    tampered::Tampered,
};
use crate::{crew::DATABASE, sabotage::Sabotage};

/// The connections of the store that takes notes, which most clients use: as many as a client that `connect` opens has.
const CONNECTIONS: u32 = 64;

/// How many of the handles of a process take no notes.
const PLAIN: usize = 12;

/// The pool of the client that the handles take as the caller's: for the store that takes notes, and for two others, which
/// bound their requests as for 10 connections each.
const POOL: u32 = CONNECTIONS + 2 * 10;

/// The pool of that client if its stores are made for a hundred times as many connections.
const OVERDRAWN: u32 = 10;

pub(super) struct Handles {
    /// Its store takes notes.
    pub(super) seal: Mongoseal,
    /// Siblings on the same client, and a handle of another store. Their stores take no notes. Transactions need that, and some
    /// clients acquire by them.
    pub(super) plain: Vec<Mongoseal>,
    /// A handle with a client and a thread of its own.
    pub(super) threaded: Mongoseal,
    /// What is written under leases. `None`: the store is none of MongoDB.
    pub(super) documents: Option<Collection<Document>>,
}

impl Handles {
    pub(super) async fn open(spec: &Spec, notes: &Arc<Notes>) -> Self {
        match spec.backing {
            Backing::MongoDb => {
                let mut options =
                    ClientOptions::parse(&spec.uri).await.expect("the runner's connection string is valid");
                let is_overdrawn = spec.sabotage == Some(Sabotage::OverdrawnPool);
                options.max_pool_size = Some(if is_overdrawn { OVERDRAWN } else { POOL });
                // As `Mongoseal::on_shared_client` says of a client of the caller's.
                options.max_connecting = Some(8);
                options.max_adaptive_retries = Some(0);
                let client = Client::with_options(options).expect("the options are valid");
                let database = client.database(DATABASE);
                let store = |connections| -> Arc<dyn Store> {
                    let connections = if is_overdrawn { 100 * OVERDRAWN } else { connections };
                    Arc::new(MongoStore::with_connections(&database, "mongoseal", RETENTION, connections))
                };
                let threaded = || builder(spec).retention(RETENTION).database(DATABASE);
                let threaded = ready(async || threaded().connect(&spec.uri).await).await;
                Self::on(spec, notes, &store, threaded, Some(database.collection(DOCUMENTS)))
            }
            Backing::Redis { replicas } => {
                let backend = RedisBackend::new(&spec.uri).expect("the runner's connection string is valid");
                let (backend, tampered) = (backend.with_replicas(replicas), spec.sabotage);
                let store = |_connections| -> Arc<dyn Store> {
                    match tampered.filter(|sabotage| Tampered::does(*sabotage)) {
                        Some(sabotage) => {
                            let tampered = Tampered::new(backend.clone(), sabotage, spec.worker);
                            Arc::new(CompareAndSwap::new(tampered, REDIS_RETENTION))
                        }
                        None => Arc::new(RedisStore::new(backend.clone(), REDIS_RETENTION)),
                    }
                };
                let threaded = || builder(spec).retention(REDIS_RETENTION).connect_to(backend.clone());
                let handles = Self::on(spec, notes, &store, ready(async || threaded().await).await, None);
                for seal in handles.plain.iter().chain([&handles.seal]) {
                    ready(async || seal.prepare().await).await;
                }
                handles
            }
        }
    }

    fn on(
        spec: &Spec,
        notes: &Arc<Notes>,
        store: &dyn Fn(u32) -> Arc<dyn Store>,
        threaded: Mongoseal,
        documents: Option<Collection<Document>>,
    ) -> Self {
        let (sabotage, notes) = (spec.sabotage, Arc::clone(notes));
        let observed = Observed { store: store(CONNECTIONS), worker: spec.worker, sabotage, notes };
        let seal = builder(spec).on_store(Arc::new(observed)).expect("the settings are valid");
        let independent = || builder(spec).on_store(store(10)).expect("the settings are valid");
        let first = independent();
        let handle = |number: usize| match number {
            _ if number == 1 || sabotage == Some(Sabotage::OwnStreams) => independent(),
            _ => builder(spec).sibling_of(&first).expect("the settings are valid"),
        };
        let mut plain: Vec<_> = (1..PLAIN).map(handle).collect();
        plain.push(first);
        let threaded = if sabotage == Some(Sabotage::NoThread) { independent() } else { threaded };
        Self { seal, plain, threaded, documents }
    }
}

/// A handle on the client of the plain ones, which its caller shuts down.
pub(super) fn sibling(spec: &Spec, handles: &Handles) -> Mongoseal {
    builder(spec).sibling_of(&handles.plain[0]).expect("the settings are valid")
}

pub(super) fn builder(spec: &Spec) -> Builder {
    let owner = format!("slot-{}/{}", spec.slot, spec.worker);
    let builder = Mongoseal::builder().owner(owner).ttl(Duration::from_secs(2)).grace(spec.least_grace);
    builder.operation_timeout(OPERATION_TIMEOUT)
}

/// Asks until the servers are fit. Those that do not answer now, or whose primary is another one in a moment, are not yet.
async fn ready<T>(ask: impl AsyncFn() -> Result<T>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(Error::Unavailable { .. }) => {}
            Err(error) if error.to_string().contains("is a replica") => {}
            Err(error) => panic!("a worker can use the servers: {error}"),
        }
    }
}
