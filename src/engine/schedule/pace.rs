//! The times of a schedule of refreshes.

use std::time::Duration;

use crate::{
    engine::{retry::Limit, settings::LONGEST_ATTEMPT},
    store::pool::PART,
    types::{clock::Clock, deadline::Deadline, instant::Instant, ttl::Ttl},
};

/// The times of a schedule. A refresh is sent at a third of the ttl, so two thirds are left to the deadline.
///
/// - `limit` is how long the store may work on a part: a sixteenth of the ttl, and at most the limit of a first attempt. A
///   single refresh has half of it, because a record that is not locked is written in milliseconds. So if 120 of 300 leases
///   are locked, and all of them come first, eight single refreshes at a time have tried all after 15/32 of the ttl, and a
///   sixteenth was lost before. A part before it that was late once costs an eighth more: 0.99 of the ttl with the third before
///   a refresh is due. A large part before it that failed costs a sixteenth, and counts as the late one, unless a release
///   overtook it.
/// - Each failure doubles the limit. An attempt is late after twice its limit: the answer of a store that gave up has come by
///   then. After three late single refreshes, 14/32 of the ttl have passed, and twice the limit is longer than the time that
///   is left. So the limit doubles three times.
/// - A limit is never less than the last round trip, so that a slow store can answer. Over a slow network an attempt is late
///   after one and a half round trips. Of a round trip, the longest attempt of a call counts: no lease outlasts a longer one.
/// - `retry` is an eighth of the time to the deadline. What the store refuses is sent again after it. While nothing is
///   answered, a probe goes out after it, so probes keep eight connections at most until the deadline. A probe goes out at
///   least twice in the longest attempt of a call, so that a refresh for a holder meets one before it is given up.
/// - An attempt waits for its answer until the deadline, and at most for 16 probes, so that they keep a
///   quarter of the default pool at most. With a ttl of up to a minute, the deadline comes first.
/// - A part of fewer than [`PART`] leases waits for an eighth of its limit: if a round trip is longer than the interval, leases
///   are due when their answers come, and each part of one or two would keep a permit for a round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    pub(super) ttl: Duration,
    pub(super) limit: Duration,
    pub(super) retry: Duration,
}

/// The limit that is long enough for a large part of any size.
const LONG_LIMIT: Duration = Limit::FIRST_LIMIT;

impl Pace {
    pub(super) fn of(ttl: Ttl) -> Self {
        let part = |of: u32| ttl.duration().checked_div(of).unwrap_or_default();
        Self { ttl: ttl.duration(), limit: part(16).min(Limit::FIRST_LIMIT), retry: part(12) }
    }

    pub(super) fn probe(&self) -> Duration {
        self.retry.min(LONGEST_ATTEMPT.mul_f64(0.5))
    }

    /// The most leases of a large part, if the store wants so many: as many as it can write in the limit.
    pub(super) fn large_part(&self, wanted: usize) -> usize {
        let limit = self.limit.as_millis().try_into().unwrap_or(usize::MAX);
        let long = LONG_LIMIT.as_millis().try_into().unwrap_or(usize::MAX);
        wanted.saturating_mul(limit).div_euclid(long).max(PART)
    }

    /// The deadline of an attempt that is sent now for leases with this deadline, and this limit at the store.
    pub(super) fn deadline(&self, clock: Clock, until: Instant, limit: Duration) -> Deadline {
        Deadline::at(clock, until).or_after(self.probe().saturating_mul(16)).with_work_limit(limit)
    }

    /// How long the store may work on a part or a single refresh after so many failures, and after which time it is late,
    /// if the last round trip was this.
    pub(super) fn times(&self, is_part: bool, round_trip: Duration, failures: u32) -> (Duration, Duration) {
        let round_trip = round_trip.min(LONGEST_ATTEMPT);
        let limit = self.limit.mul_f64(if is_part { 1.0 } else { 0.5 }).saturating_mul(1 << failures.min(3));
        (limit.max(round_trip), limit.saturating_mul(2).max(round_trip.mul_f64(1.5)))
    }
}
