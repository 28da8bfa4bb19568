//! A runtime that no caller drives, on a thread of its own.
//!
//! Purpose: if all threads of a caller's runtime are blocked, it refreshes no lease. A handle that opens its client and the
//! blocking API do not depend on their callers' threads.
//!
//! Mechanism: a new thread builds the runtime, and shuts it down when a future has ended. A runtime cannot be dropped in
//! asynchronous code.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
};

use tokio::runtime::{self, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use crate::{
    store::runtime::Home,
    types::error::{Error, Result},
};

/// Starts a runtime on a new thread of this name. Both end when the future has ended.
pub(crate) fn start(
    name: &str,
    build: fn() -> io::Result<Runtime>,
    until: impl Future<Output = ()> + Send + 'static,
) -> Result<Handle> {
    let unable = || {
        Error::invalid(
            "no thread could be started for this handle: raise the limit of processes and threads (ulimit -u) and that of open files (ulimit -n)",
        )
    };
    let (send, started) = mpsc::sync_channel(1);
    let run = move || match build() {
        Ok(runtime) => {
            drop(send.send(Ok(runtime.handle().clone())));
            runtime.block_on(until);
            // Does not wait for blocking work, such as the system's name resolution.
            runtime.shutdown_background();
        }
        Err(error) => drop(send.send(Err(error))),
    };
    let _detached = thread::Builder::new().name(name.into()).spawn(run).map_err(|source| unable().caused_by(source))?;
    match started.recv() {
        Ok(Ok(runtime)) => Ok(runtime),
        Ok(Err(source)) => Err(unable().caused_by(source)),
        // The runtime panics if the system refuses a worker thread.
        Err(panicked) => Err(unable().caused_by(panicked)),
    }
}

/// Starts a thread for a handle, with a current-thread runtime. Both end when the last user of the home is dropped.
pub(crate) fn start_home() -> Result<Arc<Home>> {
    let end = CancellationToken::new();
    let build = || runtime::Builder::new_current_thread().enable_all().build();
    let runtime = start("mongoseal", build, end.clone().cancelled_owned())?;
    Ok(Home::on_thread(runtime, end.drop_guard()))
}
