//! The tick of a schedule.

use std::time::Duration;

use crate::{
    record::StoreTime,
    types::{
        duration::format_duration,
        error::{Error, Result},
        ttl,
    },
};

/// How far the tick of a time may be ahead of the store's time, if its period is not set: the shortest period of cron.
const DEFAULT_PERIOD: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The longest period: two of them are kept, and the longest time to keep a tick is twice that.
const MAX_PERIOD: Duration = DAY.saturating_mul(18_250);

/// A tick of a schedule: what must be done once. A later tick is a larger number.
///
/// | made by | the tick is | use it if |
/// |---|---|---|
/// | [`Tick::of`] | the store's time, cut to a multiple of the period | each runner has a ticker of its own |
/// | [`Tick::date`] | a date | the work is done once on each day of a time zone |
/// | [`Tick::at_millis`] | a time | a scheduler names the time for which it starts a run |
/// | [`Tick::number`] | a number | the runs are numbered: the number of a batch or a build |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number(u64),
    /// In milliseconds since the Unix epoch.
    Time {
        millis: u64,
        /// `None`: it was not set.
        period: Option<Duration>,
    },
    Of(Duration),
}

impl Tick {
    /// The largest number of a tick.
    pub const MAX: u64 = i64::MAX.unsigned_abs();

    /// The tick with this number, from 1 to [`Tick::MAX`].
    ///
    /// No clock bounds it: a number that is far too large keeps all smaller ticks from being run, until
    /// [`Mongoseal::rewind_tick`](crate::Mongoseal::rewind_tick) lowers it.
    #[must_use]
    pub const fn number(number: u64) -> Self {
        Self(Kind::Number(number))
    }

    /// The tick of a time, in milliseconds since the Unix epoch. If it is ahead of the store's time by more than its
    /// [`period`](Self::period), it is refused: a runner whose clock is years ahead does not end the schedule.
    #[must_use]
    pub const fn at_millis(millis: u64) -> Self {
        Self(Kind::Time { millis, period: None })
    }

    /// The tick of a date, for work that is done once on each day of a time zone. The caller takes the date from its own
    /// calendar. The number of the tick is that of midnight UTC of the date, and its [`period`](Self::period) is a day: a
    /// date is refused until it has begun somewhere on Earth, by the store's time.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: there is no such date, or it is before 1970 or after 9999.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Tick;
    ///
    /// // With the crate chrono: let today = chrono::Local::now(); Tick::date(today.year(), today.month(), today.day())
    /// assert_eq!(Tick::date(1970, 1, 2)?, Tick::at_millis(86_400_000).period(std::time::Duration::from_secs(86_400)));
    /// assert!(Tick::date(2026, 2, 29).is_err());
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn date(year: i32, month: u32, day: u32) -> Result<Self> {
        let none = || {
            Error::invalid(format!(
                "{year:04}-{month:02}-{day:02} is no date from 1970 to 9999: pass year, month and day"
            ))
        };
        let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let year = u64::try_from(year).ok().filter(|year| (1970..=9999).contains(year)).ok_or_else(none)?;
        let february = if is_leap(year) { 29 } else { 28 };
        let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let index = usize::try_from(month).ok().and_then(|month| month.checked_sub(1));
        let index = index.filter(|index| *index < months.len()).ok_or_else(none)?;
        let day = Some(u64::from(day)).filter(|day| (1..=months[index]).contains(day)).ok_or_else(none)?;
        let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
        let days = years.saturating_add(months[..index].iter().sum::<u64>()).saturating_add(day.saturating_sub(1));
        Ok(Self::at_millis(days.saturating_mul(ttl::millis(DAY))).period(DAY))
    }

    /// The present tick of a schedule that runs this often: the store's time, cut to a multiple of the period since
    /// Thursday, 1970-01-01 00:00 UTC. So a day begins at midnight UTC, which is not midnight elsewhere, and a week on
    /// Thursday. The clocks of runners do not matter.
    #[must_use]
    pub const fn of(period: Duration) -> Self {
        Self(Kind::Of(period))
    }

    /// Sets the time between two ticks of a schedule, for a tick of a [time](Self::at_millis) or a [date](Self::date).
    /// Default: a minute, and a day for a date. A period can have up to 18,250 days, about 50 years.
    #[must_use]
    pub fn period(self, period: Duration) -> Self {
        match self.0 {
            Kind::Time { millis, .. } => Self(Kind::Time { millis, period: Some(period) }),
            Kind::Number(_) | Kind::Of(_) => self,
        }
    }

    /// How long the completed tick must be kept: two periods, so that no runner runs the tick of a period twice in it.
    pub(super) fn least_keep(self) -> Duration {
        match self.0 {
            Kind::Of(period) => period.saturating_mul(2),
            Kind::Time { period, .. } => period.unwrap_or(DEFAULT_PERIOD).saturating_mul(2),
            Kind::Number(_) => Duration::ZERO,
        }
    }

    /// The time between two ticks in milliseconds, if the caller has set it to one or more.
    pub(super) fn known_period(self) -> Option<u64> {
        let period = match self.0 {
            Kind::Of(period) => Some(period),
            Kind::Time { period, .. } => period,
            Kind::Number(_) => None,
        };
        period.map(ttl::millis).filter(|period| *period > 0)
    }

    /// The number of the tick at this time of the store, as [`Mongoseal::now`](crate::Mongoseal::now) reads it.
    ///
    /// A runner calls this by itself. Call it to name the tick, or to keep the tick of a [period](Self::of) over several
    /// requests: pass the number to [`at_millis`](Self::at_millis), and set the [`period`](Self::period).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the tick is ahead of the store's time by more than its period, or not from 1 to [`Tick::MAX`].
    pub fn number_at(self, now: StoreTime) -> Result<u64> {
        let now = u64::try_from(now.millis()).unwrap_or(0);
        let number = match self.0 {
            Kind::Number(number) => number,
            Kind::Time { millis, period } => {
                let (ahead, period) =
                    (Duration::from_millis(millis.saturating_sub(now)), period.unwrap_or(DEFAULT_PERIOD));
                if period > MAX_PERIOD {
                    return Err(Error::invalid(format!(
                        "a schedule cannot have a period of {}: choose up to {}",
                        format_duration(period),
                        format_duration(MAX_PERIOD)
                    )));
                }
                if ahead > period {
                    return Err(Error::invalid(format!(
                        "the tick is {} ahead of the store's time, and a tick may be one period of {} ahead: check the clock of this machine, or set the period of the schedule",
                        format_duration(ahead),
                        format_duration(period)
                    )));
                }
                millis
            }
            Kind::Of(period) => {
                let beyond = now.checked_rem(ttl::millis(period)).ok_or_else(|| {
                    Error::invalid("a schedule needs a period of at least a millisecond: choose seconds or more")
                })?;
                now.saturating_sub(beyond)
            }
        };
        if (1..=Self::MAX).contains(&number) {
            Ok(number)
        } else {
            Err(Error::invalid(format!(
                "{number} is no tick: number ticks from 1 to {}, and choose a time after 1970 and a period of less than 50 years",
                Self::MAX
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: StoreTime = StoreTime::from_millis(1_700_000_123_456);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_tick_of_a_period_is_the_stores_time_cut_to_a_multiple_of_it() {
        assert_eq!(Tick::of(MINUTE).number_at(NOW).unwrap(), 1_700_000_100_000);
        assert_eq!(Tick::of(Duration::from_millis(1)).number_at(NOW).unwrap(), 1_700_000_123_456);
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(60 * 365 * 24 * 3_600)] {
            assert!(matches!(Tick::of(bad).number_at(NOW), Err(Error::Invalid { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_tick_of_a_time_may_be_one_period_ahead_of_the_store_and_any_time_behind() {
        let hour = 3_600_000;
        let at = Tick::at_millis;
        assert_eq!(at(1_700_000_183_456).number_at(NOW).unwrap(), 1_700_000_183_456);
        assert!(matches!(at(1_700_000_183_457).number_at(NOW), Err(Error::Invalid { .. })));
        assert_eq!(at(1).number_at(NOW).unwrap(), 1);
        let hourly = |millis| at(millis).period(Duration::from_millis(hour)).number_at(NOW);
        assert!(hourly(1_700_000_123_456 + hour).is_ok() && hourly(1_700_000_123_457 + hour).is_err());
        assert!(at(0).number_at(NOW).is_err());
        assert!(at(1).period(MAX_PERIOD).number_at(NOW).is_ok());
        for bad in [MAX_PERIOD + Duration::from_millis(1), Duration::MAX] {
            let error = at(1).period(bad).number_at(NOW).unwrap_err().to_string();
            assert!(error.contains("choose up to"), "{error}");
        }
    }

    #[test]
    fn a_date_is_a_tick_from_when_it_begins_anywhere_on_earth() {
        let days = |date: Tick| match date.0 {
            Kind::Time { millis, period: Some(DAY) } => (millis / 86_400_000, millis % 86_400_000),
            other => panic!("{other:?}"),
        };
        for (year, month, day, number) in [
            (1970, 1, 1, 0),
            (1972, 2, 29, 789),
            (2000, 2, 29, 11_016),
            (2000, 3, 1, 11_017),
            (2026, 11, 24, 20_781),
            (2100, 3, 1, 47_541),
            (9999, 12, 31, 2_932_896),
        ] {
            assert_eq!(days(Tick::date(year, month, day).unwrap()), (number, 0), "{year}-{month}-{day}");
        }
        for (year, month, day) in [
            (1969, 12, 31),
            (2026, 0, 1),
            (2026, 13, 1),
            (2026, 4, 31),
            (2100, 2, 29),
            (2026, 1, 0),
            (10_000, 1, 1),
            (-1, 1, 1),
        ] {
            let error = Tick::date(year, month, day).unwrap_err().to_string();
            assert!(error.contains("is no date"), "{error}");
        }
        // NOW is 2023-11-14T22:15:23Z: the 15th has begun east of Greenwich, the 16th nowhere.
        assert!(Tick::date(2023, 11, 15).unwrap().number_at(NOW).is_ok());
        assert!(Tick::date(2023, 11, 16).unwrap().number_at(NOW).is_err());
    }

    #[test]
    fn a_number_is_from_1_to_the_largest_that_a_store_keeps() {
        assert_eq!(Tick::number(1).period(MINUTE).number_at(NOW).unwrap(), 1);
        assert_eq!(Tick::number(Tick::MAX).number_at(NOW).unwrap(), Tick::MAX);
        assert!(Tick::number(0).number_at(NOW).is_err() && Tick::number(Tick::MAX + 1).number_at(NOW).is_err());
    }
}
