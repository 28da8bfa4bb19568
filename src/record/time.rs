//! The time on the store's clock.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// 0000-01-01 and the last millisecond of 9999-12-31: the first and the last time that RFC 3339 can write.
const WRITABLE: (i64, i64) = (-62_167_219_200_000, 253_402_300_799_999);
const MILLIS_A_DAY: i64 = 86_400_000;
/// From 0000-03-01 to 1970-01-01. A year that begins in March ends with its leap day.
const DAYS_TO_EPOCH: i64 = 719_468;
/// In 400 years.
const DAYS_A_CYCLE: i64 = 146_097;

/// A time on the store's clock: milliseconds since the Unix epoch.
///
/// It is written as RFC 3339 in UTC. That form ends with the year 9999: a later time is written as the last of it, and a time
/// before the year 0 as the first.
///
/// ```
/// use mongoseal::inspect::StoreTime;
///
/// assert_eq!(StoreTime::from_millis(1_577_836_800_123).to_string(), "2020-01-01T00:00:00.123Z");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoreTime(i64);

impl StoreTime {
    /// The time this many milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time this many milliseconds later.
    #[must_use]
    pub fn after(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// The time this many milliseconds earlier.
    pub(crate) fn before(self, millis: u64) -> Self {
        Self(self.0.saturating_sub_unsigned(millis))
    }

    /// The time from `now` until this. Zero if this has passed.
    #[must_use]
    pub fn since(self, now: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }
}

impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.clamp(WRITABLE.0, WRITABLE.1);
        let (year, month, day) = date(millis.div_euclid(MILLIS_A_DAY));
        let of_day = millis.rem_euclid(MILLIS_A_DAY);
        let [hour, minute, second] = [3_600_000, 60_000, 1_000].map(|unit| of_day.div_euclid(unit));
        let text = format!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{:02}:{:02}.{:03}Z",
            minute % 60,
            second % 60,
            of_day % 1_000
        );
        f.pad(&text)
    }
}

/// The year, month and day, so many days after 1970-01-01, in the Gregorian calendar.
#[allow(clippy::arithmetic_side_effects, reason = "the days are those of 10,000 years")]
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_EPOCH;
    let (cycle, day) = (days.div_euclid(DAYS_A_CYCLE), days.rem_euclid(DAYS_A_CYCLE));
    // Each 4 years have a leap day, but not each 100. The last day of a cycle is one.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days.
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, is_next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (cycle * 400 + year + is_next_year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(millis: i64) -> String {
        StoreTime::from_millis(millis).to_string()
    }

    #[test]
    fn a_time_is_written_in_utc_with_milliseconds_and_its_order_is_that_of_its_text() {
        let times = [
            (i64::MIN, "0000-01-01T00:00:00.000Z"),
            (WRITABLE.0, "0000-01-01T00:00:00.000Z"),
            (-62_162_121_600_000, "0000-02-29T00:00:00.000Z"),
            (-2_203_891_200_001, "1900-02-28T23:59:59.999Z"),
            (-2_203_891_200_000, "1900-03-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_577_836_799_999, "2019-12-31T23:59:59.999Z"),
            (1_577_836_800_123, "2020-01-01T00:00:00.123Z"),
            (1_582_979_696_007, "2020-02-29T12:34:56.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (WRITABLE.1, "9999-12-31T23:59:59.999Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
        ];
        for (millis, expected) in times {
            assert_eq!(text(millis), expected, "{millis}");
        }
        assert!(times.is_sorted_by_key(|(_, text)| *text));
        assert_eq!(format!("{:>26}", StoreTime::default()), "  1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn each_day_of_ten_thousand_years_follows_the_one_before_it() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let last_of = |year, month| match month {
            2 => 28 + i64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let (first, last) = (WRITABLE.0 / MILLIS_A_DAY, WRITABLE.1 / MILLIS_A_DAY);
        let mut expected = (0, 1, 1);
        for days in first..=last {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            expected = match (month, day == last_of(year, month)) {
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
                (_, false) => (year, month, day + 1),
            };
        }
        assert_eq!(expected, (10_000, 1, 1), "all days were compared");
    }
}
