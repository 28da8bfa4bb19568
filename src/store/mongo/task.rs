//! Tasks that send commands.
//!
//! Purpose: the driver warns that dropping one of its futures half-way can leave a connection in a bad state.
//!
//! Mechanism: each command runs on a task of its own, on the runtime of its store. A caller waits for the task, and abandons
//! the answer if it is dropped. A request that needs a permit waits for it on the task, too: a caller that is not polled any more
//! would keep a permit that it is given.
//!
//! Invariants: a command runs to its end, whether or not its caller still waits. A request whose caller gives up while it waits for
//! a permit is never sent.

use std::time::Duration;

use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    store::{BoxFuture, runtime},
    types::{
        deadline::Deadline,
        duration::format_duration,
        error::{Error, Result},
    },
};

/// How much sooner than its caller a request gives up to wait for a permit, at most a tenth of its time: so the caller gets the
/// error that says so.
const ERROR_MARGIN: Duration = Duration::from_millis(5);

/// When a request with this deadline gives up to wait for a permit.
pub(super) fn permit_deadline(deadline: Deadline) -> Deadline {
    deadline.sooner_by(ERROR_MARGIN.min(deadline.remaining().mul_f64(0.1)))
}

/// Starts `work` on this runtime. It ends by the driver's own timeouts, or after its callers have given up.
#[allow(clippy::disallowed_methods, reason = "owned by the callers that wait for its result, or by the store")]
pub(super) fn spawn<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(work)
}

/// Runs `work` on a task of its own. Waits for it until the deadline.
pub(crate) fn run<T: Send + 'static>(
    runtime: &Handle,
    deadline: Deadline,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<Result<T>> {
    let running = run_until_end(runtime, work);
    Box::pin(
        async move { timeout(deadline.remaining(), running).await.unwrap_or_else(|_elapsed| Err(silence(deadline))) },
    )
}

/// Waits for a permit, and then runs the work, on a task of its own, for which the tracker waits from now on. The caller waits
/// until the deadline.
pub(super) fn run_admitted<A, T, W>(
    (runtime, tracker): (&Handle, &TaskTracker),
    deadline: Deadline,
    admit: impl Future<Output = Result<A>> + Send + 'static,
    work: impl FnOnce(A) -> W + Send + 'static,
) -> BoxFuture<Result<T>>
where
    A: Send + 'static,
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
{
    let (mut reply, answer) = oneshot::channel();
    let task = tracker.track_future(async move {
        let admitted = tokio::select! {
            biased;
            () = reply.closed() => return,
            admitted = admit => admitted,
        };
        let done = match admitted {
            Ok(admitted) => work(admitted).await,
            Err(error) => Err(error),
        };
        drop(reply.send(done));
    });
    let runtime = runtime.clone();
    Box::pin(async move {
        let task = spawn(&runtime, task);
        match timeout(deadline.remaining(), answer).await {
            Ok(Ok(done)) => done,
            Ok(Err(closed)) => Err(task.await.err().map_or_else(|| runtime::ended(closed), runtime::ended)),
            Err(_elapsed) => Err(silence(deadline)),
        }
    })
}

/// The error of a request that was not answered in time.
fn silence(deadline: Deadline) -> Error {
    Error::unavailable(format!(
        "MongoDB has not answered for {}: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and retry",
        format_duration(deadline.whole())
    ))
}

/// Runs `work` on a task of its own, and waits for its end.
pub(super) fn run_until_end<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let runtime = runtime.clone();
    async move { spawn(&runtime, work).await.unwrap_or_else(|join| Err(runtime::ended(join))) }
}
