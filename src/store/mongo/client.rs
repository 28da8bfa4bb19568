//! The client of a store, which other stores may share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use mongodb::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the stores on one client share.
struct SharedClient {
    client: Client,
    /// Whether the client is closed with the last of the stores.
    is_owned: bool,
    /// How many stores were not closed.
    open: AtomicUsize,
    /// The change streams that may still be opened, and how many there may be.
    streams: Arc<Semaphore>,
    max_streams: usize,
}

/// The part of one store in its client, given up when the store is closed or this is dropped.
pub(super) struct ClientShare {
    shared: Arc<SharedClient>,
    has_left: AtomicBool,
}

impl ClientShare {
    /// Of a first store, on a client of the caller's.
    pub(super) fn of_caller(client: Client) -> Self {
        Self::begin(client, false, Semaphore::MAX_PERMITS)
    }

    /// Of a first store, on a client that belongs to its stores and may have so many change streams.
    pub(super) fn owned(client: Client, max_streams: usize) -> Self {
        Self::begin(client, true, max_streams.min(Semaphore::MAX_PERMITS))
    }

    fn begin(client: Client, is_owned: bool, max_streams: usize) -> Self {
        let (open, streams) = (AtomicUsize::new(1), Arc::new(Semaphore::new(max_streams)));
        Self {
            shared: Arc::new(SharedClient { client, is_owned, open, streams, max_streams }),
            has_left: AtomicBool::new(false),
        }
    }

    /// Of another store.
    pub(super) fn join(&self) -> Self {
        self.shared.open.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(&self.shared), has_left: AtomicBool::new(false) }
    }

    /// The right to have a change stream open. An error is how many there may be.
    pub(super) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, usize> {
        Arc::clone(&self.shared.streams).try_acquire_owned().map_err(|_none_left| self.shared.max_streams)
    }

    /// Gives it up, once. Gives the client if it has to be closed now.
    pub(super) fn leave(&self) -> Option<Client> {
        let is_last =
            !self.has_left.swap(true, Ordering::AcqRel) && self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1;
        (is_last && self.shared.is_owned).then(|| self.shared.client.clone())
    }
}

impl Drop for ClientShare {
    fn drop(&mut self) {
        // The driver closes a client when its last clone is dropped.
        drop(self.leave());
    }
}
