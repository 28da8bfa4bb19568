//! Tasks that send commands.
//!
//! Purpose: the driver warns that dropping one of its futures half-way can leave a connection in a bad state.
//!
//! Mechanism: each command runs on a task of its own, on the runtime of its store. A caller waits for the task, and abandons
//! the answer if it is dropped.
//!
//! Invariant: a command runs to its end, whether or not its caller still waits.

use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use crate::{
    store::{BoxFuture, runtime},
    types::{
        deadline::Deadline,
        duration::format_duration,
        error::{Error, Result},
    },
};

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
    let runtime = runtime.clone();
    Box::pin(async move {
        let ended = timeout(deadline.remaining(), run_until_end(&runtime, work)).await;
        ended.unwrap_or_else(|_elapsed| Err(silence(deadline)))
    })
}

/// The error of a request that was not answered in time.
pub(super) fn silence(deadline: Deadline) -> Error {
    Error::unavailable(format!(
        "MongoDB has not answered for {}: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and retry",
        format_duration(deadline.whole())
    ))
}

/// Runs `work` on a task of its own, and waits for its end.
pub(super) async fn run_until_end<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    spawn(runtime, work).await.unwrap_or_else(|join| Err(runtime::ended(join)))
}
