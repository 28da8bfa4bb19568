//! Work that runs only while leases are held.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
};

use tokio_util::sync::CancellationToken;

use super::{Granted, Lease};
use crate::types::error::Result;

/// Runs `work` while all leases are held.
pub(crate) async fn run_under<F: Future>(held: &impl Granted, work: F) -> Result<F::Output> {
    // Before the work, so that it is dropped after it.
    let _at_work: Vec<_> = held.leases().iter().map(|lease| lease.lease_inner().begin_work()).collect();
    run_while_held(held.ended(), || held.leases().iter().try_for_each(Lease::check), pin!(work)).await
}

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
