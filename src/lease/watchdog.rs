//! Stopping a process that does not stop.

use std::{
    fmt,
    io::Write,
    process, thread,
    time::{Duration, Instant},
};

use tracing::warn;

use crate::{Error, Lease, Result, engine::lease_shared::LeaseShared};

/// How long the work gets to stop by itself, unless it is said otherwise.
const SLACK: Duration = Duration::from_millis(100);
/// Between which bounds the thread sleeps.
const NAP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Acts when the deadline of a lease has passed and its work goes on, as it does where the runtime is
/// blocked and nothing asynchronous is heard: by default it aborts the process.
///
/// It watches from a thread of its own, one for each lease it is set on by [`Lease::watchdog`]. The work is
/// that which the lease [`run`](Lease::run)s. Without such work it acts where the lease's own task has not noticed the
/// deadline.
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
    /// Writes why to the standard error and aborts the process, without unwinding and without waiting for
    /// any thread.
    pub fn aborting() -> Self {
        Self::calling(|lost| {
            // Whether that can be written or not.
            drop(writeln!(std::io::stderr(), "{lost}; its work did not stop: the process is aborted"));
            process::abort();
        })
    }

    /// Calls this with an [`Error::Lost`], on the thread of the watchdog.
    pub fn calling(hook: impl FnOnce(Error) + Send + 'static) -> Self {
        Self { hook: Box::new(hook), slack: SLACK }
    }

    /// How long after the deadline it waits, in which the work may stop by itself. Others get the key no
    /// sooner than the [`grace`](crate::Acquire::grace) of the lease after its deadline, so choose that
    /// longer. Default: 100 milliseconds. On a machine that slept past the deadline the work is told within
    /// a second of waking up, and this may come first: choose more than that where it matters.
    pub fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    fn watch(self, hold: &LeaseShared) {
        let (shortest, longest) = NAP;
        let mut passed: Option<Instant> = None;
        loop {
            // The one who is to be told is asked first: it may end in between.
            if hold.ended.is_cancelled() && !hold.is_at_work() {
                return;
            }
            let left = hold.remaining();
            if left.is_zero() {
                #[allow(clippy::disallowed_methods, reason = "how long this thread waited, whatever the lease's clock")]
                let since = passed.get_or_insert_with(Instant::now).elapsed();
                if since >= self.slack {
                    warn!(key = %hold.key, token = %hold.token, "work goes on past the deadline of its lease");
                    return (self.hook)(hold.lost(hold.cause()));
                }
            }
            // Half of what is left, because a clock that runs while the machine sleeps is ahead of this one.
            let nap = left.checked_div(2).unwrap_or_default().max(shortest);
            thread::sleep(nap.min(if passed.is_some() { shortest } else { longest }));
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
    /// [`Error::Unavailable`] where no thread could be started.
    pub fn watchdog(&self, watchdog: Watchdog) -> Result<()> {
        let hold = self.hold().clone();
        let thread = thread::Builder::new().name("mongoseal-watchdog".into());
        let started = thread.spawn(move || watchdog.watch(&hold));
        started.map(drop).map_err(|error| {
            Error::unavailable(
                "no thread could be started for the watchdog: raise the limit of the process on threads, and retry",
            )
            .caused_by(error)
        })
    }
}
