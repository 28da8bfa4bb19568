//! The handle: what all leases of a process share.

use std::{fmt, sync::Arc, time::Duration};

use tokio::runtime::Handle;
use tracing::warn;

use crate::{
    Deadline, Owner, Result,
    engine::{retry, shared::Shared},
};

/// A handle on a store of leases. Cheap to clone; clones share everything.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("reports/nightly").await?;
/// println!("acting with token {}", lease.token());
/// seal.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// # Clean shutdown
///
/// [`shutdown`](Self::shutdown) releases what is held and waits for it. A process that ends
/// without it leaves its leases to expire, which costs whoever comes next up to a ttl and its grace.
#[derive(Clone)]
pub struct Mongoseal {
    pub(crate) shared: Arc<Shared>,
}

/// How much longer than its tasks, which end with the operation timeout, a shutdown waits.
const SHUTDOWN_MARGIN: Duration = Duration::from_millis(50);

/// The part of the operation timeout in which a shutdown with many leases waits for the answers to what was sent.
const ANSWERS: f64 = 0.45;

/// What a store gets to close in when releasing took all the time there was.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Mongoseal {
    /// Who this handle says it is to others.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.shared.context.settings.owner
    }

    /// Checks the deployment now instead of with the first acquire: that it is a replica set of
    /// MongoDB 6.0 or later, or an allowed sharded cluster; that the client can reach its primary and has logged in where
    /// that is required; that its majority means the journal; that the collection has no collation; and that the TTL index
    /// is there, which it makes if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) with what to change, or [`Error::Unavailable`](crate::Error::Unavailable) where nobody answered
    /// within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer; the check may go on and does no harm.
    pub async fn prepare(&self) -> Result<()> {
        let context = &self.shared.context;
        context.ensure_open()?;
        let until = context.operation_deadline();
        retry::until_definite(until, context.settings.attempt, |deadline| context.prepare(deadline)).await
    }

    /// Ends the handle: no further acquire, every lease is [`Lost`](crate::LeaseState::Lost) with
    /// cause [`ShutDown`](crate::LossCause::ShutDown) at once, is released at the store, and its
    /// task has ended when this returns. It takes no longer than the operation timeout and a tenth
    /// of a second. If there are many leases and the store cannot release all of them in two fifths of the operation timeout,
    /// their ttls end the others, and a warning says how many.
    ///
    /// A client that [`connect`](Self::connect) opened is closed, by the last of its
    /// [siblings](crate::Builder::sibling_of); one given by the caller is not.
    /// Calling it again, or on a clone, waits for the same end.
    ///
    /// It waits for the answers to all requests, with one exception: the server holds the request for the next events of a
    /// change stream for up to two seconds. A task of the runtime awaits that answer and closes its connection.
    ///
    /// # Cancel safety
    ///
    /// Once it was polled the shutdown goes on; dropping it only stops waiting. What is left
    /// undone is closing the client, which the last clone to be dropped does anyway.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        let context = &shared.context;
        let end = context.close();
        // The tasks of a runtime that is not driven do not end.
        context.before(end.later_by(SHUTDOWN_MARGIN), context.tasks.wait()).await;
        let unreleased = shared.shutdown_releases.take_unreleased();
        if unreleased > 0 {
            warn!(
                leases = unreleased,
                "the shutdown could not release all leases: their ttls end them, and those without expiry have to be revoked"
            );
        }
        shared.leave();
        // Without a runtime there is nothing open that would have to be closed.
        if shared.siblings().is_over() && Handle::try_current().is_ok() {
            // What is sent and not answered then may be requests for many leases, to a store that is busy with them.
            let until = shared.shutdown_releases.until(context, ANSWERS);
            let deadline = Deadline::after(context.clock(), until.remaining().max(CLOSE_TIMEOUT));
            shared.siblings().closed.get_or_init(|| context.store.close(deadline)).await;
        }
    }
}

impl fmt::Debug for Mongoseal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongoseal").field("owner", self.owner()).finish_non_exhaustive()
    }
}
