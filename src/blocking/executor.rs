//! The threads of a blocking handle, and how a call waits for a future.
//!
//! Purpose: a caller without a runtime needs one that refreshes its leases while it computes.
//!
//! Mechanism: the [`Home`] of the handle is a runtime with worker threads of its own. A call polls its future on the calling
//! thread, inside of that runtime, so that its timers and tasks are there. Between two polls the thread waits on a channel of
//! the standard library. In asynchronous code, a thread of the call's own does both.
//!
//! Invariants: the runtime lives as long as a handle, a lease, a stream or a task of it, all of which have the home. No drop
//! blocks, spawns, or ends a runtime.

use std::{
    cell::Cell,
    io, panic,
    pin::pin,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use futures_util::{Stream, StreamExt, stream::Fuse};
use tokio::{
    runtime::{self, Handle, Runtime},
    task::{self, coop::unconstrained},
};

use crate::{engine::owned_runtime, store::runtime::Home, types::error::Result};

/// How many threads run the tasks: a task that computes does not delay the refreshes.
const WORKER_THREADS: usize = 2;

thread_local! {
    /// Whether this thread is one of a blocking handle.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// How a verb of a blocking handle is run: its `run` blocks until the answer is there.
///
/// Each handle, its verbs and its leases have one.
#[derive(Clone, Debug)]
pub struct Blocking {
    pub(super) home: Arc<Home>,
}

impl Blocking {
    /// Starts the threads of a handle.
    pub(super) fn start() -> Result<Self> {
        Ok(Self { home: owned_runtime::start_home(build_runtime)? })
    }

    /// Runs a future, and blocks until it has ended.
    pub(super) fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        let mut future = pin!(future);
        if IS_WORKER.get() {
            // In a caller's closure on one of these threads: another thread takes over its tasks. Tokio takes it from the runtime
            // that is entered, which must be that of the thread.
            return task::block_in_place(|| self.poll(future));
        }
        // What a worker of another runtime spawns there may wait for that worker, and a thread that ends has no runtime any more.
        if !Handle::try_current().is_err_and(|error| error.is_missing_context()) {
            let ended = thread::scope(|scope| {
                let started = thread::Builder::new().spawn_scoped(scope, || self.poll(future.as_mut()));
                started.ok().map(thread::ScopedJoinHandle::join)
            });
            if let Some(ended) = ended {
                return ended.unwrap_or_else(|panic| panic::resume_unwind(panic));
            }
        }
        self.poll(future)
    }

    /// Polls a future on this thread until it has ended, inside of the runtime of the handle.
    fn poll<T>(&self, future: impl Future<Output = T>) -> T {
        let _inside = self.home.runtime().enter();
        block_on(future)
    }

    /// Runs a future, blocks until it has ended, and wraps its value.
    pub(super) fn run<T: Send, U>(
        self,
        future: impl Future<Output = Result<T>> + Send,
        wrap: impl FnOnce(T, Self) -> U,
    ) -> Result<U> {
        let value = self.wait(future)?;
        Ok(wrap(value, self))
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

/// Polls a future on this thread until it has ended. Tokio's own `block_on` panics on a thread of its runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (wake, woken) = mpsc::sync_channel(1);
    let waker = Waker::from(Arc::new(Signal(wake)));
    // The task of another runtime that makes this call may have used up its budget.
    let mut future = pin!(unconstrained(future));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        // The waker has the sender.
        let _always_ok = woken.recv();
    }
}

/// Ends the wait of a thread. A message of its own, because code in the future may wait by the token of its thread, too.
struct Signal(SyncSender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        // If the channel is full, the thread is woken already.
        let _is_first = self.0.try_send(());
    }
}

/// A stream as an iterator, whose `next` blocks until the next item.
///
/// It is made by [`Mongoseal::watch`](super::Mongoseal::watch), [`Leases::run`](super::Leases::run) and other calls that
/// return a stream in the asynchronous API. The documentation of that stream says which items it has. It ends with
/// the stream.
///
/// Another thread can end the wait for an event by [`Mongoseal::shutdown`](super::Mongoseal::shutdown).
#[derive(Debug)]
#[must_use = "an iterator does nothing until its `next` is called"]
pub struct StreamIter<S> {
    stream: Fuse<S>,
    mode: Blocking,
}

impl<S: Stream> StreamIter<S> {
    pub(super) fn new(stream: S, mode: Blocking) -> Self {
        Self { stream: stream.fuse(), mode }
    }
}

impl<S: Stream<Item: Send> + Unpin + Send> Iterator for StreamIter<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        self.mode.wait(self.stream.next())
    }
}
