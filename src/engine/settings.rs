//! The settings of a handle, checked.

use std::time::Duration;

use crate::{Error, Owner, Result, Ttl, engine::retry_policy::OnHeld};

/// The settings of a handle, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    /// `None` is [the default](Self::grace_for) of each ttl.
    pub(crate) grace: Option<Duration>,
    pub(crate) drift_ppm: u32,
    pub(crate) retention: Duration,
    pub(crate) operation_timeout: Duration,
    /// How many may wait for one key.
    pub(crate) queue_limit: u32,
    /// What an acquire does where the key is held, unless it says otherwise.
    pub(crate) on_held: OnHeld,
    /// How long one request of an operation may take before it is sent again.
    pub(crate) attempt: Duration,
}

/// The default grace of a lease with a long ttl. NTP keeps clocks much closer than that.
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_millis(500);

impl Settings {
    /// The grace of a lease with this ttl whose acquire sets none. The default is a tenth of the ttl, up to 500
    /// milliseconds and to what the retention leaves.
    pub(crate) fn grace_for(&self, ttl: Duration) -> Duration {
        self.grace.unwrap_or_else(|| {
            let tenth = ttl.checked_div(10).unwrap_or_default();
            tenth.min(LONGEST_DEFAULT_GRACE).min(self.retention.saturating_sub(ttl))
        })
    }

    /// The longest grace of leases whose acquires set none, whatever their ttl.
    pub(crate) fn longest_grace(&self) -> Duration {
        self.grace.unwrap_or(LONGEST_DEFAULT_GRACE)
    }

    /// Checks a ttl against the retention: a record must outlive every lease that was asked for while
    /// it was there, or a delayed request could bring an old token back to one who still waits for it.
    pub(crate) fn check_ttl(&self, ttl: Duration, grace: Duration) -> Result<Ttl> {
        let checked = Ttl::try_from(ttl)?;
        if ttl.saturating_add(grace) > self.retention {
            return Err(Error::invalid(format!(
                "a ttl of {ttl:?} and a grace of {:?} are longer than idle records are kept, {:?}: shorten them or raise the retention",
                grace, self.retention
            )));
        }
        Ok(checked)
    }

    /// How long one refresh of a lease of this ttl may take before it is sent again: short enough for
    /// several, so that one that hangs is not the end.
    pub(crate) fn longest_attempt(&self, ttl: Ttl) -> Duration {
        self.attempt.min(ttl.duration().checked_div(6).unwrap_or_default())
    }

    /// When a holder must stop, counted from just before the request was sent: the ttl, less how
    /// far two clocks may drift apart in that time, less the millisecond to which stores cut
    /// their clock.
    pub(crate) fn validity(&self, ttl: Ttl) -> Duration {
        let drift = ttl.duration().saturating_mul(self.drift_ppm).checked_div(1_000_000).unwrap_or_default();
        ttl.duration().saturating_sub(drift).saturating_sub(Duration::from_millis(1))
    }
}
