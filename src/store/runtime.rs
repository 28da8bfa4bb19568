//! The runtime on which the tasks of a handle and of its store run.
//!
//! Purpose: what keeps a lease does not depend on which runtime calls, nor on whether that one is driven afterwards.
//!
//! Mechanism: each handle and each store has a [`Home`]. A handle that opens its client has a thread of its own, whose
//! runtime is its home. Any other has the runtime in which it was made, or that of its first task if it was made outside of
//! one.
//!
//! Invariant: a task runs on the home, whichever runtime starts it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;
use tokio_util::{sync::DropGuard, task::AbortOnDropHandle};
use tracing::Instrument;

use crate::types::error::{Error, Result, Source};

/// The runtime of a handle or a store.
#[derive(Debug)]
pub(crate) struct Home {
    runtime: OnceLock<Handle>,
    /// Ends the thread of the runtime, if the handle has one of its own.
    thread: Option<DropGuard>,
    /// Whether a caller has the client whose connections the thread reads.
    has_lent: AtomicBool,
}

impl Home {
    /// The runtime in which this is called. Outside of one, that of the first task.
    pub(crate) fn here() -> Arc<Self> {
        let runtime = Handle::try_current().map_or_else(|_none| OnceLock::new(), OnceLock::from);
        Arc::new(Self { runtime, thread: None, has_lent: AtomicBool::new(false) })
    }

    /// A runtime whose thread ends when this is dropped.
    pub(crate) fn on_thread(runtime: Handle, thread: DropGuard) -> Arc<Self> {
        Arc::new(Self { runtime: OnceLock::from(runtime), thread: Some(thread), has_lent: AtomicBool::new(false) })
    }

    /// The runtime. Must be called inside of one: see [`current`].
    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.get_or_init(Handle::current)
    }

    /// The runtime, if there is one yet.
    pub(crate) fn known(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    /// Runs `work` on a task there, in the span of the caller, and waits for its end. If this is dropped, so is `work`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        AbortOnDropHandle::new(self.runtime().spawn(work.in_current_span()))
            .await
            .unwrap_or_else(|join| Err(ended(join)))
    }

    /// Notes that a caller has the client, or, after it was closed, that the client needs no thread.
    #[cfg_attr(not(feature = "mongodb"), allow(dead_code, reason = "for the client of MongoDB"))]
    pub(crate) fn lend(&self, has_lent: bool) {
        self.has_lent.store(has_lent, Ordering::Release);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Without its thread, the client that a caller still has would panic.
        if self.has_lent.load(Ordering::Acquire)
            && let Some(thread) = self.thread.take()
        {
            drop(thread.disarm());
        }
    }
}

/// The runtime in which this is called. Tokio would panic without one.
pub(crate) fn current() -> Result<Handle> {
    Handle::try_current().map_err(|source| {
        Error::invalid("no tokio runtime is running here: call this inside of one, or use the module `blocking`")
            .caused_by(source)
    })
}

/// The error of a call whose task was dropped by its runtime.
pub(crate) fn ended(cause: impl Into<Source>) -> Error {
    Error::unavailable(
        "the task of this request ended early: if the runtime in which the handle was made has ended, make a new handle; otherwise retry",
    )
    .caused_by(cause)
}
