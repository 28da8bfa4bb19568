//! The client of a store, which stores may share.
//!
//! Purpose: the last store closes the client, if it belongs to its stores.
//!
//! Mechanism: each open store owns a part of the client.
//!
//! Invariant: a client of the caller has no such owner, and is never closed.

use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use mongodb::Client;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::AbortOnDropHandle;

use super::admission::Admission;
use crate::{store::pool::PoolShares, types::lock::lock};

/// What bounds the requests and streams of a client.
struct Limits {
    /// How many connections the stores have.
    connections: u32,
    /// The bound of the requests that are under way.
    requests: Admission,
    /// Permits for further change streams, and how many streams there may be in all.
    streams: Arc<Semaphore>,
    max_streams: usize,
}

/// The permit of a change stream, until this is dropped.
pub(in crate::store::mongo) struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    /// Has the permit of a request as long as the stream keeps a connection.
    _connection: AbortOnDropHandle<()>,
}

/// One store's share of its client. It ends when the store is closed or this is dropped.
pub(in crate::store::mongo) struct ClientShare {
    limits: Arc<Limits>,
    /// `None`: the store was closed, or the client is the caller's.
    owned: Mutex<Option<Arc<Client>>>,
}

impl ClientShare {
    /// The share of a first store, on a client of the caller, who knows how many change streams it needs.
    pub(in crate::store::mongo) fn of_caller(connections: u32) -> Self {
        Self::begin(None, connections, Semaphore::MAX_PERMITS)
    }

    /// The share of a first store, on a client that belongs to its stores, for at most so many change streams.
    pub(in crate::store::mongo) fn owned(client: Client, connections: u32, max_streams: usize) -> Self {
        Self::begin(Some(Arc::new(client)), connections, max_streams.min(Semaphore::MAX_PERMITS))
    }

    fn begin(owned: Option<Arc<Client>>, connections: u32, max_streams: usize) -> Self {
        let shares = PoolShares::of(connections);
        let requests = Admission::new(shares.asking, shares.ending);
        let limits = Limits { connections, requests, streams: Arc::new(Semaphore::new(max_streams)), max_streams };
        Self { limits: Arc::new(limits), owned: Mutex::new(owned) }
    }

    /// How many connections the stores have.
    pub(in crate::store::mongo) fn connections(&self) -> u32 {
        self.limits.connections
    }

    /// The share of another store.
    pub(in crate::store::mongo) fn join(&self) -> Self {
        Self { limits: Arc::clone(&self.limits), owned: Mutex::new(lock(&self.owned).clone()) }
    }

    /// The bound of the requests of all its stores that are under way.
    pub(in crate::store::mongo) fn requests(&self) -> &Admission {
        &self.limits.requests
    }

    /// Takes a permit for a change stream. The error is the most streams that there may be. The stream keeps a connection, so
    /// it takes a permit of those that ask, too, as soon as one is free.
    pub(in crate::store::mongo) fn take_stream_permit(&self, runtime: &Handle) -> Result<StreamPermit, usize> {
        let permit =
            Arc::clone(&self.limits.streams).try_acquire_owned().map_err(|_none_left| self.limits.max_streams)?;
        let limits = Arc::clone(&self.limits);
        let connection = runtime.spawn(async move {
            let _permit = limits.requests.admit_stream().await;
            pending::<()>().await;
        });
        Ok(StreamPermit { _permit: permit, _connection: AbortOnDropHandle::new(connection) })
    }

    /// Ends the share, once. Returns the client if it must be closed now.
    pub(in crate::store::mongo) fn leave(&self) -> Option<Client> {
        lock(&self.owned).take().and_then(Arc::into_inner)
    }
}
