//! The runtime of this crate, and its waits.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;

/// A driver client lives in the runtime that made it. The clients of a shared set must outlive the
/// runtime of each test, so they live here.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("test-support")
        .enable_all()
        .build()
        .expect("the runtime of the test support starts")
});

/// The runtime itself, for work nobody waits for.
pub(crate) fn runtime() -> &'static Runtime {
    &RUNTIME
}

/// Runs `work` on the support runtime; a panic in it becomes a panic here.
pub(crate) async fn run<F>(work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    joined(RUNTIME.spawn(work).await)
}

/// Runs blocking `work` on a thread of the support runtime; a panic in it becomes a panic here.
pub(crate) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(RUNTIME.spawn_blocking(work).await)
}

fn joined<T>(outcome: Result<T, tokio::task::JoinError>) -> T {
    outcome.unwrap_or_else(|error| match error.try_into_panic() {
        // Its message went to the output of whichever test started the thread, so it is said again here.
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            panic!("{}", text.unwrap_or_else(|| "the test support panicked".to_owned()))
        }
        Err(error) => panic!("work of the test support was cancelled: {error}"),
    })
}

/// A condition being polled, and when to give up on it.
pub(crate) struct Waiting {
    goal: String,
    started: Instant,
    limit: Duration,
}

impl Waiting {
    const PAUSE: Duration = Duration::from_millis(20);

    /// `goal` ends the sentence "gave up waiting …".
    pub(crate) fn new(goal: impl Into<String>, limit: Duration) -> Self {
        Self { goal: goal.into(), started: Instant::now(), limit }
    }

    /// A moment until the next look; panics past the deadline, quoting the `state` last seen.
    pub(crate) async fn pause(&self, state: impl std::fmt::Display) {
        self.check(state);
        tokio::time::sleep(Self::PAUSE).await;
    }

    /// [`pause`](Self::pause) for blocking threads.
    pub(crate) fn pause_blocking(&self, state: impl std::fmt::Display) {
        self.check(state);
        std::thread::sleep(Self::PAUSE);
    }

    fn check(&self, state: impl std::fmt::Display) {
        let Self { goal, limit, .. } = self;
        assert!(self.started.elapsed() < *limit, "gave up waiting {goal} after {limit:?}; last seen: {state}");
    }
}
