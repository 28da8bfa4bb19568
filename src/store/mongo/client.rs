//! The client of a store, which stores may share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use mongodb::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admission::Admission;
use crate::store::pool::PoolShares;

/// What the stores of one client share.
struct SharedClient {
    client: Client,
    /// Whether the last store closes the client.
    is_owned: bool,
    /// How many stores are open.
    open: AtomicUsize,
    /// Bounds the requests that are under way.
    admission: Admission,
    /// Permits for further change streams, and how many streams there may be in all.
    streams: Arc<Semaphore>,
    max_streams: usize,
}

/// One store's share of its client. It ends when the store is closed or this is dropped.
pub(super) struct ClientShare {
    shared: Arc<SharedClient>,
    has_left: AtomicBool,
}

impl ClientShare {
    /// The share of a first store, on a client of the caller, who knows how many change streams it needs.
    pub(super) fn of_caller(client: Client, pool: PoolShares) -> Self {
        Self::begin(client, false, pool.requests, Semaphore::MAX_PERMITS)
    }

    /// The share of a first store, on a client that belongs to its stores.
    pub(super) fn owned(client: Client, pool: PoolShares) -> Self {
        Self::begin(client, true, pool.requests, pool.streams.min(Semaphore::MAX_PERMITS))
    }

    fn begin(client: Client, is_owned: bool, requests: usize, max_streams: usize) -> Self {
        let shared = SharedClient {
            client,
            is_owned,
            open: AtomicUsize::new(1),
            admission: Admission::new(requests),
            streams: Arc::new(Semaphore::new(max_streams)),
            max_streams,
        };
        Self { shared: Arc::new(shared), has_left: AtomicBool::new(false) }
    }

    /// The share of another store.
    pub(super) fn join(&self) -> Self {
        self.shared.open.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(&self.shared), has_left: AtomicBool::new(false) }
    }

    /// Bounds the requests of all its stores that are under way.
    pub(super) fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Takes a permit for a change stream. The error is the most streams that there may be.
    pub(super) fn take_stream_permit(&self) -> Result<OwnedSemaphorePermit, usize> {
        Arc::clone(&self.shared.streams).try_acquire_owned().map_err(|_none_left| self.shared.max_streams)
    }

    /// Ends the share, once. Returns the client if it must be closed now.
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
