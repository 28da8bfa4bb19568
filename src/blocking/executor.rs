//! The threads of a blocking handle, and how a call waits for a future on them.
//!
//! Purpose: a caller without a runtime needs one that refreshes its leases while it computes.
//!
//! Mechanism: an owner thread keeps a runtime with worker threads. A call spawns its future there and waits on a channel of
//! the standard library. So it never enters a runtime from its own thread, which may have another one.
//!
//! Invariants: the runtime lives until each handle on it is unused and the releases of its leases are answered, at most for
//! the operation timeout. No drop blocks, spawns, or ends a runtime.

use std::{
    cell::Cell,
    io,
    panic::resume_unwind,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle, Runtime},
    task,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Instrument;

use crate::{
    engine::owned_runtime,
    types::error::{Error, Result},
};

/// How many threads run the tasks: a task that computes does not delay the refreshes.
const WORKER_THREADS: usize = 2;

/// How much longer the threads live than the tasks of an unused handle, which end with the operation timeout.
const END_MARGIN: Duration = Duration::from_millis(100);

thread_local! {
    /// Whether this thread is one of a blocking handle.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// How a verb of a blocking handle is run: its `run` blocks until the threads of the handle have the answer.
///
/// Each handle, its verbs and its leases have one. While one of these exists, the handle is in use.
#[derive(Clone, Debug)]
pub struct Blocking {
    runtime: Handle,
    /// One task for each handle on the runtime. When the last of these tasks has ended, the runtime ends.
    handles: TaskTracker,
    _in_use: Arc<DropGuard>,
}

impl Blocking {
    /// Starts threads, and opens a first handle on them.
    pub(super) fn start(
        open: impl Future<Output = Result<crate::Mongoseal>> + Send + 'static,
    ) -> Result<(crate::Mongoseal, Self)> {
        let handles = TaskTracker::new();
        // The tracker is over when no handle is left.
        handles.close();
        // Keeps the threads until the handle is open.
        let (_opening, left) = (handles.token(), handles.clone());
        let runtime = owned_runtime::start("mongoseal-owner", build_runtime, async move { left.wait().await })?;
        Self::open_on(runtime, handles, open)
    }

    /// Opens another handle on the same threads.
    pub(super) fn open(
        &self,
        open: impl Future<Output = Result<crate::Mongoseal>> + Send + 'static,
    ) -> Result<(crate::Mongoseal, Self)> {
        Self::open_on(self.runtime.clone(), self.handles.clone(), open)
    }

    fn open_on(
        runtime: Handle,
        handles: TaskTracker,
        open: impl Future<Output = Result<crate::Mongoseal>> + Send + 'static,
    ) -> Result<(crate::Mongoseal, Self)> {
        let unused = CancellationToken::new();
        let executor = Self { runtime, handles, _in_use: Arc::new(unused.clone().drop_guard()) };
        let seal = executor.wait(open)?;
        let _ends_by_itself = executor.handles.spawn_on(end_unused(seal.clone(), unused), &executor.runtime);
        Ok((seal, executor))
    }

    /// Runs a future on the threads, blocks until it has ended, and wraps its value.
    pub(super) fn run<T, U>(
        self,
        future: impl Future<Output = Result<T>> + Send + 'static,
        wrap: impl FnOnce(T, Self) -> U,
    ) -> Result<U>
    where
        T: Send + 'static,
    {
        let value = self.wait(future)?;
        Ok(wrap(value, self))
    }

    /// Runs a future on the threads and blocks until it has ended. If it panics, so does this.
    pub(super) fn wait<T, E>(&self, future: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (send, answer) = mpsc::sync_channel(1);
        // A task of its own, so that the answer is sent even if it panics.
        let task = self.runtime.spawn(future.in_current_span());
        self.runtime.spawn(async move {
            // The caller waits for it, in every case.
            drop(send.send(task.await));
        });
        let ended = || Error::unavailable("the threads of this handle have ended: make a new handle");
        let joined = if IS_WORKER.get() {
            // In a caller's closure on one of these threads: another thread takes over its tasks.
            task::block_in_place(|| answer.recv())
        } else {
            answer.recv()
        };
        match joined {
            Ok(Ok(result)) => result,
            Ok(Err(join)) => match join.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(cancelled) => Err(ended().caused_by(cancelled).into()),
            },
            Err(gone) => Err(ended().caused_by(gone).into()),
        }
    }
}

fn build_runtime() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("mongoseal")
        .on_thread_start(|| IS_WORKER.set(true))
        .enable_all()
        .build()
}

/// Waits until the handle and its leases were dropped, and then for the tasks that release them.
async fn end_unused(seal: crate::Mongoseal, unused: CancellationToken) {
    unused.cancelled().await;
    let context = &seal.handle.context;
    context.tasks.close();
    context.operation_deadline().later_by(END_MARGIN).wait_for(context.tasks.wait()).await;
}
