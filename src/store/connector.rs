//! How a handle opens a store, and which settings of the handle concern the store.
//!
//! Purpose: the package of a store connects like the MongoDB store of this crate, for asynchronous and blocking callers.
//!
//! Mechanism: a [`Connector`] gets the [`StoreOptions`] of a handle and returns a store.
//! [`Builder::connect_to`](crate::Builder::connect_to) calls it and checks the store.

use std::{sync::Arc, time::Duration};

use super::{BoxFuture, Store};
use crate::types::error::{Error, Result};

/// Opens the store of a handle: see [`Builder::connect_to`](crate::Builder::connect_to).
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use mongoseal::{
///     Mongoseal, Result,
///     store::{BoxFuture, Connector, MemoryStore, Store, StoreOptions},
/// };
///
/// struct InMemory;
///
/// impl Connector for InMemory {
///     fn connect(self, options: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>> {
///         Box::pin(async move {
///             options.refuse_place()?;
///             Ok(Arc::new(MemoryStore::new(options.retention)) as Arc<dyn Store>)
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let seal = Mongoseal::builder().owner("reporter-3").connect_to(InMemory).await?;
/// # seal.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub trait Connector: Send {
    /// Opens a store with these options. It need not check it: the handle calls [`Store::prepare`].
    ///
    /// This future is polled inside of the runtime of the handle, and those of the store also in the runtimes of callers. So
    /// what reads a connection must be spawned from this future, or by the backend of a
    /// [`CompareAndSwap`](super::CompareAndSwap) that this future has made.
    ///
    /// # Errors
    ///
    /// `Invalid` if an option does not fit the store. `Unavailable` if a retry may succeed.
    fn connect(self, options: StoreOptions) -> BoxFuture<Result<Arc<dyn Store>>>;
}

/// The settings of a handle that concern its store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The database of the records: [`Builder::database`](crate::Builder::database). `None`: the store's default.
    pub database: Option<String>,
    /// The collection of the records: [`Builder::collection`](crate::Builder::collection). `None`: the store's default.
    pub collection: Option<String>,
    /// How long idle records are kept at least: [`Builder::retention`](crate::Builder::retention).
    pub retention: Duration,
}

impl StoreOptions {
    /// Refuses options that name a database or a collection, for a store that has only one place for records.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] names the option.
    pub fn refuse_place(&self) -> Result<()> {
        let option = match self {
            Self { database: Some(_), .. } => "database",
            Self { collection: Some(_), .. } => "collection",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!(
            "the store of this handle has one place for records: leave `{option}` out of the settings"
        )))
    }
}
