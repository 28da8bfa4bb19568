//! Durations in messages.

use std::time::Duration;

/// The units of durations, in milliseconds.
const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Formats a duration in its largest unit and the next smaller one, such as `9 m 59 s`. Smaller parts are dropped, and from
/// 10 s on all milliseconds.
pub(crate) fn format_duration(duration: Duration) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_two_units_and_without_milliseconds_from_ten_seconds_on() {
        for (millis, text) in [
            (0, "0 s"),
            (7, "7 ms"),
            (1_500, "1 s 500 ms"),
            (9_999, "9 s 999 ms"),
            (14_055, "14 s"),
            (60_000, "1 m"),
            (600_246, "10 m"),
            (3_661_000, "1 h 1 m"),
            (93_784_000, "1 d 2 h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_duration(Duration::from_micros(900)), "0 s");
    }
}
