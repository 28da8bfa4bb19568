//! The permission to refresh a lease alone, once.
//!
//! Purpose: a schedule gives it to the task of the lease, by the queue of the lease's commands, which knows no schedule.
//!
//! Invariant: dropping it ends the attempt.

use std::{fmt::Debug, time::Duration};

/// The permission to refresh a lease alone, once.
pub(crate) trait SingleAttempt: Debug + Send + Sync {
    /// How long the store may work on it.
    fn limit(&self) -> Duration;

    /// Notes that the store confirmed it. `is_done`: the holder waits for no other refresh.
    fn confirm(&self, sent: Duration, is_done: bool);

    /// Notes that it failed, and may be sent again after a delay.
    fn fail(&self, now: Duration);

    /// Notes that the store refused it. `is_done`: the holder waits for no other refresh.
    fn refuse(&self, now: Duration, is_done: bool);
}
