//! The clocks of holders' deadlines.

use std::{future::pending, time::Duration};

use tokio::runtime::Handle;
#[cfg(feature = "test-util")]
use tokio::sync::watch;

use super::instant::Instant;

/// The clock of a holder's deadlines. Never the wall clock.
///
/// A store names the clock of its holders. Instants of different clocks cannot be compared.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// Runs while the machine sleeps: `CLOCK_BOOTTIME` on Linux and Android, `CLOCK_MONOTONIC` on Apple's systems, the
    /// performance counter on Windows. Other systems have no such clock; there it is the monotonic clock.
    ///
    /// A virtual machine that is paused does not sleep: under QEMU with KVM its clock [stands
    /// still](https://github.com/qemu/qemu/commit/00f4d64ee76e873be881a82d893a591487aa7950).
    Boot,
    /// Tokio's clock, which a test can pause. For stores in this process.
    Tokio {
        /// The time of its origin.
        origin: tokio::time::Instant,
    },
    /// Moves only when a test moves it. For stores in this process. Feature `test-util`.
    #[cfg(feature = "test-util")]
    Manual(ManualClock),
}

/// A clock that moves only when a test moves it. It works for async and for blocking handles.
///
/// [`MemoryStore::on_clock`](crate::store::MemoryStore::on_clock) makes a store with this clock. A copy is the same clock.
/// Its memory, some hundred bytes, is never freed.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug)]
pub struct ManualClock(&'static watch::Sender<Instant>);

#[cfg(feature = "test-util")]
impl ManualClock {
    /// Creates a clock, which stands still.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "each is another clock, so none is the default")]
    pub fn new() -> Self {
        Self(Box::leak(Box::new(watch::Sender::new(Instant::ORIGIN))))
    }

    /// Moves the clock on by this time, at once. A lease whose deadline that passes has ended, although its task runs: it is
    /// as if the process had been paused for the time. To let leases be refreshed, move the clock by steps of a sixth of the
    /// ttl, and give their tasks a moment of real time after each.
    pub fn advance(self, time: Duration) {
        self.0.send_modify(|now| *now = now.after(time));
    }

    fn now(self) -> Instant {
        *self.0.borrow()
    }

    async fn reaches(self, until: Instant) {
        // The sender lives for ever.
        drop(self.0.subscribe().wait_for(|now| *now >= until).await);
    }
}

/// How often a sleep on [`Clock::Boot`] reads the clock. No timer can run on a clock that runs during suspend. So after
/// a machine wakes up, a passed deadline is noticed within this time. Ten thousand leases that read it each second take
/// one percent of a processor.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Clock {
    /// Tokio's clock, with instants counted from now.
    #[must_use]
    pub fn tokio() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the replacement of the banned call")]
        let origin = tokio::time::Instant::now();
        Self::Tokio { origin }
    }

    /// The time since the origin of this clock.
    #[must_use]
    pub fn now(self) -> Instant {
        match self {
            Self::Boot => Instant::at(boot::now()),
            #[allow(clippy::disallowed_methods, reason = "this is the replacement of the banned call")]
            Self::Tokio { origin } => Instant::at(tokio::time::Instant::now().saturating_duration_since(origin)),
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Waits until this clock reads at least `until`. Outside of a runtime there is no timer, and the wait does not end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, and each waiter has one of these futures"
    )]
    pub fn sleep_until(self, until: Instant) -> impl Future<Output = ()> + Send {
        async move {
            #[cfg(feature = "test-util")]
            if let Self::Manual(clock) = self {
                // Boxed, because each waiter has a future as large as the largest that this one ever awaits.
                return Box::pin(clock.reaches(until)).await;
            }
            while self.now() < until {
                if Handle::try_current().is_err() {
                    return pending().await;
                }
                tokio::time::sleep(self.sleep_time(until)).await;
            }
        }
    }

    /// How long to sleep before the clock is read again.
    fn sleep_time(self, until: Instant) -> Duration {
        let left = until.since(self.now());
        match self {
            Self::Boot => left.min(CHECK_INTERVAL),
            _ => left,
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
        assert_eq!(clock.now(), Instant::ORIGIN);
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.now(), Instant::at(HOUR));
        clock.sleep_until(Instant::at(HOUR * 2)).await;
        assert_eq!(clock.now(), Instant::at(HOUR * 2));
        clock.sleep_until(Instant::at(HOUR)).await;
        assert_eq!(clock.now(), Instant::at(HOUR * 2), "the time has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_reads_the_boot_clock_every_other_second_and_tokio_s_clock_at_its_end() {
        let (boot, tokio) = (Clock::Boot, Clock::tokio());
        assert_eq!((boot.sleep_time(boot.now() + HOUR), tokio.sleep_time(Instant::at(HOUR))), (CHECK_INTERVAL, HOUR));
        assert_eq!(
            (boot.sleep_time(Instant::ORIGIN), tokio.sleep_time(Instant::ORIGIN)),
            (Duration::ZERO, Duration::ZERO)
        );
        let soon = boot.sleep_time(boot.now() + CHECK_INTERVAL / 2);
        assert!(soon <= CHECK_INTERVAL / 2, "{soon:?}");
    }

    #[cfg(feature = "test-util")]
    #[tokio::test]
    async fn a_manual_clock_moves_when_it_is_moved_and_wakes_those_whose_time_has_come() {
        let manual = ManualClock::new();
        let clock = Clock::Manual(manual);
        let mut sleeper = std::pin::pin!(clock.sleep_until(Instant::at(HOUR * 2)));
        manual.advance(HOUR);
        tokio::time::timeout(Duration::from_millis(10), &mut sleeper).await.unwrap_err();
        manual.advance(HOUR);
        sleeper.await;
        assert_eq!(clock.now(), Instant::at(HOUR * 2));
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
