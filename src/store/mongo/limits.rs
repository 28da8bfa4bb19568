//! Time limits of commands.
//!
//! Purpose: the server gives up a command before its caller does, so the error names what the server waited for.
//!
//! Mechanism: each `maxTimeMS` and `wtimeout` is nine tenths of the time that is left when the command is encoded, or
//! the limit of the request's work if that is less.

use std::time::Duration;

use mongodb::bson::{Document, doc};

use crate::types::{
    clock::Clock,
    deadline::Deadline,
    error::{Error, Result},
};

/// A deadline this long from now, on the clock of this store.
pub(super) fn deadline_after(time: Duration) -> Deadline {
    Deadline::after(Clock::Boot, time)
}

/// Refuses a request that has less than this left.
pub(super) fn ensure_remaining(deadline: Deadline, least: Duration) -> Result<()> {
    if deadline.remaining() < least {
        return Err(Error::unavailable("earlier requests left this one no time: retry"));
    }
    Ok(())
}

/// The write concern of each write: the journals of a majority.
///
/// `preflight.rs` refuses a set whose majority does not mean the journals. But an operator can change that later, and a
/// user may lack the privilege to see it. So each write says it.
pub(super) fn write_concern(deadline: Deadline) -> Document {
    doc! { "w": "majority", "j": true, "wtimeout": server_limit(deadline) }
}

/// The most milliseconds that the server may take, for each `maxTimeMS` and each `wtimeout`: nine tenths of the
/// remaining time, or the limit of the request's work if that is less. At least 1, because 0 means no limit. At most `i32::MAX`, which is 24.8 days, because the server
/// refuses more.
pub(crate) fn server_limit(deadline: Deadline) -> i64 {
    let longest = deadline.remaining().mul_f64(0.9).min(deadline.work_limit());
    i64::try_from(longest.as_millis()).unwrap_or(i64::MAX).clamp(1, i32::MAX.into())
}

/// The same as a duration, for an option of the driver.
pub(crate) fn server_time(deadline: Deadline) -> Duration {
    Duration::from_millis(u64::try_from(server_limit(deadline)).unwrap_or_default())
}
