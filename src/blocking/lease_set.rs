//! A set of leases of a blocking handle.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::executor::Blocking;
use crate::{
    engine::lease_state::{LeaseState, ReleaseOutcome},
    types::{error::Result, key::Key, token::FencingToken},
};

/// Leases of a blocking handle on several keys: see [`mongoseal::LeaseSet`](crate::LeaseSet).
///
/// Dropping the set releases all leases in the background.
#[derive(Debug)]
#[must_use = "leases are released when they are dropped, and `let _ =` drops them at once: bind them to a variable"]
pub struct LeaseSet {
    /// Dropped before the executor, so that the release has threads.
    leases: Arc<crate::LeaseSet>,
    executor: Blocking,
}

impl LeaseSet {
    pub(super) fn new(leases: crate::LeaseSet, executor: Blocking) -> Self {
        Self { leases: Arc::new(leases), executor }
    }

    /// The keys, in order, each with the token to pass with every write to what the key protects.
    pub fn tokens(&self) -> impl Iterator<Item = (&Key, FencingToken)> {
        self.leases.tokens()
    }

    /// The token of one of the keys.
    #[must_use]
    pub fn token(&self, key: &str) -> Option<FencingToken> {
        self.leases.token(key)
    }

    /// Whether none of the leases has ended, as far as this process can know. Needs no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.leases.is_valid()
    }

    /// Returns an error if one of the leases has ended: see [`Lease::check`](super::Lease::check).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::LeaseSet::check`](crate::LeaseSet::check).
    pub fn check(&self) -> Result<()> {
        self.leases.check()
    }

    /// How long all leases last without another refresh. Needs no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.remaining()
    }

    /// A token that is cancelled when the first of the leases ends, for any reason.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.leases.cancellation_token()
    }

    /// Waits until one of the leases is over, and returns its key and its last state.
    ///
    /// # Errors
    ///
    /// None while the threads of the handle run.
    pub fn cancelled(&self) -> Result<(Key, LeaseState)> {
        let leases = Arc::clone(&self.leases);
        self.executor.wait(async move { Ok(leases.cancelled().await) })
    }

    /// Checks each lease, by linearizable reads: see [`Lease::verify`](super::Lease::verify).
    ///
    /// # Errors
    ///
    /// As [`Lease::verify`](super::Lease::verify), of the first lease that fails.
    pub fn verify(&self) -> Result<()> {
        let leases = Arc::clone(&self.leases);
        self.executor.wait(async move {
            for lease in leases.iter() {
                lease.verify().await?;
            }
            Ok(())
        })
    }

    /// Refreshes each lease now, as the handle does by itself.
    ///
    /// # Errors
    ///
    /// As [`Lease::refresh`](super::Lease::refresh), of the first lease that fails. The leases before it are refreshed.
    pub fn refresh(&self) -> Result<()> {
        let leases = Arc::clone(&self.leases);
        self.executor.wait(async move {
            for lease in leases.iter() {
                lease.refresh().await?;
            }
            Ok(())
        })
    }

    /// Runs `work` on the calling thread while all leases are held, as [`Lease::run`](super::Lease::run) does for one lease.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) of the first key whose lease was lost.
    pub fn run<T>(&self, work: impl FnOnce(&Self) -> T) -> Result<T> {
        let _at_work: Vec<_> = self.leases.iter().map(|lease| lease.lease_inner().begin_work()).collect();
        self.check()?;
        let value = work(self);
        self.check()?;
        Ok(value)
    }

    /// Reports that the work under these leases makes progress.
    pub fn progress(&self) {
        self.leases.progress();
    }

    /// Releases all leases by one command, and returns for each key whether its lease was held until then.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::LeaseSet::release`](crate::LeaseSet::release).
    pub fn release(self) -> Result<Vec<(Key, ReleaseOutcome)>> {
        let leases = Arc::clone(&self.leases);
        self.executor.wait(async move { leases.end_by_release().await })
    }

    /// Releases all leases after their work has ended. Returns an error if one of them was lost before.
    pub(super) fn end_work(self) -> Result<()> {
        let leases = Arc::clone(&self.leases);
        self.executor.wait(async move { leases.end_work().await })
    }
}
