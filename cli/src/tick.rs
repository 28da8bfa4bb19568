//! Ticks of a schedule, in arguments and in messages.

use std::{str::FromStr, time::Duration};

use ::time::{OffsetDateTime, format_description::well_known::Rfc3339};
use mongoseal::{Tick, inspect::StoreTime};

/// The numbers that are printed as times: the years from 2000 to 2099, in milliseconds since the Unix epoch.
const TIMES: std::ops::Range<u64> = 946_684_800_000..4_102_444_800_000;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A tick that an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedTick {
    Number(u64),
    /// A time, in milliseconds since the Unix epoch.
    Time(u64),
    /// A date: midnight UTC, in milliseconds since the Unix epoch.
    Date(u64),
}

impl NamedTick {
    /// Returns the number of the tick.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Number(number) | Self::Time(number) | Self::Date(number) => number,
        }
    }

    /// Returns the tick of a schedule with this period.
    pub(crate) fn tick(self, period: Option<Duration>) -> Tick {
        let tick = match self {
            Self::Number(number) => return Tick::number(number),
            Self::Time(millis) => Tick::at_millis(millis),
            // As `Tick::date`: the date has begun somewhere on Earth.
            Self::Date(midnight) => Tick::at_millis(midnight).period(DAY),
        };
        period.map_or(tick, |period| tick.period(period))
    }
}

/// Parses a number, a date such as `2026-11-05`, or a time such as `2026-11-05T02:00Z`.
impl FromStr for NamedTick {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        if let Some(midnight) = parse_time(&format!("{text}T00:00Z")) {
            return Ok(Self::Date(midnight));
        }
        let expected = "pass a date such as 2026-11-05, a time such as 2026-11-05T02:00Z, or a number";
        Ok(Self::Time(parse_time(text).ok_or(expected)?))
    }
}

/// Parses a time in the form of RFC 3339, with or without seconds. Returns milliseconds since the Unix epoch.
fn parse_time(text: &str) -> Option<u64> {
    // The parser takes any character in place of the `T`.
    let time = OffsetDateTime::parse(&with_seconds(text), &Rfc3339).ok().filter(|_| text.get(10..11) == Some("T"))?;
    u64::try_from(time.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

/// Adds the seconds to a time that has none.
fn with_seconds(time: &str) -> String {
    match (time.get(..16), time.get(16..)) {
        (Some(minutes), Some(rest)) if !rest.starts_with(':') => format!("{minutes}:00{rest}"),
        _ => time.to_owned(),
    }
}

/// Formats a tick: that of a time as the time, in UTC.
pub(crate) fn text(tick: u64) -> String {
    time_of(tick).unwrap_or_else(|| tick.to_string())
}

/// Returns the time of a tick whose number is that of a time. Its argument can be parsed again.
pub(crate) fn time_of(tick: u64) -> Option<String> {
    let millis = i64::try_from(tick).ok().filter(|_| TIMES.contains(&tick))?;
    let text = StoreTime::from_millis(millis).to_string();
    Some(text.strip_suffix(".000Z").map_or(text.clone(), |seconds| format!("{seconds}Z")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_a_number_a_date_or_a_time_with_or_without_seconds_in_any_offset() {
        let time = |text: &str| text.parse::<NamedTick>();
        assert_eq!(time("7"), Ok(NamedTick::Number(7)));
        let two = 1_793_844_000_000;
        for text in [
            "2026-11-05T02:00Z",
            "2026-11-05T02:00:00Z",
            "2026-11-05T02:00:00.000Z",
            "2026-11-05T03:00+01:00",
            "2026-11-04T19:30:00-06:30",
        ] {
            assert_eq!(time(text), Ok(NamedTick::Time(two)), "{text}");
        }
        assert_eq!(time("2026-11-05"), Ok(NamedTick::Date(1_793_836_800_000)));
        for text in [
            "",
            "-1",
            "02:00",
            "2026-11-5",
            "2026-02-29",
            "2026-11-05Z",
            "05-11-2026",
            "2026-11-05T02:00",
            "2026-11-05T25:00Z",
            "2026-11-05T02:00+1:00",
            "2026-11-05T02:00++1:00",
            "2026-11-05T02:00+01:60",
            "1960-01-01T00:00Z",
            "é",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_tick_of_a_time_is_printed_as_a_time_that_can_be_passed_again() {
        for (number, printed) in [
            (7, "7"),
            (20_261_105, "20261105"),
            (1_793_844_000_000, "2026-11-05T02:00:00Z"),
            (1_793_843_999_999, "2026-11-05T01:59:59.999Z"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(text(number), printed);
            assert_eq!(printed.parse::<NamedTick>().map(NamedTick::number), Ok(number));
        }
    }
}
