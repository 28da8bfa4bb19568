//! Tasks that send commands.
//!
//! Purpose: the driver warns that dropping one of its futures half-way can leave a connection in a bad state.
//!
//! Mechanism: each command runs on a task of its own. A caller waits for the task, and abandons the answer if it is
//! dropped.
//!
//! Invariant: a task runs to its end, whether or not its caller still waits.

use crate::{Deadline, Error, Result, store::BoxFuture, types::duration::format_duration};

/// Starts `work`, which reports its own result and ends after its callers have given up.
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    #[allow(clippy::disallowed_methods, reason = "owned by the callers that wait for its result, or by the store")]
    let _task = tokio::spawn(work);
}

/// Runs `work` on a task of its own. Waits for it until the deadline.
pub(super) fn run<T: Send + 'static>(
    deadline: Deadline,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<Result<T>> {
    Box::pin(async move {
        #[allow(clippy::disallowed_methods, reason = "owned by the call; ends with the driver's own timeouts")]
        let task = tokio::spawn(work);
        match tokio::time::timeout(deadline.remaining(), task).await {
            Ok(Ok(result)) => result,
            Ok(Err(join)) => Err(Error::unavailable(
                "the task that sent the request to MongoDB ended early: retry on a running runtime",
            )
            .caused_by(join)),
            Err(_elapsed) => Err(Error::unavailable(format!(
                "MongoDB did not answer within {}: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and retry",
                format_duration(deadline.whole())
            ))),
        }
    })
}

/// Runs `work`, which reads notifications, on a task of its own until it ends.
pub(super) fn run_until_end(
    work: impl Future<Output = Result<()>> + Send + 'static,
    ended_early: &'static str,
) -> BoxFuture<Result<()>> {
    Box::pin(async move {
        #[allow(clippy::disallowed_methods, reason = "owned by the call; ends soon after its receiver is dropped")]
        let task = tokio::spawn(work);
        task.await.unwrap_or_else(|join| Err(Error::unavailable(ended_early).caused_by(join)))
    })
}
