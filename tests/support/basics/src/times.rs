//! Short forms for durations, and waiting for a condition.

use std::time::Duration;

/// So many seconds.
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// So many milliseconds.
pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Whether the environment variable `MONGOSEAL_LONG` is set. The night sets it.
pub fn is_long() -> bool {
    std::env::var_os("MONGOSEAL_LONG").is_some()
}

/// `long` if [`is_long`], otherwise `short`.
pub fn by_length<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Polls until `holds` does, for at most `within`.
///
/// # Panics
///
/// With `what` was to happen, if it has not by then.
pub async fn eventually(within: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    // Short, because some tests measure when something came to hold.
    const PAUSE: Duration = millis(10);
    let polled = async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    assert!(tokio::time::timeout(within, polled).await.is_ok(), "within {within:?}: {what}");
}
