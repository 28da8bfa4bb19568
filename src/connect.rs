//! How handles are made on a store: in memory, on MongoDB, by a [`Connector`], and as siblings.
//!
//! This is the only module that knows both the engine and a particular store.

#[cfg(feature = "mongodb")]
mod mongo;

use std::{sync::Arc, time::Duration};

use crate::{
    builder::Builder,
    engine::{handle_inner::HandleInner, owned_runtime, settings::Settings},
    handle::Mongoseal,
    store::{
        Connector, MemoryStore, Store, StoreOptions,
        runtime::{self, Home},
    },
    types::{error::Result, ttl::Ttl},
};

impl Mongoseal {
    /// Makes a handle on records of its own in this process: a second call makes a handle that neither sees nor excludes the
    /// leases of the first. For two handles that exclude each other, as two processes on MongoDB do, use
    /// [`in_memory_on`](Self::in_memory_on).
    ///
    /// It is for tests, examples and programs of one process. It has tokio's clock, which a test can pause.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::in_memory_on(&MemoryStore::default())
    }

    /// Makes a handle on the records of a store in this process. Handles on one store behave like processes on one
    /// collection.
    ///
    /// The ttl is the default of a handle, 30 seconds, or the retention of the store if that is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Error, Mongoseal, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let store = MemoryStore::default();
    /// let (alice, bob) = (Mongoseal::in_memory_on(&store), Mongoseal::in_memory_on(&store));
    /// let lease = alice.acquire("reports/nightly").await?;
    /// assert!(matches!(bob.acquire("reports/nightly").await, Err(Error::Held { .. })));
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory_on(store: &MemoryStore) -> Self {
        let ttl = Ttl::DEFAULT.duration().min(Store::retention(store));
        of_defaults(Self::builder().ttl(ttl).on_store(Arc::new(store.clone())))
    }
}

impl Builder {
    /// Makes a handle on records of its own in this process: see [`Mongoseal::in_memory`]. For handles that exclude each
    /// other, pass clones of one [`MemoryStore`] to [`on_store`](Self::on_store).
    ///
    /// # Errors
    ///
    /// As [`on_store`](Self::on_store).
    pub fn in_memory(self) -> Result<Mongoseal> {
        let store = MemoryStore::new(self.settings()?.retention);
        self.on_store(Arc::new(store))
    }

    /// Opens a store by the connector of its package, makes a handle on it, and checks the store. The settings of this
    /// builder apply, with the [database](Self::database), the [collection](Self::collection) and the
    /// [retention](Self::retention). The package `mongoseal-redis` has a connector
    /// for Redis: see [the guide](crate::guide::redis).
    ///
    /// What the connector opens belongs to the handle, and [`shutdown`](Mongoseal::shutdown) closes it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other, or if one of them, the connector or the
    /// deployment must be changed. [`Error::Unavailable`](crate::Error::Unavailable) if the store did not answer within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the store and ends the thread. A check that is in flight may go on and does no harm.
    pub async fn connect_to(self, connector: impl Connector) -> Result<Mongoseal> {
        on_own_thread(|home| self.connect_to_on(connector, home)).await
    }

    /// Opens a store by a connector, and makes a handle whose tasks run on this home, where the future must run.
    pub(crate) fn connect_to_on(
        self,
        connector: impl Connector,
        home: Arc<Home>,
    ) -> impl Future<Output = Result<Mongoseal>> + Send + 'static {
        let opening = (|| -> Result<_> {
            self.refuse("on the store of a connector", &["allow_sharded", "connections"])?;
            let settings = self.settings()?;
            let opening = connector.connect(self.store_options(settings.retention));
            Ok((settings, opening))
        })();
        async move {
            let (settings, opening) = opening?;
            let store = opening.await?;
            let retention = settings.retention.min(store.retention());
            let seal = Mongoseal { handle: HandleInner::new(store, Settings { retention, ..settings }, home)? };
            seal.prepare().await?;
            Ok(seal)
        }
    }

    /// The settings that concern a store.
    fn store_options(&self, retention: Duration) -> StoreOptions {
        StoreOptions { database: self.options.database.clone(), collection: self.options.collection.clone(), retention }
    }

    /// Makes a sibling of another handle: a handle with settings of its own on the other's client. So a process can
    /// have a handle for each of many tenants. Each sibling is shut down by itself, and the last one closes the client.
    ///
    /// Siblings on the same collection share its records, and one change stream for all their waiters and holders. If
    /// this builder names a database or a collection, the sibling keeps its records there: it shares the client with
    /// the other handle, but no record. A client that [`connect`](Self::connect) opened has at most 16 change streams,
    /// or half of a larger `maxPoolSize` less 16. If none is left, a sibling polls and logs a warning. A sibling on Redis has
    /// a connection for its messages while it waits or holds.
    ///
    /// Siblings also share the thread of the other handle, if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other, or if the other handle and all
    /// its siblings were shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let tenant = Mongoseal::builder().owner("tenant-7").sibling_of(&seal)?;
    /// let lease = tenant.acquire("tenant-7/import").await?;
    /// tenant.shutdown().await;
    /// assert!(!lease.is_valid());
    /// seal.acquire("tenant-7/import").await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On MongoDB a tenant can have a collection of its own:
    ///
    /// ```no_run
    /// use mongoseal::Mongoseal;
    ///
    /// # async fn tenant() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::connect("mongodb://localhost:27017").await?;
    /// let tenant = Mongoseal::builder().collection("tenant_7").sibling_of(&seal)?;
    /// # tenant.acquire("import").await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sibling_of(self, other: &Mongoseal) -> Result<Mongoseal> {
        let here = "on a sibling, which has the client of the other handle (set it on that handle)";
        self.refuse(here, &["allow_sharded", "connections"])?;
        let settings = self.settings()?;
        let store = &other.handle.context.store;
        if let Some(store) = store.sibling(&self.store_options(settings.retention))? {
            return Ok(Mongoseal { handle: other.handle.sibling_on(store, settings)? });
        }
        let retention = store.retention();
        self.ensure_retention(retention)?;
        Ok(Mongoseal { handle: other.handle.sibling(Settings { retention, ..settings })? })
    }
}

/// A test proves that the default settings are valid, also with the shortest retention.
fn of_defaults(made: Result<Mongoseal>) -> Mongoseal {
    made.unwrap_or_else(|error| unreachable!("the default settings are valid: {error}"))
}

/// Starts the thread of a handle, and runs `connect` there. A client reads its connections on the runtime where it is made.
async fn on_own_thread<F>(connect: impl FnOnce(Arc<Home>) -> F) -> Result<Mongoseal>
where
    F: Future<Output = Result<Mongoseal>> + Send + 'static,
{
    runtime::current()?;
    let home = owned_runtime::start_home(owned_runtime::build)?;
    let connecting = {
        let _inside = home.runtime().enter();
        // Boxed, because a future is as large as the largest that it awaits.
        Box::pin(connect(Arc::clone(&home)))
    };
    home.run(connecting).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_settings_are_valid() {
        assert!(Mongoseal::builder().settings().is_ok());
    }
}
