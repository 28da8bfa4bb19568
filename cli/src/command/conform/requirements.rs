//! Runs the conformance suite in the scratch collection, or under the scratch prefix.
//!
//! A requirement fails by a panic, whose message is the finding. Each requirement has a time limit, so no requirement ends
//! or delays the others.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Once},
    time::Duration,
};

use futures_util::{FutureExt, Stream, StreamExt, stream};
use mongoseal::store::Store;
use mongoseal_conformance::Requirement;
use tokio::time::timeout;

use crate::time;

/// How many requirements run at a time. Most of their time passes until leases expire.
const PARALLEL: usize = 16;
/// The longest time that a requirement may take. Each takes a few seconds.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

tokio::task_local! {
    /// Set while a requirement is polled, whose panics are caught.
    static IS_CAUGHT: ();
}

/// Runs requirements, a few at a time, and returns their results in their order. Dropping the stream ends them.
pub(super) fn run(
    requirements: &[&'static Requirement],
    store: &Arc<dyn Store>,
) -> impl Stream<Item = Result<(), String>> {
    silence_caught_panics();
    let checks = requirements.iter().map(|requirement| limited(LIMIT, requirement.check(Arc::clone(store))));
    stream::iter(checks.collect::<Vec<_>>()).buffered(PARALLEL)
}

/// Runs a requirement, and returns why it failed.
async fn limited(limit: Duration, requirement: impl Future<Output = ()>) -> Result<(), String> {
    match timeout(limit, IS_CAUGHT.scope((), AssertUnwindSafe(requirement).catch_unwind())).await {
        Ok(done) => done.map_err(|panic| message(panic.as_ref())),
        Err(_elapsed) => Err(format!("it has not ended within {}", time::format(limit))),
    }
}

/// Prints no message for a panic that is caught. All other panics are printed as before.
fn silence_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if IS_CAUGHT.try_with(|()| ()).is_err() {
                print(panic);
            }
        }));
    });
}

/// Returns the message of a panic, as one line.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_and_a_hang_are_failures_with_a_message_of_one_line() {
        silence_caught_panics();
        let limit = Duration::from_secs(5);
        assert_eq!(limited(limit, async {}).await, Ok(()));
        let failed = limited(limit, async { assert_eq!(1, 2, "the counts of {} must be equal", "two") }).await;
        assert_eq!(
            failed,
            Err("assertion `left == right` failed: the counts of two must be equal left: 1 right: 2".into())
        );
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            panic!("late");
        };
        assert_eq!(limited(limit, late).await, Err("late".into()));
        assert_eq!(limited(limit, std::future::pending()).await, Err("it has not ended within 5 s".into()));
        assert!(IS_CAUGHT.try_with(|()| ()).is_err());
    }
}
