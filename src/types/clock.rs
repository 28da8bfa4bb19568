//! The clock on which a holder counts its deadline.

use std::time::Duration;

/// The clock on which a holder counts its deadline: never the wall clock.
///
/// A store says which one its holders use. Readings of one clock can be compared with each other
/// and with nothing else.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// Runs while the machine sleeps: `CLOCK_BOOTTIME` on Linux and Android, `CLOCK_MONOTONIC` on
    /// Apple's systems, the performance counter on Windows. Elsewhere the system has no such
    /// clock, and the monotonic one is read.
    Boot,
    /// Tokio's clock, which a test can pause. For stores that live in this process.
    Tokio {
        /// Where its readings begin.
        origin: tokio::time::Instant,
    },
}

/// A timer cannot be set on a clock that runs during suspend, so a sleep on [`Clock::Boot`] looks
/// at the clock this often: a machine that wakes up notices a passed deadline within this time. Ten thousand
/// leases that look each second are one percent of a processor.
const LOOK: Duration = Duration::from_secs(2);

impl Clock {
    /// Tokio's clock, its readings counted from now.
    #[must_use]
    pub fn tokio() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the clock that others are sent to")]
        let origin = tokio::time::Instant::now();
        Self::Tokio { origin }
    }

    /// The time since this clock's beginning.
    #[must_use]
    pub fn now(self) -> Duration {
        match self {
            Self::Boot => boot::now(),
            #[allow(clippy::disallowed_methods, reason = "this is the clock that others are sent to")]
            Self::Tokio { origin } => tokio::time::Instant::now().saturating_duration_since(origin),
        }
    }

    /// Waits until this clock reads at least `until`.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, and each lease that is held waits for this"
    )]
    pub fn sleep_until(self, until: Duration) -> impl Future<Output = ()> + Send {
        async move {
            while self.now() < until {
                tokio::time::sleep(self.left(until)).await;
            }
        }
    }

    /// How long to sleep before the clock is looked at again.
    fn left(self, until: Duration) -> Duration {
        let left = until.saturating_sub(self.now());
        match self {
            Self::Boot => left.min(LOOK),
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

// What is changed here no test notices on a unix, which does not compile it.
#[cfg(not(unix))]
mod boot {
    use std::{
        sync::LazyLock,
        time::{Duration, Instant},
    };

    #[allow(clippy::disallowed_methods, reason = "this is the clock that others are sent to")]
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
        assert_eq!(clock.now(), Duration::ZERO);
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.now(), HOUR);
        clock.sleep_until(HOUR * 2).await;
        assert_eq!(clock.now(), HOUR * 2);
        clock.sleep_until(HOUR).await;
        assert_eq!(clock.now(), HOUR * 2, "that was before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_looks_at_the_boot_clock_every_other_second_and_at_tokio_s_when_it_is_time() {
        let (boot, tokio) = (Clock::Boot, Clock::tokio());
        assert_eq!((boot.left(boot.now() + HOUR), tokio.left(HOUR)), (LOOK, HOUR));
        assert_eq!((boot.left(Duration::ZERO), tokio.left(Duration::ZERO)), (Duration::ZERO, Duration::ZERO));
        let soon = boot.left(boot.now() + LOOK / 2);
        assert!(soon <= LOOK / 2, "{soon:?}");
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
