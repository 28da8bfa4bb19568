//! The clocks of holders' deadlines.

use std::{future::pending, time::Duration};

use tokio::runtime::Handle;

use super::reading::Reading;

/// The clock of a holder's deadlines. Never the wall clock.
///
/// A store names the clock of its holders. Readings of different clocks cannot be compared.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// Runs while the machine sleeps: `CLOCK_BOOTTIME` on Linux and Android, `CLOCK_MONOTONIC` on Apple's systems, the
    /// performance counter on Windows. Other systems have no such clock; there it is the monotonic clock.
    Boot,
    /// Tokio's clock, which a test can pause. For stores in this process.
    Tokio {
        /// The time of reading zero.
        origin: tokio::time::Instant,
    },
}

/// How often a sleep on [`Clock::Boot`] reads the clock. No timer can run on a clock that runs during suspend. So after
/// a machine wakes up, a passed deadline is noticed within this time. Ten thousand leases that read it each second take
/// one percent of a processor.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Clock {
    /// Tokio's clock, with readings counted from now.
    #[must_use]
    pub fn tokio() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the replacement of the banned call")]
        let origin = tokio::time::Instant::now();
        Self::Tokio { origin }
    }

    /// The time since the origin of this clock.
    #[must_use]
    pub fn now(self) -> Reading {
        match self {
            Self::Boot => Reading::at(boot::now()),
            #[allow(clippy::disallowed_methods, reason = "this is the replacement of the banned call")]
            Self::Tokio { origin } => Reading::at(tokio::time::Instant::now().saturating_duration_since(origin)),
        }
    }

    /// Waits until this clock reads at least `until`. Outside of a runtime there is no timer, and the wait does not end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, and each held lease has one of these futures"
    )]
    pub fn sleep_until(self, until: Reading) -> impl Future<Output = ()> + Send {
        async move {
            while self.now() < until {
                if Handle::try_current().is_err() {
                    return pending().await;
                }
                tokio::time::sleep(self.sleep_time(until)).await;
            }
        }
    }

    /// How long to sleep before the clock is read again.
    fn sleep_time(self, until: Reading) -> Duration {
        let left = until.since(self.now());
        match self {
            Self::Boot => left.min(CHECK_INTERVAL),
            Self::Tokio { .. } => left,
        }
    }
}

#[cfg(unix)]
mod boot {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    pub(super) fn now() -> Duration {
        // The time since boot is never negative.
        Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
    }
}

// Not compiled on unix, so no test covers it there.
#[cfg(not(unix))]
mod boot {
    use std::{
        sync::LazyLock,
        time::{Duration, Instant},
    };

    #[allow(clippy::disallowed_methods, reason = "this is the replacement of the banned call")]
    pub(super) fn now() -> Duration {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let origin = *ORIGIN;
        Instant::now().saturating_duration_since(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_moves_with_paused_time_only() {
        let clock = Clock::tokio();
        assert_eq!(clock.now(), Reading::ORIGIN);
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.now(), Reading::at(HOUR));
        clock.sleep_until(Reading::at(HOUR * 2)).await;
        assert_eq!(clock.now(), Reading::at(HOUR * 2));
        clock.sleep_until(Reading::at(HOUR)).await;
        assert_eq!(clock.now(), Reading::at(HOUR * 2), "the time has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_reads_the_boot_clock_every_other_second_and_tokio_s_clock_at_its_end() {
        let (boot, tokio) = (Clock::Boot, Clock::tokio());
        assert_eq!((boot.sleep_time(boot.now() + HOUR), tokio.sleep_time(Reading::at(HOUR))), (CHECK_INTERVAL, HOUR));
        assert_eq!(
            (boot.sleep_time(Reading::ORIGIN), tokio.sleep_time(Reading::ORIGIN)),
            (Duration::ZERO, Duration::ZERO)
        );
        let soon = boot.sleep_time(boot.now() + CHECK_INTERVAL / 2);
        assert!(soon <= CHECK_INTERVAL / 2, "{soon:?}");
    }

    #[tokio::test]
    async fn the_boot_clock_moves_by_itself_and_never_wakes_a_sleeper_early() {
        let (began, pause) = (Clock::Boot.now(), Duration::from_millis(20));
        std::thread::sleep(pause);
        assert!(Clock::Boot.now() >= began + pause);
        let until = Clock::Boot.now() + pause;
        Clock::Boot.sleep_until(until).await;
        assert!(Clock::Boot.now() >= until);
    }
}
