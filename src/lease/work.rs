//! Work that runs only while leases are held.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
};

use tokio_util::sync::CancellationToken;

use crate::types::error::Result;

/// Polls `work` until it returns or `check` fails. The value of work that returns after the deadline is refused, too.
pub(crate) async fn run_while_held<F: Future>(
    ended: &CancellationToken,
    check: impl Fn() -> Result<()>,
    work: Pin<&mut F>,
) -> Result<F::Output> {
    let value = run_until_lost(ended, &check, work).await?;
    check()?;
    Ok(value)
}

/// Polls `work` until it returns, perhaps after the deadline, or `check` fails.
///
/// `check` decides; `ended` only wakes this future when a lease ends.
pub(crate) async fn run_until_lost<F: Future>(
    ended: &CancellationToken,
    check: impl Fn() -> Result<()>,
    mut work: Pin<&mut F>,
) -> Result<F::Output> {
    let mut ended = pin!(ended.cancelled());
    poll_fn(|context| {
        // Polled for its waker only.
        let _woken = ended.as_mut().poll(context);
        check()?;
        work.as_mut().poll(context).map(Ok)
    })
    .await
}
