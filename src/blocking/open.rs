//! How blocking handles are made.

use std::sync::Arc;

use super::{Mongoseal, executor::Blocking};
use crate::{
    store::{Connector, MemoryStore, Store, runtime::Home},
    types::{error::Result, ttl::Ttl},
};

/// The settings of a blocking handle, which [`Mongoseal::builder`] begins: those of a
/// [`mongoseal::Builder`](crate::Builder).
///
/// # Errors
///
/// Each call that makes a handle returns [`Error::Invalid`](crate::Error::Invalid) if the settings contradict each other, or if
/// no thread could be started.
pub type Builder = crate::Builder<Blocking>;

impl Builder {
    /// Connects to a MongoDB replica set and checks it: see [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect), and those of the [`Builder`].
    #[cfg(feature = "mongodb")]
    pub fn connect(self, uri: impl AsRef<str>) -> Result<Mongoseal> {
        let uri = uri.as_ref().to_owned();
        self.start(|settings, home| settings.connect_on(uri, home))
    }

    /// Opens a store by the connector of its package, and makes a handle on it: see
    /// [`mongoseal::Builder::connect_to`](crate::Builder::connect_to).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Builder::connect_to`](crate::Builder::connect_to), and those of the [`Builder`].
    pub fn connect_to(self, connector: impl Connector + 'static) -> Result<Mongoseal> {
        self.start(|settings, home| settings.connect_to_on(connector, home))
    }

    /// Makes a handle on records in this process.
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`].
    pub fn in_memory(self) -> Result<Mongoseal> {
        let store = MemoryStore::new(self.settings()?.retention);
        self.on_store(Arc::new(store))
    }

    /// Makes a handle on a custom store: see [`mongoseal::Builder::on_store`](crate::Builder::on_store).
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`].
    pub fn on_store(self, store: Arc<dyn Store>) -> Result<Mongoseal> {
        self.start(|settings, home| async { settings.on_store_at(store, home) })
    }

    /// Makes a sibling of another handle, which shares its threads: see
    /// [`mongoseal::Builder::sibling_of`](crate::Builder::sibling_of).
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`], and [`Error::Invalid`](crate::Error::Invalid) if the other handle and all its siblings were shut down.
    pub fn sibling_of(self, other: &Mongoseal) -> Result<Mongoseal> {
        let settings: crate::Builder = self.with_mode();
        other.mode.clone().run(async { settings.sibling_of(other.as_async()) }, Mongoseal::new)
    }

    /// Starts threads, and opens a handle whose tasks run on them.
    fn start<F>(self, open: impl FnOnce(crate::Builder, Arc<Home>) -> F) -> Result<Mongoseal>
    where
        F: Future<Output = Result<crate::Mongoseal>> + Send,
    {
        let mode = Blocking::start()?;
        let home = Arc::clone(&mode.home);
        mode.run(Box::pin(open(self.with_mode(), home)), Mongoseal::new)
    }
}

impl Mongoseal {
    /// Starts a builder with the default settings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mongoseal::blocking::Mongoseal;
    ///
    /// let seal = Mongoseal::builder().owner("reporter-3").ttl(Duration::from_secs(60)).in_memory()?;
    /// assert_eq!(seal.owner().as_str(), "reporter-3");
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn builder() -> Builder {
        crate::Mongoseal::builder().with_mode()
    }

    /// Connects to a MongoDB replica set with the default settings, and checks it: see
    /// [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect).
    #[cfg(feature = "mongodb")]
    pub fn connect(uri: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(uri)
    }

    /// Makes a handle on records in this process, for tests, examples and programs of one process.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if no thread could be started.
    pub fn in_memory() -> Result<Self> {
        Self::builder().in_memory()
    }

    /// Makes a handle on the records of a store in this process: see
    /// [`mongoseal::Mongoseal::in_memory_on`](crate::Mongoseal::in_memory_on).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if no thread could be started.
    pub fn in_memory_on(store: &MemoryStore) -> Result<Self> {
        let ttl = Ttl::DEFAULT.duration().min(Store::retention(store));
        Self::builder().ttl(ttl).on_store(Arc::new(store.clone()))
    }
}
