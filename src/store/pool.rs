//! The two classes of requests that share a pool of connections, and the permits of refreshes.
//!
//! Purpose: what keeps or ends a lease never waits behind what asks for one.
//!
//! Mechanism: [`PoolShares`] splits the connections of a pool.
//!
//! Invariant: if requests of all kinds wait at the server, one connection at least is left to what keeps or ends leases.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// The connections of a client that [`connect`](crate::Mongoseal::connect) opens, unless the connection string has more.
pub(crate) const DEFAULT_POOL: u32 = 64;

/// The most leases of a part of refreshes after a failure. With the default pool, eight single refreshes at a time have tried
/// all leases of a part after a quarter of the ttl.
pub(crate) const PART: usize = 64;

/// The most leases of a part while all is well, for a store that refreshes a part by one request. For each request, a set of
/// MongoDB confirms its writes once: one member spent 59 µs of processor time for each lease in parts of 64, 44 in parts of 512,
/// and 38 in parts of 5,000. A release that overtakes a part makes all of its leases due again, so larger ones cost more.
pub(crate) const LARGE_PART: usize = 512;

/// How many requests of each kind may be under way at once.
///
/// A quarter of the pool, and not more than that of the default pool, is for what keeps or ends leases: servers refresh no
/// faster if more is sent at once. Of these, three eighths are for the parts of batches, half for single refreshes, and
/// what is left for releases, values and checks of holders. All else, which asks for leases, reads or listens, has the other
/// connections. Of 64 these are 6, 8, 2 and 48.
///
/// A pool of fewer than 16 leaves one connection to what keeps or ends leases: of 10, nine are for all else, one of them for
/// a change stream. More refreshes may be under way, up to 1 part and 2 single ones: they wait in the driver, which then
/// serves them before each request that comes later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolShares {
    /// What asks for leases, reads or listens.
    #[cfg(feature = "mongodb")]
    pub(crate) asking: usize,
    /// What ends a lease, or writes or reads for its holder, beside those that use a connection of the others.
    #[cfg(feature = "mongodb")]
    pub(crate) ending: usize,
    /// The most change streams of a client of our own.
    #[cfg(feature = "mongodb")]
    pub(crate) streams: usize,
    pub(crate) parts: usize,
    pub(crate) singles: usize,
}

/// In a smaller pool, one connection is kept for leases.
#[cfg(feature = "mongodb")]
const SMALL_POOL: u32 = 16;

impl PoolShares {
    /// The shares of a pool of this many connections.
    pub(crate) fn of(connections: u32) -> Self {
        let share = |connections: u32| usize::try_from(connections.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        let quarter = (connections / 4).clamp(3, DEFAULT_POOL / 4);
        let (parts, singles) = (quarter.saturating_mul(3) / 8, quarter.div_ceil(2));
        #[cfg(feature = "mongodb")]
        let kept = if connections < SMALL_POOL { 1 } else { quarter };
        Self {
            #[cfg(feature = "mongodb")]
            asking: share(connections.saturating_sub(kept)),
            #[cfg(feature = "mongodb")]
            ending: share(quarter.saturating_sub(parts).saturating_sub(singles)),
            #[cfg(feature = "mongodb")]
            streams: share(connections.saturating_sub(connections / 2).saturating_sub(quarter)),
            parts: share(parts),
            singles: share(singles),
        }
    }
}

/// The permits for refreshes, of all handles on one client.
#[derive(Debug)]
pub(crate) struct RefreshPermits {
    pub(crate) parts: Arc<Semaphore>,
    pub(crate) singles: Arc<Semaphore>,
    /// For single refreshes of leases that have failed before: half of them, so that others find a place.
    pub(crate) retries: Arc<Semaphore>,
}

impl RefreshPermits {
    pub(crate) fn new(pool: PoolShares) -> Self {
        let PoolShares { parts, singles, .. } = pool;
        let [parts, singles, retries] =
            [parts, singles, singles.div_ceil(2)].map(|many| Arc::new(Semaphore::new(many)));
        Self { parts, singles, retries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "mongodb")]
    #[test]
    fn the_shares_of_a_pool_are_no_more_than_the_pool_and_leave_a_connection_to_what_keeps_leases() {
        for connections in 2..2_000 {
            let PoolShares { asking, ending, streams, parts, singles } = PoolShares::of(connections);
            let kept = usize::try_from(connections).unwrap() - asking;
            assert!(
                kept >= if connections < SMALL_POOL { 1 } else { ending + parts + singles },
                "{connections}: {kept}"
            );
            assert!([asking, ending, streams, parts, singles].iter().all(|share| *share > 0), "{connections}");
        }
        let PoolShares { asking, ending, streams, parts, singles } = PoolShares::of(DEFAULT_POOL);
        assert_eq!([asking, ending, streams, parts, singles], [48, 2, 16, 6, 8]);
        let PoolShares { asking, ending, streams, parts, singles } = PoolShares::of(10);
        assert_eq!([asking, ending, streams, parts, singles], [9, 1, 2, 1, 2]);
    }
}
