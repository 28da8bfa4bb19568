//! For how long a record keeps what outlives its leases: a completed tick, or a value.

use std::time::Duration;

use crate::types::{
    duration::format_duration,
    error::{Error, Result},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The default.
pub(crate) const DEFAULT_KEEP: Duration = DAY.saturating_mul(90);

/// The longest.
pub(crate) const MAX_KEEP: Duration = DAY.saturating_mul(36_500);

/// Refuses a `keep_for` that is too long.
pub(crate) fn ensure_keep(keep_for: Duration) -> Result<()> {
    if keep_for > MAX_KEEP {
        return Err(Error::invalid(format!(
            "`keep_for` cannot be {}: choose up to {}",
            format_duration(keep_for),
            format_duration(MAX_KEEP)
        )));
    }
    Ok(())
}
