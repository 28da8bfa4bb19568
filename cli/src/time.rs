//! Parses and formats times.

use std::time::Duration;

use mongoseal::inspect::StoreTime;

/// The units of durations, in milliseconds.
const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a duration such as `90s`, `1m 30s` or `250ms`, or a number of seconds, as flock(1) and timeout(1) do.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let with_units =
        || humantime::parse_duration(text).map_err(|error| format!("{error}: pass a time such as 30s, 5m or 1h 30m"));
    seconds.map_or_else(with_units, Ok)
}

/// Formats a duration in its largest unit and the next smaller one, such as `1 m 30 s`, as the library's messages do. From
/// 10 s on it has no milliseconds.
pub(crate) fn format(duration: Duration) -> String {
    let millis = duration.as_millis();
    let Some(at) = UNITS.iter().position(|(_, size)| millis >= *size) else { return "0 s".into() };
    let mut rest = millis;
    let mut shown = Vec::new();
    for (unit, size) in UNITS.iter().filter(|(unit, _)| *unit != "ms" || millis < 10_000).skip(at).take(2) {
        let count = rest.div_euclid(*size);
        rest = rest.rem_euclid(*size);
        if count > 0 {
            shown.push(format!("{count} {unit}"));
        }
    }
    shown.join(" ")
}

/// Formats a duration as the value of an option: exact to the millisecond, and one word, such as `1m30s`.
pub(crate) fn option(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut shown = Vec::new();
    for (unit, size) in UNITS {
        let count = rest.div_euclid(size);
        rest = rest.rem_euclid(size);
        if count > 0 {
            shown.push(format!("{count}{unit}"));
        }
    }
    if shown.is_empty() { "0s".into() } else { shown.concat() }
}

/// Formats a time that passes, such as an age: in whole seconds from 1 s on.
pub(crate) fn brief(duration: Duration) -> String {
    let is_short = duration < Duration::from_secs(1);
    format(if is_short { duration } else { Duration::from_secs(duration.as_secs()) })
}

/// Formats the time until a key is free.
pub(crate) fn free_in(time: Duration) -> String {
    finite(time).map_or_else(|| "unlimited".into(), brief)
}

/// Returns a time, unless it is for ever.
pub(crate) fn finite(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| *time != Duration::MAX)
}

/// Formats a time of the store's clock without its date, in UTC and whole seconds, such as `02:04:13Z`.
pub(crate) fn of_day(time: StoreTime) -> String {
    let time = time.to_string();
    let clock = time.split_once('T').and_then(|(_, clock)| clock.split_once('.'));
    clock.map(|(clock, _)| format!("{clock}Z")).unwrap_or_default()
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_two_units_without_a_fraction_and_is_read_again() {
        let texts = [(7, "7 ms"), (1_500, "1 s 500 ms"), (60_000, "1 m"), (600_000, "10 m"), (93_600_000, "1 d 2 h")];
        for (millis, text) in texts {
            assert_eq!(format(Duration::from_millis(millis)), text);
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis));
        }
        assert_eq!(format(Duration::from_millis(14_055)), "14 s");
        assert_eq!(parse("1d2h"), parse("1d 2h"));
        assert_eq!((parse("30"), parse("0.5")), (parse("30s"), parse("500ms")));
        assert_eq!(format(Duration::from_nanos(833_333)), "0 s");
        assert_eq!(format(Duration::from_secs(3_600)), "1 h");
    }

    #[test]
    fn a_duration_that_is_pasted_as_an_option_is_one_word_and_means_the_same() {
        for millis in [0, 7, 999, 1_500, 14_055, 60_000, 93_784_001, 365 * 86_400_000 + 1] {
            let text = option(Duration::from_millis(millis));
            assert!(!text.contains(' '), "{text}");
            assert_eq!(parse(&text).unwrap(), Duration::from_millis(millis));
        }
        assert_eq!(option(Duration::from_secs(90)), "1m30s");
    }

    #[test]
    fn a_time_that_passes_is_written_in_whole_seconds_from_one_second_on() {
        for (millis, text) in [(0, "0 s"), (250, "250 ms"), (29_900, "29 s"), (600_246, "10 m"), (3_661_900, "1 h 1 m")]
        {
            assert_eq!(brief(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_time_of_the_day_has_whole_seconds_and_no_date() {
        assert_eq!(of_day(StoreTime::from_millis(1_577_880_245_999)), "12:04:05Z");
        assert_eq!(of_day(StoreTime::from_millis(i64::MIN)), "00:00:00Z");
    }
}
