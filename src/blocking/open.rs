//! How blocking handles are made.

use std::sync::Arc;

use super::{Mongoseal, executor::Blocking};
use crate::{
    store::{Connector, MemoryStore, Store, runtime::Home},
    types::error::Result,
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
        self.start(|settings| async move { settings.connect_on(uri, Home::here()).await })
    }

    /// Opens a store by the connector of its package, and makes a handle on it: see
    /// [`mongoseal::Builder::connect_to`](crate::Builder::connect_to).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Builder::connect_to`](crate::Builder::connect_to), and those of the [`Builder`].
    pub fn connect_to(self, connector: impl Connector + 'static) -> Result<Mongoseal> {
        self.start(|settings| async move { settings.connect_to_on(connector, Home::here()).await })
    }

    /// Makes a handle on records in this process.
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`].
    pub fn in_memory(self) -> Result<Mongoseal> {
        self.start(|settings| async move { settings.in_memory() })
    }

    /// Makes a handle on a custom store: see [`mongoseal::Builder::on_store`](crate::Builder::on_store).
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`].
    pub fn on_store(self, store: Arc<dyn Store>) -> Result<Mongoseal> {
        self.start(|settings| async move { settings.on_store(store) })
    }

    /// Makes a sibling of another handle, which shares its threads: see
    /// [`mongoseal::Builder::sibling_of`](crate::Builder::sibling_of).
    ///
    /// # Errors
    ///
    /// Those of the [`Builder`], and [`Error::Invalid`](crate::Error::Invalid) if the other handle and all its siblings were shut down.
    pub fn sibling_of(self, other: &Mongoseal) -> Result<Mongoseal> {
        let (settings, seal): (crate::Builder, _) = (self.with_mode(), other.as_async().clone());
        let (seal, executor) = other.executor.open(async move { settings.sibling_of(&seal) })?;
        Ok(Mongoseal { seal, executor })
    }

    fn start<F>(self, open: impl FnOnce(crate::Builder) -> F) -> Result<Mongoseal>
    where
        F: Future<Output = Result<crate::Mongoseal>> + Send + 'static,
    {
        let (seal, executor) = Blocking::start(open(self.with_mode()))?;
        Ok(Mongoseal { seal, executor })
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
        let store = store.clone();
        let open = async move { Ok(crate::Mongoseal::in_memory_on(&store)) };
        let (seal, executor) = Blocking::start(open)?;
        Ok(Self { seal, executor })
    }
}
