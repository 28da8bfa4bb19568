//! Runs the conformance suite in the scratch collection, or under the scratch prefix.
//!
//! A requirement fails by a panic. Each requirement runs on a task of its own and has a time limit, so no requirement ends or delays
//! the others. The message of the panic is the finding.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{Arc, Once},
    task::Poll,
    time::Duration,
};

use mongoseal::store::Store;
use mongoseal_conformance::Requirement;
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::time;

/// How many requirements run at a time. Most of their time passes until leases expire.
const PARALLEL: usize = 8;
/// The longest time that a requirement may take. Each takes a few seconds.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The results of requirements that are running, in the order of the suite. Dropping it ends the requirements.
pub(super) struct Running {
    tasks: JoinSet<(usize, Result<(), String>)>,
    /// Results that came before that of an earlier requirement.
    early: BTreeMap<usize, Result<(), String>>,
    next: usize,
}

impl Running {
    /// Starts all requirements, a few at a time.
    pub(super) fn start(requirements: &[&'static Requirement], store: &Arc<dyn Store>) -> Self {
        silence_caught_panics();
        let (mut tasks, permits) = (JoinSet::new(), Arc::new(Semaphore::new(PARALLEL)));
        for (at, requirement) in requirements.iter().copied().enumerate() {
            let (store, permits) = (Arc::clone(store), Arc::clone(&permits));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                (at, limited(LIMIT, requirement.check(store)).await)
            });
        }
        Self { tasks, early: BTreeMap::new(), next: 0 }
    }

    /// Waits for the result of the next requirement. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<Result<(), String>> {
        loop {
            if let Some(result) = self.early.remove(&self.next) {
                self.next += 1;
                return Some(result);
            }
            let (at, result) = self.tasks.join_next().await?.ok()?;
            self.early.insert(at, result);
        }
    }

    /// Ends the requirements that are still running.
    pub(super) async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// Runs a requirement, and returns why it failed.
async fn limited(limit: Duration, requirement: impl Future<Output = ()>) -> Result<(), String> {
    match timeout(limit, catch(requirement)).await {
        Ok(done) => done,
        Err(_elapsed) => Err(format!("it has not ended within {}", time::format(limit))),
    }
}

thread_local! {
    /// Whether this thread polls a requirement, whose panics are caught.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Prints no message for a panic that is caught. All other panics are printed as before.
fn silence_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                print(panic);
            }
        }));
    });
}

/// Runs a future, and returns the message of its panic.
async fn catch(work: impl Future<Output = ()>) -> Result<(), String> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        IS_CAUGHT.set(true);
        let polled = panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        IS_CAUGHT.set(false);
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(message(panic.as_ref()))),
        }
    })
    .await
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
        assert_eq!(limited(limit, std::future::pending()).await, Err("it has not ended within 5s".into()));
        assert!(!IS_CAUGHT.get());
    }
}
