//! Whether an elector runs, for the probe of a service.
//!
//! Mechanism: the elector publishes the time of each heartbeat, and a check compares the last one with the clock.

use std::time::Duration;

use tokio::sync::watch;

use super::campaign::Candidacy;
use crate::types::{
    clock::Clock,
    duration::format_duration,
    error::{Error, Result},
    instant::Instant,
};

/// Checks whether an elector runs, for a readiness or liveness probe. A clone is cheap. It can be called from any
/// thread. Call it from a thread outside of the elector's runtime: a probe on a blocked runtime hangs, too.
#[derive(Clone, Debug)]
pub struct Readiness {
    name: String,
    clock: Clock,
    /// How long the elector may be silent.
    allowed: Duration,
    /// When the elector beat last. `None`: it was not run. Closed: it has ended.
    last: watch::Receiver<Option<Instant>>,
}

impl Readiness {
    /// Checks that the elector has shown a sign of life within the ttl of the campaign.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it has not: it was not started, has ended, or hangs because its thread is blocked.
    pub fn check(&self) -> Result<()> {
        // A copy, so that the elector can beat meanwhile.
        let last = *self.last.borrow();
        let how = match last.map(|last| self.clock.now().since(last)) {
            None => "has not been run yet: run it".into(),
            Some(_) if self.last.has_changed().is_err() => "has ended: run another one".into(),
            Some(silent) if silent <= self.allowed => return Ok(()),
            Some(silent) => format!(
                "has shown no sign of life for {}, and {} are allowed: check what blocks its thread",
                format_duration(silent),
                format_duration(self.allowed)
            ),
        };
        Err(Error::unavailable(format!("the elector of {:?} {how}", self.name)))
    }
}

/// The heartbeat of an elector, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    clock: Clock,
    last: watch::Sender<Option<Instant>>,
}

impl Heartbeat {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, last: watch::Sender::default() }
    }

    pub(super) fn beat(&self) {
        self.last.send_replace(Some(self.clock.now()));
    }

    /// Beats for as long as this future is polled. The elector may be silent for as long as `allowed`.
    pub(super) async fn keep(&self, allowed: Duration) {
        loop {
            let next = self.clock.now().after(allowed.checked_div(6).unwrap_or_default());
            self.clock.sleep_until(next).await;
            self.beat();
        }
    }

    /// The check of the elector of this candidacy, if that is valid.
    pub(super) fn readiness(&self, candidacy: Option<&Candidacy>) -> Readiness {
        let (name, allowed) = candidacy.map(|valid| (valid.name.as_str().into(), valid.ttl)).unwrap_or_default();
        Readiness { name, clock: self.clock, allowed, last: self.last.subscribe() }
    }
}
