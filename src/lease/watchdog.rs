//! Stops a process whose work does not stop.
//!
//! Purpose: if the runtime is blocked, asynchronous work does not learn that its lease is lost.
//!
//! Mechanism: a thread of its own for each watchdog reads the lease's deadline and calls a hook after it.

use std::{
    fmt,
    io::Write,
    process, thread,
    time::{Duration, Instant},
};

use tracing::warn;

use crate::{
    engine::lease_inner::LeaseInner,
    lease::Lease,
    types::error::{Error, Result},
};

/// How long the work may run past the deadline. The default.
const DEFAULT_SLACK: Duration = Duration::from_millis(100);
/// The shortest and the longest sleep of the thread.
const SLEEP_BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Acts when the deadline of a lease has passed and its work still runs, for example because the runtime is blocked. By
/// default it aborts the process.
///
/// [`Lease::watchdog`] sets it on a lease and starts a thread for it. The work is what the lease [`run`](Lease::run)s.
/// Without such work, the watchdog acts if the handle has not noticed the deadline.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Mongoseal, Watchdog};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("volumes/1").await?;
/// lease.watchdog(Watchdog::aborting().slack(Duration::from_millis(200)))?;
/// lease.run(async { /* writes to a device that knows no tokens */ }).await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a watchdog watches nothing until it is set on a lease"]
pub struct Watchdog {
    hook: Box<dyn FnOnce(Error) + Send>,
    slack: Duration,
}

impl Watchdog {
    /// Writes the reason to the standard error and aborts the process, without unwinding and without waiting for any
    /// thread.
    pub fn aborting() -> Self {
        Self::calling(|lost| {
            // Aborts whether this can be written or not.
            drop(writeln!(std::io::stderr(), "{lost}; its work did not stop: the process is aborted"));
            process::abort();
        })
    }

    /// Calls `hook` on the thread of the watchdog, with an [`Error::Lost`] or an [`Error::Ended`].
    pub fn calling(hook: impl FnOnce(Error) + Send + 'static) -> Self {
        Self { hook: Box::new(hook), slack: DEFAULT_SLACK }
    }

    /// Sets how long the work may run past the deadline, so that it can stop by itself. Default: 100 ms.
    ///
    /// Another holder gets the key only after the deadline and the [`grace`](crate::action::Acquire::grace) of the lease, so
    /// choose a longer grace than this. If a machine slept past the deadline, the work is stopped within a second after
    /// it wakes, and the watchdog may act before: if that matters, choose more than a second.
    pub fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    fn watch(self, lease: &LeaseInner) {
        let (shortest, longest) = SLEEP_BOUNDS;
        let mut passed: Option<Instant> = None;
        loop {
            // First the lease, then its deadline: it may end in between.
            if lease.ended.is_cancelled() && !lease.is_at_work() {
                return;
            }
            let left = lease.remaining();
            if left.is_zero() {
                #[allow(clippy::disallowed_methods, reason = "how long this thread waited, whatever the lease's clock")]
                let since = passed.get_or_insert_with(Instant::now).elapsed();
                if since >= self.slack {
                    warn!(key = %lease.key, token = %lease.token, "work still runs past the deadline of its lease");
                    return (self.hook)(lease.end_error());
                }
            }
            // Half of the remaining time, because a clock that runs while the machine sleeps is ahead of this one.
            let pause = left.checked_div(2).unwrap_or_default().max(shortest);
            thread::sleep(pause.min(if passed.is_some() { shortest } else { longest }));
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("slack", &self.slack).finish_non_exhaustive()
    }
}

impl Lease {
    /// Sets a watchdog on this lease, until the lease and its work have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no thread could be started.
    pub fn watchdog(&self, watchdog: Watchdog) -> Result<()> {
        let lease = self.lease_inner().clone();
        let thread = thread::Builder::new().name("mongoseal-watchdog".into());
        let started = thread.spawn(move || watchdog.watch(&lease));
        started.map(drop).map_err(|error| {
            Error::unavailable(
                "no thread could be started for the watchdog: raise the limit of the process on threads, and retry",
            )
            .caused_by(error)
        })
    }
}
