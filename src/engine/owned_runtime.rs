//! A runtime that no caller drives, on a thread of its own.
//!
//! Purpose: if all threads of a caller's runtime are blocked, it refreshes no lease. A handle that opens its client and the
//! blocking API do not depend on their callers' threads.
//!
//! Mechanism: a new thread builds the runtime, and shuts it down when the last user of its [`Home`] is dropped. A runtime
//! cannot be dropped in asynchronous code.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
};

use tokio::runtime::{self, Runtime};
use tokio_util::sync::CancellationToken;

use crate::{
    store::runtime::Home,
    types::error::{Error, Result},
};

/// Starts a thread for a handle, with a runtime. Both end when the last user of the home is dropped.
pub(crate) fn start_home(build: fn() -> io::Result<Runtime>) -> Result<Arc<Home>> {
    let unable = || {
        Error::invalid(
            "no thread could be started for this handle: raise the limit of processes and threads (ulimit -u) and that of open files (ulimit -n)",
        )
    };
    let (send, started) = mpsc::sync_channel(1);
    let end = CancellationToken::new();
    let until = end.clone().cancelled_owned();
    let run = move || match build() {
        Ok(runtime) => {
            drop(send.send(Ok(runtime.handle().clone())));
            runtime.block_on(until);
            // Does not wait for blocking work, such as the system's name resolution.
            runtime.shutdown_background();
        }
        Err(error) => drop(send.send(Err(error))),
    };
    let _detached =
        thread::Builder::new().name("mongoseal".into()).spawn(run).map_err(|source| unable().caused_by(source))?;
    match started.recv() {
        Ok(Ok(runtime)) => Ok(Home::on_thread(runtime, end.drop_guard())),
        Ok(Err(source)) => Err(unable().caused_by(source)),
        // The runtime panics if the system refuses a worker thread.
        Err(panicked) => Err(unable().caused_by(panicked)),
    }
}

/// Builds the runtime of an asynchronous handle, which needs no thread but that of its home.
pub(crate) fn build() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}
