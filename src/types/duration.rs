//! Durations in messages.

use std::time::Duration;

/// The units of durations, in milliseconds.
const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Formats a duration in its largest unit and the next smaller one, such as `9m 59s`. Smaller parts are dropped.
pub(crate) fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let Some(at) = UNITS.iter().position(|(_, size)| millis >= *size) else { return "0s".into() };
    let mut rest = millis;
    let mut shown = Vec::new();
    for (unit, size) in UNITS.iter().skip(at).take(2) {
        let count = rest.div_euclid(*size);
        rest = rest.rem_euclid(*size);
        if count > 0 {
            shown.push(format!("{count}{unit}"));
        }
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_two_units_without_a_fraction() {
        for (millis, text) in [
            (0, "0s"),
            (7, "7ms"),
            (1_500, "1s 500ms"),
            (60_000, "1m"),
            (600_246, "10m"),
            (3_661_000, "1h 1m"),
            (93_784_000, "1d 2h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_duration(Duration::from_micros(900)), "0s");
    }
}
