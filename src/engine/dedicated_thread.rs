//! A thread for the tasks of one handle.
//!
//! Purpose: if all threads of a runtime are blocked, it refreshes no lease. A handle with a dedicated thread does not
//! depend on its callers' threads.
//!
//! Mechanism: a current-thread runtime on a new thread. Both end when the [`DedicatedThread`] is dropped.

use std::{fmt, thread};

use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, Result};

/// A runtime on a thread of its own. Dropping it ends both.
pub(crate) struct DedicatedThread {
    runtime: Handle,
    _end: DropGuard,
}

impl DedicatedThread {
    pub(crate) fn start() -> Result<Self> {
        let unable = |source| {
            Error::unavailable("no thread could be started for this handle: raise the limits of the process on threads and open files, and retry").caused_by(source)
        };
        let own = runtime::Builder::new_current_thread().enable_all().build().map_err(unable)?;
        let (runtime, end) = (own.handle().clone(), CancellationToken::new());
        let ended = end.clone();
        let thread = thread::Builder::new().name("mongoseal".into());
        let _detached = thread
            .spawn(move || {
                own.block_on(ended.cancelled_owned());
                // Does not wait for blocking work, such as the system's name resolution.
                own.shutdown_background();
            })
            .map_err(unable)?;
        Ok(Self { runtime, _end: end.drop_guard() })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl fmt::Debug for DedicatedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DedicatedThread")
    }
}
