//! The shares of a pool of connections, and the permits that keep each kind of request to its share.
//!
//! Purpose: requests that wait at the server keep their connections. They must leave some to the other kinds.
//!
//! Mechanism: [`PoolShares`] splits the connections of a pool. [`Permits`] is a semaphore for each runtime.
//!
//! Invariant: requests of one kind never wait for a connection of another kind.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::runtime::ByRuntime;

/// The connections of a client that [`connect`](crate::Mongoseal::connect) opens, unless the connection string has more.
pub(crate) const DEFAULT_POOL: u32 = 64;

/// How many requests of each kind may be under way at once.
///
/// Acquires, releases and the like get half of the pool: they may all wait for locked records. A quarter, and not more
/// than that of the default pool, is for refreshes and reads: servers refresh no faster if more is sent at once, and a
/// small pool still has some. Of these, three eighths are for the parts of batches, half for single
/// refreshes, and what is left for reads, which no lock keeps. The rest is for change streams. Of 64 connections these are
/// 32, 6, 8, 2 and 16; of 10 they are 5, 1, 2, 0 and 2, and a handle without watches has one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolShares {
    #[cfg(feature = "mongodb")]
    pub(crate) requests: usize,
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
        Self {
            #[cfg(feature = "mongodb")]
            requests: share(connections / 2),
            #[cfg(feature = "mongodb")]
            streams: share(connections.saturating_sub(connections / 2).saturating_sub(quarter)),
            parts: share(quarter.saturating_mul(3) / 8),
            singles: share(quarter.div_ceil(2)),
        }
    }
}

/// This many permits for each runtime.
#[derive(Debug)]
pub(crate) struct Permits {
    many: usize,
    by_runtime: ByRuntime<Semaphore>,
}

impl Permits {
    pub(crate) fn new(many: usize) -> Self {
        Self { many: many.min(Semaphore::MAX_PERMITS), by_runtime: ByRuntime::default() }
    }

    /// The permits of the runtime in which this is called.
    pub(crate) fn here(&self) -> Arc<Semaphore> {
        self.by_runtime.here(|| Semaphore::new(self.many))
    }
}

/// The permits for refreshes, of all handles on one client.
#[derive(Debug)]
pub(crate) struct RefreshPermits {
    pub(crate) parts: Permits,
    pub(crate) singles: Permits,
    /// For single refreshes of leases that have failed before: half of them, so that others find a place.
    pub(crate) retries: Permits,
}

impl RefreshPermits {
    pub(crate) fn new(pool: PoolShares) -> Self {
        let PoolShares { parts, singles, .. } = pool;
        Self { parts: Permits::new(parts), singles: Permits::new(singles), retries: Permits::new(singles.div_ceil(2)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "mongodb")]
    #[test]
    fn the_shares_of_a_pool_leave_each_kind_of_request_a_connection_and_are_no_more_than_the_pool() {
        for connections in 8..2_000 {
            let PoolShares { requests, streams, parts, singles } = PoolShares::of(connections);
            let all = requests + streams + parts + singles;
            assert!(all <= usize::try_from(connections).unwrap(), "{connections}: {all}");
            assert!([requests, streams, parts, singles].iter().all(|share| *share > 0), "{connections}");
            assert!(requests <= usize::try_from(connections / 2).unwrap());
        }
        let PoolShares { requests, streams, parts, singles } = PoolShares::of(DEFAULT_POOL);
        assert_eq!([requests, streams, parts, singles], [32, 16, 6, 8]);
        let PoolShares { requests, streams, parts, singles } = PoolShares::of(10);
        assert_eq!([requests, streams, parts, singles], [5, 2, 1, 2]);
    }
}
