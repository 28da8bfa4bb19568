//! How blocking handles are made.

use std::sync::Arc;

use super::{Mongoseal, executor::Blocking};
use crate::{
    Error, Result,
    store::{Connector, Store},
};

impl crate::Builder {
    /// Builds a [`blocking::Mongoseal`](crate::blocking::Mongoseal) with these settings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mongoseal::blocking::Mongoseal;
    ///
    /// let seal = Mongoseal::builder().owner("reporter-3").ttl(Duration::from_secs(60)).blocking().in_memory()?;
    /// assert_eq!(seal.owner().as_str(), "reporter-3");
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn blocking(self) -> Builder {
        Builder { settings: self }
    }
}

/// Makes a [`Mongoseal`] with the settings of a [`mongoseal::Builder`](crate::Builder), whose
/// [`blocking`](crate::Builder::blocking) makes it.
///
/// # Errors
///
/// Each call returns [`Error::Invalid`] if the settings contradict each other, or include
/// [`dedicated_thread`](crate::Builder::dedicated_thread): a blocking handle has threads of its own. It returns
/// [`Error::Unavailable`] if no thread could be started.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is connected"]
pub struct Builder {
    settings: crate::Builder,
}

impl Builder {
    /// Connects to a MongoDB replica set and checks it: see [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect), and those of the [`Builder`].
    #[cfg(feature = "mongodb")]
    pub fn connect(self, uri: impl AsRef<str>) -> Result<Mongoseal> {
        let uri = uri.as_ref().to_owned();
        self.start(|settings| async move { settings.connect(uri).await })
    }

    /// Opens a store by the connector of its package, and makes a handle on it: see
    /// [`mongoseal::Builder::connect_to`](crate::Builder::connect_to).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Builder::connect_to`](crate::Builder::connect_to), and those of the [`Builder`].
    pub fn connect_to(self, connector: impl Connector + 'static) -> Result<Mongoseal> {
        self.start(|settings| async move { settings.connect_to(connector).await })
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
    /// Those of the [`Builder`], and [`Error::Invalid`] if the other handle and all its siblings were shut down.
    pub fn sibling_of(self, other: &Mongoseal) -> Result<Mongoseal> {
        let (settings, seal) = (self.checked()?, other.as_async().clone());
        let (seal, executor) = other.executor.open(async move { settings.sibling_of(&seal) })?;
        Ok(Mongoseal { seal, executor })
    }

    fn start<F>(self, open: impl FnOnce(crate::Builder) -> F) -> Result<Mongoseal>
    where
        F: Future<Output = Result<crate::Mongoseal>> + Send + 'static,
    {
        let (seal, executor) = Blocking::start(open(self.checked()?))?;
        Ok(Mongoseal { seal, executor })
    }

    /// Refuses a setting that a blocking handle does not need.
    fn checked(self) -> Result<crate::Builder> {
        if self.settings.dedicated_thread {
            return Err(Error::invalid("a blocking handle has threads of its own: leave out `dedicated_thread`"));
        }
        Ok(self.settings)
    }
}

impl Mongoseal {
    /// Starts a builder with the default settings. [`blocking`](crate::Builder::blocking) ends the settings:
    /// `Mongoseal::builder().owner("reporter-3").blocking().connect(uri)`.
    pub fn builder() -> crate::Builder {
        crate::Mongoseal::builder()
    }

    /// Connects to a MongoDB replica set with the default settings, and checks it: see
    /// [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::connect`](crate::Mongoseal::connect), and [`Error::Unavailable`] if no thread could be
    /// started.
    #[cfg(feature = "mongodb")]
    pub fn connect(uri: impl AsRef<str>) -> Result<Self> {
        Self::builder().blocking().connect(uri)
    }

    /// Makes a handle on records in this process, for tests, examples and programs of one process.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no thread could be started.
    pub fn in_memory() -> Result<Self> {
        Self::builder().blocking().in_memory()
    }
}
