//! The handle: the state that all leases of a process share, and its shutdown.

use std::{
    fmt, future,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tracing::warn;

use crate::{
    engine::handle_inner::HandleInner,
    store::Capabilities,
    types::{deadline::Deadline, error::Result, owner::Owner},
};

/// A handle on a store of leases. A clone is cheap and shares everything.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// seal.scope(async |seal| {
///     let lease = seal.acquire("reports/nightly").await?;
///     println!("acting with token {}", lease.token());
///     Ok(())
/// })
/// .await
/// # }
/// ```
///
/// # Clean shutdown
///
/// [`shutdown`](Self::shutdown) releases all leases and waits for that, and [`scope`](Self::scope) calls it when its work
/// has ended, also by an error. If a process ends without it, its leases expire. Then an acquire of such a key waits for up
/// to the ttl and the grace of the lease, or is refused for as long.
#[derive(Clone)]
pub struct Mongoseal {
    pub(crate) handle: Arc<HandleInner>,
}

/// How a verb of a [`Mongoseal`] is run: it is awaited. The verbs of the module `blocking` have `Blocking` in place of it.
// The `send` of a verb binds its mode by name: without the feature `blocking` nothing else reads the field.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(unnameable_types, reason = "a caller never writes it: it is the default of the builders")]
pub struct Async;

/// Makes a builder awaitable: awaiting it calls its `send`.
macro_rules! awaitable {
    ($builder:ty => $output:ty) => {
        impl IntoFuture for $builder {
            type Output = $crate::types::error::Result<$output>;
            type IntoFuture = $crate::store::BoxFuture<Self::Output>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }
    };
}
pub(crate) use awaitable;

/// Declares setters of a builder with a field `options`: each sets the option of its name, which is `None` before.
macro_rules! option_setters {
    ($($(#[$doc:meta])+ pub fn $option:ident($argument:ident: $type:ty);)+) => {
        $(
            $(#[$doc])+
            pub fn $option(mut self, $argument: $type) -> Self {
                self.options.$option = Some($argument);
                self
            }
        )+
    };
}
pub(crate) use option_setters;

/// How much longer a shutdown waits than its tasks, which end with the operation timeout.
const SHUTDOWN_MARGIN: Duration = Duration::from_millis(50);

/// The part of the operation timeout in which a shutdown of many leases waits for answers.
const ANSWER_PART: f64 = 0.45;

/// The time to close the store, if releasing took all of the operation timeout.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Mongoseal {
    /// Runs `work` with this handle, shuts the handle down, and returns the value of the work. So the handle is shut down
    /// however the work ends: by a value, by an error in it, or by a panic.
    ///
    /// Clones of the handle are shut down, too. It takes as long as the work and a [`shutdown`](Self::shutdown).
    ///
    /// # Panics
    ///
    /// If the work panics, with its panic.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. Its leases are released in the background, and the handle is not shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::{Error, Mongoseal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let failed = seal.scope(async |seal| {
    ///     let _lease = seal.acquire("reports/nightly").await?;
    ///     Err::<(), _>(Error::invalid("the work failed"))
    /// });
    /// assert!(failed.await.is_err(), "and the lease is released");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn scope<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> T {
        // The work is not polled again after a panic.
        let ended = AssertUnwindSafe(work(&self)).catch_unwind().await;
        self.shutdown().await;
        ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// Shuts the handle down. No further acquire is possible. Every lease is over at once, with the
    /// reason [`ShutDown`](crate::EndReason::ShutDown), which cancels its [token](crate::Lease::cancellation_token), and is
    /// released at the store. The tasks of all leases have ended when
    /// this returns.
    ///
    /// A lease under which [`run`](crate::Lease::run), [`with`](crate::action::Acquire::with), [`once`](Self::once) or an
    /// [elector](crate::election::Elector) runs work is released when the work has ended. If it has not ended after four fifths of
    /// the operation timeout, because it blocks its thread or is not polled, the lease is not released: it expires. Any
    /// other lease is released at once, so end its work before this call.
    ///
    /// It takes at most the operation timeout and 100 ms. If there are many leases and the store cannot release all of
    /// them in two fifths of the operation timeout, the ttls end the others. A warning says how many leases were not
    /// released.
    ///
    /// If [`connect`](Self::connect) opened the client, the last of the [siblings](crate::Builder::sibling_of) closes
    /// it. A client of the caller stays open: end it by `client.shutdown().immediate(true)`, because a task of the driver that
    /// still runs at the end of the runtime can print a panic. A second call, or a call on a clone, waits for the same end.
    ///
    /// It waits for the answers to all requests, with one exception: the server holds the request for the next events
    /// of a change stream for up to two seconds. A task of the runtime awaits that answer and closes its connection.
    ///
    /// # Cancel safety
    ///
    /// Once it was polled, the shutdown goes on, and dropping the future only stops the wait. The client is then not
    /// closed here, but when the last clone is dropped.
    pub async fn shutdown(&self) {
        let handle = &self.handle;
        let context = &handle.context;
        let end = context.close();
        // If the runtime of the handle is not driven, its tasks do not end.
        end.later_by(SHUTDOWN_MARGIN).wait_for(context.tasks.wait()).await;
        let unreleased = handle.releases.take_unreleased();
        if unreleased > 0 {
            warn!(
                leases = unreleased,
                "the shutdown could not release all leases: their ttls end them, and a lease without expiry must be revoked"
            );
        }
        handle.leave();
        // Without a runtime no request was sent.
        if handle.siblings().is_over()
            && let Some(runtime) = context.home.known().cloned().or_else(|| Handle::try_current().ok())
        {
            // Requests without an answer may be for many leases, and the store may be busy with them.
            let until = handle.releases.deadline_at(context, ANSWER_PART);
            let deadline = Deadline::after(context.clock(), until.remaining().max(CLOSE_TIMEOUT));
            let store = context.store.clone();
            let close = async {
                let closing = runtime.spawn(async move { store.close(deadline).await });
                deadline.later_by(SHUTDOWN_MARGIN).wait_for(closing).await;
            };
            let closed = handle.siblings().closed.get_or_init(|| close);
            // An earlier call, which is not polled any more, may have begun.
            deadline.later_by(SHUTDOWN_MARGIN).wait_for(closed).await;
            context.home.lend(false);
        }
    }

    /// The name by which other processes see this handle's leases.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.handle.context.settings.owner
    }

    /// What the store of this handle can do. Needs no request.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.handle.context.store.capabilities()
    }

    /// Checks the deployment now instead of with the first acquire. The check fails unless:
    ///
    /// - it is a replica set of MongoDB 6.0 or later, or an allowed sharded cluster;
    /// - the client can reach the primary, and has logged in if that is required;
    /// - a majority write is in the journal;
    /// - the collection has no collation.
    ///
    /// It creates the TTL index if it is missing. On Redis the check fails unless the server is a primary of version 6.2 or
    /// later without cluster mode, and evicts no keys. Another store has checks of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) says what to change.
    /// [`Error::Unavailable`](crate::Error::Unavailable): the store did not answer within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The check may go on and does no harm.
    pub async fn prepare(&self) -> Result<()> {
        let context = &self.handle.context;
        context.ensure_open()?;
        context.request(context.operation_deadline(), |_| future::ready(Ok(()))).await
    }
}

impl fmt::Debug for Mongoseal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongoseal").field("owner", self.owner()).finish_non_exhaustive()
    }
}
