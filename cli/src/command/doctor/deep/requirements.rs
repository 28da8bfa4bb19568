//! Runs the conformance suite in the scratch collection, or under the scratch prefix.
//!
//! A requirement fails by a panic, whose message is the finding. Each requirement has a time limit, so no requirement ends
//! or delays the others. If a requirement fails that has a ttl or a hold, or that does not end, it is tried once more with longer
//! times, because a slow server exceeds the times of the first try. Slowness excuses no other failure.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, Stream, StreamExt, stream};
use mongoseal::store::Store;
use mongoseal_conformance::Requirement;
use tokio::time::timeout;

use crate::time;

/// How many requirements run at a time. Most of their time passes until leases expire.
const PARALLEL: usize = 16;
/// The longest time that the first try of a requirement may take. Each takes a few seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// How many times longer the times of the second try are, also its limit.
const PATIENCE: u32 = 4;

tokio::task_local! {
    /// Set while a requirement is polled, whose panics are caught.
    static IS_CAUGHT: ();
}

/// What a requirement was found to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Checked {
    Holds,
    /// It failed with this message, and holds with longer times.
    HoldsSlowly(String),
    /// It fails with this message.
    Fails(String),
}

/// How far the requirements are.
#[derive(Default)]
pub(super) struct Progress {
    ended: Cell<usize>,
    again: Cell<usize>,
}

impl Progress {
    /// Returns the text of the progress line.
    pub(super) fn text(&self, all: usize) -> String {
        let again = match self.again.get() {
            0 => String::new(),
            again => format!(", {again} more with longer times"),
        };
        format!("checked {} of {all} requirements{again}", self.ended.get())
    }
}

fn add(count: &Cell<usize>, by: isize) {
    count.set(count.get().saturating_add_signed(by));
}

/// Runs requirements, a few at a time, and returns their results in their order. Dropping the stream ends them.
pub(super) fn run<'a>(
    requirements: &[&'static Requirement],
    store: &Arc<dyn Store>,
    progress: &'a Progress,
) -> impl Stream<Item = Checked> + use<'a> {
    silence_caught_panics();
    let checks = requirements.iter().map(|requirement| {
        let is_timed = Arc::new(AtomicBool::new(false));
        let first = requirement.check_noting_time(Arc::clone(store), Arc::clone(&is_timed));
        let patient = requirement.with_patience(PATIENCE);
        let store = Arc::clone(store);
        twice(progress, is_timed, first, async move { patient.check(store).await })
    });
    stream::iter(checks.collect::<Vec<_>>()).buffered(PARALLEL)
}

/// Runs a requirement. If it fails for a reason that may be slowness, runs `again`: the same with longer times. `is_timed`: what
/// the first run has noted.
async fn twice(
    progress: &Progress,
    is_timed: Arc<AtomicBool>,
    first: impl Future<Output = ()>,
    again: impl Future<Output = ()>,
) -> Checked {
    let checked = match limited(LIMIT, first).await {
        Ok(()) => Checked::Holds,
        Err(Failed { message, is_late: false }) if !is_timed.load(Ordering::Relaxed) => Checked::Fails(message),
        Err(Failed { message, .. }) => {
            add(&progress.again, 1);
            let ended = limited(LIMIT * PATIENCE, again).await;
            add(&progress.again, -1);
            match ended {
                Ok(()) => Checked::HoldsSlowly(message),
                Err(again) => Checked::Fails(format!("failed twice, also with longer times: {}", again.message)),
            }
        }
    };
    add(&progress.ended, 1);
    checked
}

/// Why a requirement failed, and whether it was stopped because it did not end.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    message: String,
    is_late: bool,
}

/// Runs a requirement, and returns why it failed.
async fn limited(limit: Duration, requirement: impl Future<Output = ()>) -> Result<(), Failed> {
    match timeout(limit, IS_CAUGHT.scope((), AssertUnwindSafe(requirement).catch_unwind())).await {
        Ok(done) => done.map_err(|panic| Failed { message: message(panic.as_ref()), is_late: false }),
        Err(_elapsed) => {
            Err(Failed { message: format!("it has not ended within {}", time::format(limit)), is_late: true })
        }
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
        let counted = limited(limit, async { assert_eq!(1, 2, "the counts of {} must be equal", "two") }).await;
        let said = "assertion `left == right` failed: the counts of two must be equal left: 1 right: 2";
        assert_eq!(counted.unwrap_err().message, said);
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            panic!("late");
        };
        let failed = |message: &str, is_late| Err(Failed { message: message.into(), is_late });
        assert_eq!(limited(limit, late).await, failed("late", false));
        assert_eq!(limited(limit, std::future::pending()).await, failed("it has not ended within 5 s", true));
        assert!(IS_CAUGHT.try_with(|()| ()).is_err());
    }

    /// The requirements have ttls and holds of a few seconds.
    #[tokio::test(start_paused = true)]
    async fn a_requirement_that_fails_is_tried_once_more_if_slowness_can_be_the_cause() {
        silence_caught_panics();
        let progress = Progress::default();
        let fail = |message: &'static str| async move { panic!("{message}") };
        let never = || async { unreachable!("it is not run again") };
        let timed = || Arc::new(AtomicBool::new(true));
        assert_eq!(twice(&progress, timed(), async {}, never()).await, Checked::Holds);
        let late = async { tokio::time::sleep(LIMIT * 2).await };
        assert_eq!(twice(&progress, timed(), fail("late"), late).await, Checked::HoldsSlowly("late".into()));
        assert_eq!(progress.text(9), "checked 2 of 9 requirements");
        let mut both = std::pin::pin!(twice(&progress, timed(), fail("first"), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            panic!("second");
        }));
        assert_eq!((&mut both).now_or_never(), None);
        assert_eq!(progress.text(9), "checked 2 of 9 requirements, 1 more with longer times");
        assert_eq!(both.await, Checked::Fails("failed twice, also with longer times: second".into()));
        let hang = twice(&progress, Arc::default(), std::future::pending(), std::future::pending());
        let expected = "failed twice, also with longer times: it has not ended within 4 m";
        assert_eq!(hang.await, Checked::Fails(expected.into()));
        // Two grants of one key are no matter of time.
        let wrong = twice(&progress, Arc::default(), fail("two were granted the key"), never());
        assert_eq!(wrong.await, Checked::Fails("two were granted the key".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn all_requirements_hold_on_a_store_in_memory_and_are_counted() {
        let store: Arc<dyn Store> = Arc::new(mongoseal::store::MemoryStore::default());
        let (requirements, _) = mongoseal_conformance::requirements_of(&*store);
        let progress = Progress::default();
        let checked: Vec<Checked> = run(&requirements, &store, &progress).collect().await;
        assert!(checked.iter().all(|checked| *checked == Checked::Holds), "{checked:?}");
        assert_eq!(progress.ended.get(), requirements.len());
    }
}
