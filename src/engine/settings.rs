//! The checked settings of a handle.

use std::time::Duration;

use crate::{
    engine::{observer::Observers, retry_policy::OnHeld},
    types::{
        duration::format_duration,
        error::{Error, Result},
        owner::Owner,
        ttl::Ttl,
    },
};

/// The checked settings of a handle.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    /// `None`: [the default](Self::grace_for) for each ttl.
    pub(crate) grace: Option<Duration>,
    pub(crate) drift_ppm: u32,
    pub(crate) retention: Duration,
    pub(crate) operation_timeout: Duration,
    /// How many waiters a key may have.
    pub(crate) queue_limit: u32,
    /// What an acquire that sets nothing does if the key is held.
    pub(crate) on_held: OnHeld,
    /// How long one request of an operation may take before it is sent again.
    pub(crate) attempt: Duration,
    /// What receives the events.
    pub(crate) observers: Observers,
}

/// The longest time of one request of a call, before it is sent again.
pub(crate) const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

/// The default grace of a lease with a long ttl. NTP keeps clocks much closer than that.
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_millis(500);

impl Settings {
    /// The grace of a lease with this ttl whose acquire sets none. Default: a tenth of the ttl, up to 500 ms and up to
    /// what the retention leaves.
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

    /// Checks a ttl against the retention. A record must outlive each lease that was requested while it existed;
    /// otherwise a delayed request could bring an old token back to its waiter.
    pub(crate) fn check_ttl(&self, ttl: Duration, grace: Duration) -> Result<Ttl> {
        let checked = Ttl::try_from(ttl)?;
        if ttl.saturating_add(grace) > self.retention {
            return Err(Error::invalid(format!(
                "a ttl of {} and a grace of {} exceed the retention of idle records, {}: shorten them or raise `retention`",
                format_duration(ttl),
                format_duration(grace),
                format_duration(self.retention)
            )));
        }
        Ok(checked)
    }

    /// How long a lease is valid, from just before its request was sent: the ttl, less the drift of two clocks in that
    /// time, less the millisecond to which stores truncate their clock.
    pub(crate) fn validity(&self, ttl: Ttl) -> Duration {
        self.less_drift(ttl.duration())
    }

    /// The part of a time on the store's clock that has passed for certain on no clock: the time, less the drift of two
    /// clocks in it, less the millisecond to which stores truncate their clock.
    pub(crate) fn less_drift(&self, time: Duration) -> Duration {
        let drift = time.saturating_mul(self.drift_ppm).checked_div(1_000_000).unwrap_or_default();
        time.saturating_sub(drift).saturating_sub(Duration::from_millis(1))
    }
}
