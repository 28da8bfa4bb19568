//! What is asked of every peer.

use std::{error::Error, time::Duration};

use async_trait::async_trait;
use mongodb::{
    event::{EventHandler, command::CommandEvent},
    options::WriteConcern,
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long a waiting acquire waits where the peer wants to know: longer than any case takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The ttl of everybody, except where ends of leases are looked at: the default of those that have one.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Between two attempts of those that have no interval of their own.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// What a peer is, in words.
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// How it waits for a held key, as it is used here, and whether that is its default.
    pub(crate) waits: &'static str,
    /// How long a lock lasts, and who keeps it alive.
    pub(crate) lasts: &'static str,
    /// Why it cannot be asked without waiting, if so.
    pub(crate) only_waits: Option<&'static str>,
    /// Whether its commands are MongoDB's.
    pub(crate) on_mongodb: bool,
    /// What else must be known to read its figures.
    pub(crate) note: Option<&'static str>,
}

/// With what a client is made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) ttl: Duration,
    /// The write concern of the client, as in `w=1`, of a peer on MongoDB.
    pub(crate) write_concern: Option<WriteConcern>,
    /// Who hears of its commands, of a peer on MongoDB.
    pub(crate) listener: Option<EventHandler<CommandEvent>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { ttl: TTL, write_concern: None, listener: None }
    }
}

/// Somebody's lock.
#[async_trait]
pub(crate) trait Peer: Send + Sync {
    fn about(&self) -> &About;

    /// A client with connections of its own, as a process has.
    async fn client(&self, setup: &Setup) -> Result<Box<dyn Client>>;
}

/// One who may ask for keys.
#[async_trait]
pub(crate) trait Client: Send + Sync {
    /// Asks once; none where the key is held. Not for those that only wait.
    async fn attempt(&self, key: &str) -> Result<Option<Box<dyn Held>>>;

    /// Waits until the key is free.
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>>;

    /// Ends it, where there is something to end.
    async fn close(&self) {}
}

/// A key that is held.
#[async_trait]
pub(crate) trait Held: Send {
    /// Its fencing token.
    fn token(&self) -> Option<u64>;

    async fn release(self: Box<Self>) -> Result<()>;
}
