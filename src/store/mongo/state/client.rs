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
pub(in crate::store::mongo) struct Limits {
    /// How many connections the stores have.
    pub(in crate::store::mongo) connections: u32,
    /// The bound of the requests of all its stores that are under way.
    pub(in crate::store::mongo) requests: Admission,
    /// Permits for further change streams.
    streams: Arc<Semaphore>,
}

/// The permit of a change stream, until this is dropped, and the task that has the permit of a request as long as the stream
/// keeps a connection.
pub(in crate::store::mongo) type StreamPermit = (OwnedSemaphorePermit, AbortOnDropHandle<()>);

/// One store's share of its client. It ends when the store is closed or this is dropped.
pub(in crate::store::mongo) struct ClientShare {
    pub(in crate::store::mongo) limits: Arc<Limits>,
    /// `None`: the store was closed, or the client is the caller's.
    owned: Mutex<Option<Arc<Client>>>,
}

impl ClientShare {
    /// The share of a first store. A client that is passed belongs to its stores, and has a bounded number of change streams.
    /// Otherwise it is of the caller, who knows how many it needs.
    pub(in crate::store::mongo) fn new(owned: Option<Client>, connections: u32) -> Self {
        let shares = PoolShares::of(connections);
        let streams = if owned.is_some() { shares.streams } else { usize::MAX };
        let streams = Arc::new(Semaphore::new(streams.min(Semaphore::MAX_PERMITS)));
        let limits = Limits { connections, requests: Admission::new(shares.asking, shares.ending), streams };
        Self { limits: Arc::new(limits), owned: Mutex::new(owned.map(Arc::new)) }
    }

    /// The share of another store.
    pub(in crate::store::mongo) fn join(&self) -> Self {
        Self { limits: Arc::clone(&self.limits), owned: Mutex::new(lock(&self.owned).clone()) }
    }

    /// Takes a permit for a change stream. The error is the most streams that there may be. The stream keeps a connection, so
    /// it takes a permit of those that ask, too, as soon as one is free.
    pub(in crate::store::mongo) fn take_stream_permit(&self, runtime: &Handle) -> Result<StreamPermit, usize> {
        let limits = Arc::clone(&self.limits);
        let permit = Arc::clone(&limits.streams).try_acquire_owned();
        let permit = permit.map_err(|_none_left| PoolShares::of(limits.connections).streams)?;
        let connection = runtime.spawn(async move {
            let _permit = limits.requests.admit_stream().await;
            pending::<()>().await;
        });
        Ok((permit, AbortOnDropHandle::new(connection)))
    }

    /// Ends the share, once. Returns the client if it must be closed now.
    pub(in crate::store::mongo) fn leave(&self) -> Option<Client> {
        lock(&self.owned).take().and_then(Arc::into_inner)
    }
}
