//! Handles on the store of another package.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{
    Error, Mongoseal, Result, blocking,
    store::{BoxFuture, Connector, MemoryStore, Store, StoreOptions},
};

use crate::{compare_and_swap::Table, secs};

/// Opens a store in memory, and notes the options.
#[derive(Clone, Default)]
struct InMemory(Arc<Mutex<Option<StoreOptions>>>);

impl InMemory {
    fn options(&self) -> StoreOptions {
        self.0.lock().unwrap().take().expect("it was called")
    }
}

impl Connector for InMemory {
    fn connect(self, options: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>> {
        Box::pin(async move {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new(options.retention));
            *self.0.lock().unwrap() = Some(options);
            Ok(store)
        })
    }
}

#[tokio::test]
async fn a_connector_gets_the_settings_that_concern_its_store() {
    let connector = InMemory::default();
    let seal = Mongoseal::builder().connect_to(connector.clone()).await.unwrap();
    let options = connector.options();
    assert_eq!((&options.database, &options.collection), (&None, &None));
    assert_eq!(options.retention, secs(24 * 3600));
    seal.acquire("k").await.unwrap().release().await.unwrap();

    let builder = Mongoseal::builder().database("app").collection("leases").retention(secs(100));
    let seal = builder.connect_to(connector.clone()).await.unwrap();
    let options = connector.options();
    assert_eq!((options.database.as_deref(), options.collection.as_deref()), (Some("app"), Some("leases")));
    assert_eq!(options.retention, secs(100));
    assert!(matches!(seal.acquire("k").ttl(secs(101)).await, Err(Error::Invalid { .. })));
}

impl Connector for Table {
    fn connect(self, _: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>> {
        Box::pin(async move { Ok(self.store()) })
    }
}

#[tokio::test]
async fn the_calls_of_a_backend_run_on_the_thread_of_the_handle() {
    let table = Table::new();
    let seal = Mongoseal::builder().connect_to(table.clone()).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    lease.verify().await.unwrap();
    seal.raise_token_floor("k", lease.token()).await.unwrap();
    assert_eq!(seal.leases().await.unwrap().collect().await.unwrap().len(), 1);
    lease.release().await.unwrap();
    seal.shutdown().await;
    assert_eq!(table.threads(), ["mongoseal"]);
}

#[test]
fn a_blocking_handle_is_opened_by_the_same_connector() {
    let connector = InMemory::default();
    let seal = blocking::Mongoseal::builder().retention(secs(100)).connect_to(connector.clone()).unwrap();
    assert_eq!(connector.options().retention, secs(100));
    seal.acquire("k").run().unwrap().release().unwrap();
}

/// Fails, as the connector of a server that is not there.
struct Unavailable;

impl Connector for Unavailable {
    fn connect(self, _: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>> {
        Box::pin(async { Err(Error::unavailable("the server does not answer: start it")) })
    }
}

#[tokio::test]
async fn what_a_connector_refuses_is_the_answer_and_options_of_mongodb_are_refused_before() {
    let error = Mongoseal::builder().connect_to(Unavailable).await.unwrap_err();
    assert!(error.to_string().contains("start it"), "{error}");
    let builder = Mongoseal::builder;
    for builder in [builder().allow_sharded(), builder().connections(7), builder().ttl(Duration::ZERO)] {
        let error = builder.connect_to(Unavailable).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sibling_has_the_collection_that_the_backend_opens_for_it() {
    let seal = Table::new().seal();
    let sibling = |name: &str| Mongoseal::builder().retention(secs(3600)).collection(name).sibling_of(&seal);
    let (tenant, same) = (sibling("tenant").unwrap(), sibling("leases").unwrap());
    let _lease = seal.acquire("k").await.unwrap();
    tenant.acquire("k").await.unwrap().release().await.unwrap();
    assert!(matches!(same.acquire("k").await, Err(Error::Held { .. })));
    assert!(sibling("").unwrap_err().to_string().contains("a table has a name"));
}
