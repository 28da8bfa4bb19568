//! Parses and formats times.

use std::time::{Duration, UNIX_EPOCH};

use mongoseal::StoreTime;

/// Parses a duration such as `90s`, `1m 30s` or `250ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}: pass a time such as 30s, 5m or 1h 30m"))
}

/// Parses a duration as [`parse`] does, or a number of seconds, as flock(1) does.
pub(crate) fn parse_with_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| parse(text), Ok)
}

/// Formats a duration: in whole seconds from 1 s on, and in the two largest units at most.
pub(crate) fn brief(duration: Duration) -> String {
    let rounded = if duration >= Duration::from_secs(1) {
        Duration::from_secs(duration.as_secs())
    } else {
        Duration::from_millis(u64::from(duration.subsec_millis()))
    };
    let whole = humantime::format_duration(rounded).to_string();
    let largest: Vec<&str> = whole.split(' ').take(2).collect();
    largest.join(" ")
}

/// Formats the remaining time of a lease.
pub(crate) fn remaining(remaining: Option<Duration>) -> String {
    remaining.map_or_else(|| "unlimited".into(), brief)
}

/// Formats a time of the store's clock, in UTC.
pub(crate) fn of_store(time: StoreTime) -> String {
    let since = Duration::from_millis(u64::try_from(time.millis()).unwrap_or(0));
    // The format ends with the year 9999.
    let last = Duration::from_secs(253_402_300_799);
    UNIX_EPOCH
        .checked_add(since.min(last))
        .map_or_else(String::new, |time| humantime::format_rfc3339_millis(time).to_string())
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_in_its_two_largest_units() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (29_900, "29s"), (3_600_000, "1h"), (93_784_000, "1day 2h")] {
            assert_eq!(brief(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_time_of_the_store_is_written_whatever_its_clock_says() {
        assert_eq!(of_store(StoreTime::from_millis(1_577_836_800_123)), "2020-01-01T00:00:00.123Z");
        assert_eq!(of_store(StoreTime::from_millis(i64::MIN)), "1970-01-01T00:00:00.000Z");
        assert!(of_store(StoreTime::from_millis(i64::MAX)).starts_with("9999-12-31"));
    }
}
