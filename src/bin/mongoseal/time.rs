//! Durations as people write them and read them.

use std::time::Duration;

/// Reads `90s`, `1m 30s`, `250ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}: write 30s, 5m or 1h 30m"))
}

/// To read: whole seconds from one second on.
pub(crate) fn brief(duration: Duration) -> String {
    let rounded = if duration >= Duration::from_secs(1) {
        Duration::from_secs(duration.as_secs())
    } else {
        Duration::from_millis(u64::from(duration.subsec_millis()))
    };
    humantime::format_duration(rounded).to_string()
}
