//! Whether an elector runs, for the probe of a service.
//!
//! Mechanism: the elector stores the time of each heartbeat, and a check compares the last one with the clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::types::{
    clock::Clock,
    duration::format_duration,
    error::{Error, Result},
    key::Key,
    ttl,
};

/// Checks whether an elector runs, for a readiness or liveness probe. A clone is cheap. It can be called from any
/// thread. Call it from a thread outside of the elector's runtime: a probe on a blocked runtime hangs, too.
#[derive(Clone, Debug)]
pub struct Readiness {
    name: Option<Key>,
    heartbeat: Arc<Heartbeat>,
}

impl Readiness {
    pub(super) fn new(name: Option<Key>, heartbeat: &Arc<Heartbeat>) -> Self {
        Self { name, heartbeat: Arc::clone(heartbeat) }
    }

    /// Checks that the elector has shown a sign of life within the ttl of the campaign.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it has not: it was not started, has ended, or hangs because its thread is blocked.
    pub fn check(&self) -> Result<()> {
        // Before `allowed`, which is stored before the first beat.
        let silent = match self.heartbeat.beat.load(Ordering::Acquire) {
            NOT_YET => return Err(self.not_ready("has not been run yet: run it")),
            NO_MORE => return Err(self.not_ready("has ended: run another one")),
            beat => ttl::millis(self.heartbeat.clock.now().since_origin()).saturating_sub(beat),
        };
        let allowed = self.heartbeat.allowed.load(Ordering::Relaxed);
        if silent > allowed {
            return Err(self.not_ready(&format!(
                "has shown no sign of life for {}, and {} are allowed: check what blocks its thread",
                format_duration(Duration::from_millis(silent)),
                format_duration(Duration::from_millis(allowed))
            )));
        }
        Ok(())
    }

    fn not_ready(&self, how: &str) -> Error {
        let name = self.name.as_ref().map(Key::as_str).unwrap_or_default();
        Error::unavailable(format!("the elector of {name:?} {how}"))
    }
}

/// Stands for no beat: before the first, and after the last.
const NOT_YET: u64 = u64::MAX;
const NO_MORE: u64 = u64::MAX - 1;

/// The heartbeat of an elector.
#[derive(Debug)]
pub(super) struct Heartbeat {
    clock: Clock,
    /// When the last beat was, in milliseconds on the clock.
    beat: AtomicU64,
    /// How long the elector may be silent, in milliseconds.
    allowed: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, beat: AtomicU64::new(NOT_YET), allowed: AtomicU64::new(0) }
    }

    /// Begins with a beat. The elector may be silent for as long as `allowed`.
    pub(super) fn begin(&self, allowed: Duration) {
        self.allowed.store(ttl::millis(allowed), Ordering::Relaxed);
        self.beat();
    }

    /// Beats for as long as this future is polled.
    pub(super) async fn keep(&self, allowed: Duration) {
        loop {
            let next = self.clock.now().after(allowed.checked_div(6).unwrap_or_default());
            self.clock.sleep_until(next).await;
            self.beat();
        }
    }

    fn beat(&self) {
        self.beat.store(ttl::millis(self.clock.now().since_origin()), Ordering::Release);
    }
}

/// Ends the heartbeat, however the elector ends.
pub(super) struct HeartbeatEnd<'a>(pub(super) &'a Heartbeat);

impl Drop for HeartbeatEnd<'_> {
    fn drop(&mut self) {
        self.0.beat.store(NO_MORE, Ordering::Relaxed);
    }
}
