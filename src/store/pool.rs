//! The shares of a pool of connections, and the permits that keep each kind of request to its share.
//!
//! Purpose: requests that wait at the server keep their connections. They must leave some to the other kinds.
//!
//! Mechanism: [`PoolShares`] splits the connections of a pool.
//!
//! Invariant: a refresh never waits for a connection that an acquire or a read keeps.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// The connections of a client that [`connect`](crate::Mongoseal::connect) opens, unless the connection string has more.
pub(crate) const DEFAULT_POOL: u32 = 64;

/// How many requests of each kind may be under way at once.
///
/// Acquires, releases and the like get half of the pool: they may all wait for locked records. A quarter, and not more
/// than that of the default pool, is for refreshes and reads: servers refresh no faster if more is sent at once, and a
/// small pool still has some. Of these, three eighths are for the parts of batches, half for single
/// refreshes, and what is left for reads, but one at least. The rest is for change streams. Of 64 connections these are
/// 32, 6, 8, 2 and 16; of 10 they are 5, 1, 2, 1 and 2. In a pool of fewer than 16, a read takes the connection of a second
/// stream; a handle without watches has one.
///
/// Reads may also use the half of the acquires and releases. They need their own share if all of these wait for locked
/// records, which keep no read waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolShares {
    #[cfg(feature = "mongodb")]
    pub(crate) requests: usize,
    #[cfg(feature = "mongodb")]
    pub(crate) reads: usize,
    #[cfg(feature = "mongodb")]
    pub(crate) streams: usize,
    pub(crate) parts: usize,
    pub(crate) singles: usize,
}

impl PoolShares {
    /// The shares of a pool of this many connections.
    pub(crate) fn of(connections: u32) -> Self {
        let share = |connections: u32| usize::try_from(connections.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        let quarter = (connections / 4).clamp(3, DEFAULT_POOL / 4);
        let (parts, singles) = (quarter.saturating_mul(3) / 8, quarter.div_ceil(2));
        Self {
            #[cfg(feature = "mongodb")]
            requests: share(connections / 2),
            #[cfg(feature = "mongodb")]
            reads: share(quarter.saturating_sub(parts).saturating_sub(singles)),
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
    fn the_shares_of_a_pool_leave_each_kind_of_request_a_connection_and_are_no_more_than_the_pool() {
        for connections in 9..2_000 {
            let PoolShares { requests, reads, streams, parts, singles } = PoolShares::of(connections);
            let streams_beside_reads = if connections < 16 { streams.min(1) } else { streams };
            let all = requests + reads + streams_beside_reads + parts + singles;
            assert!(all <= usize::try_from(connections).unwrap(), "{connections}: {all}");
            assert!([requests, reads, streams, parts, singles].iter().all(|share| *share > 0), "{connections}");
            assert!(requests <= usize::try_from(connections / 2).unwrap());
        }
        let PoolShares { requests, reads, streams, parts, singles } = PoolShares::of(DEFAULT_POOL);
        assert_eq!([requests, reads, streams, parts, singles], [32, 2, 16, 6, 8]);
        let PoolShares { requests, reads, streams, parts, singles } = PoolShares::of(10);
        assert_eq!([requests, reads, streams, parts, singles], [5, 1, 2, 1, 2]);
    }
}
