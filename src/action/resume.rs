//! The verb `resume`: takes a lease up again that an earlier process or handle has left.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{
        handle_inner::HandleInner,
        refresh::Refreshing,
        resume::{self, ResumeSpec},
    },
    handle::{Async, Mongoseal, awaitable},
    lease::Lease,
    types::{error::Result, into_name::IntoName, key::Key, lease_id::LeaseId, token::FencingToken},
};

impl Mongoseal {
    /// Takes up a lease that is still held, by its key, lease id and token: see [`Resume`]. Nothing is sent until the
    /// returned builder is awaited.
    pub fn resume(&self, key: impl IntoName<Key>, id: LeaseId, token: FencingToken) -> Resume {
        Resume::new(self, key, id, token, Async)
    }
}

/// Takes up a lease that is still held. Awaiting it returns the [`Lease`].
///
/// [`Mongoseal::resume`](crate::Mongoseal::resume) makes it. It is for a process that continues the work of an earlier
/// one, which has left its lease by [`Lease::orphan`](crate::Lease::orphan), has transferred it by
/// [`Lease::transfer`](crate::Lease::transfer), or has died. The earlier process must have ended its work: two processes that use one lease both believe that they hold it.
///
/// It reads the record by a linearizable read, and requires a holder with this lease id and token. Then it refreshes the
/// lease. It never sends an acquire. So if the lease has ended, the call ends in [`Error::Lost`](crate::Error::Lost), and neither takes the
/// key again nor waits in its queue.
///
/// The lease keeps its token, owner, group, metadata, grace, minimum hold and the end of its maximum hold, and a lease
/// without expiry stays one. It is refreshed in
/// the background, and its drop releases it, as that of any lease.
///
/// # Caveats
///
/// The change stream notifies the handle of the acquire. So a revocation ends a resumed lease at its next refresh, at
/// most a third of its ttl later.
///
/// # Errors
///
/// - [`Error::Lost`](crate::Error::Lost): the lease is not held any more. The record may tell why: it was revoked, another lease holds the
///   key, or the record is gone. Otherwise the cause is [`Expired`](crate::LossCause::Expired), also after a release.
/// - [`Error::Unavailable`](crate::Error::Unavailable): the store did not confirm it within the operation timeout. The lease is as it was, and may
///   have been refreshed. Retry.
/// - [`Error::Invalid`](crate::Error::Invalid): the lease id is in use by a lease of this handle or a sibling, or a setting is not valid. Also
///   if the deployment must be changed.
/// - [`Error::Corrupt`](crate::Error::Corrupt): the document is not a record.
///
/// # Cancel safety
///
/// Dropping the future leaves the lease as it is: it is not released. A refresh may still be applied.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use mongoseal::{Mongoseal, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let store = Arc::new(MemoryStore::default());
/// let before = Mongoseal::builder().on_store(store.clone())?;
/// let lease = before.acquire("deploy").await?;
/// let (id, token) = (lease.id(), lease.token()); // Keep both where only the next process can read them.
/// lease.orphan();
/// before.shutdown().await;
///
/// let after = Mongoseal::builder().on_store(store)?;
/// let lease = after.resume("deploy", id, token).await?;
/// assert_eq!(lease.token(), token);
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a lease is not resumed until this is awaited or run"]
pub struct Resume<M = Async> {
    handle: Arc<HandleInner>,
    key: Result<Key>,
    id: LeaseId,
    token: FencingToken,
    ttl: Option<Duration>,
    refreshing: Refreshing,
    pub(crate) mode: M,
}

impl<M> Resume<M> {
    pub(crate) fn new(seal: &Mongoseal, key: impl IntoName<Key>, id: LeaseId, token: FencingToken, mode: M) -> Self {
        let (handle, key) = (Arc::clone(&seal.handle), key.into_name());
        Self { handle, key, id, token, ttl: None, refreshing: Refreshing::AtAThird, mode }
    }

    /// Changes the ttl, as [`Lease::extend`](crate::Lease::extend) does: the lease never ends sooner than before, and a
    /// lease without expiry is refused. Default: the ttl that the lease has.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the interval between refreshes: at most half the ttl. Default: a third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.refreshing = Refreshing::Every(interval);
        self
    }

    /// Turns refreshes in the background off: the lease ends with its ttl unless [`Lease::refresh`] is called.
    pub fn without_refresh(mut self) -> Self {
        self.refreshing = Refreshing::ByHand;
        self
    }

    pub(crate) async fn send(self) -> Result<Lease> {
        let Self { handle, key, id, token, ttl, refreshing, mode: _mode } = self;
        let spec = ResumeSpec { key: key?, id, token, ttl, refreshing };
        resume::resume(&handle, spec).await
    }
}

awaitable!(Resume => Lease);
