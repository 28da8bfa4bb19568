//! The verb `acquire_all`: several keys, all or none.

#[cfg(feature = "mongodb")]
mod transaction;

use std::{collections::BTreeSet, slice, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    acquire::Acquire,
    acquire_options::{CheckedAcquire, several},
};
use crate::{
    engine::{
        lease_inner::end_together,
        lease_state::{LeaseState, ReleaseOutcome},
        ungiven::Ungiven,
    },
    handle::{Async, Mongoseal, awaitable},
    lease::{Granted, Lease, work::run_under},
    types::{error::Result, into_name::IntoName, key::Key, token::FencingToken},
};

impl Mongoseal {
    /// Acquires several keys, all or none. Nothing is sent until the returned builder is awaited.
    pub fn acquire_all(&self, keys: impl IntoIterator<Item: IntoName<Key>>) -> AcquireAll {
        AcquireAll::new(self, several(keys).map(BTreeSet::from_iter), Async)
    }
}

/// Acquires several keys. Awaiting it returns a [`LeaseSet`] with a lease on each key, or an error and no lease.
///
/// [`Mongoseal::acquire_all`] makes it. The keys are acquired one after another in their own order, whatever order they
/// are given in, so two sets with the same keys never deadlock. The
/// [operation timeout](crate::Builder::operation_timeout) bounds all requests: it must be longer than the round trips for
/// all keys.
///
/// Its options are those of an [`Acquire`], for each key, with these differences:
///
/// - [`wait`](Acquire::wait) bounds all the waits together.
/// - An attempt of a [`retry`](Acquire::retry) policy is for all keys. If one of them is held, the others are released
///   before the delay.
/// - [`min_hold`](Acquire::min_hold) applies from the grant of the last key on: if a key is not granted, the others are free
///   at once.
/// - [`max_hold`](Acquire::max_hold) is counted from the grant of each key, so that of the first key ends first.
/// - [`stalled_after`](Acquire::stalled_after) is counted from the grant of the last key, and
///   [`LeaseSet::progress`] reports progress under all leases.
///
/// # Errors
///
/// The errors of an [`Acquire`], for the first key that was not granted. [`Error::Lost`](crate::Error::Lost) if one of the
/// first leases was lost while the others were waited for. [`Error::Invalid`](crate::Error::Invalid) if no key is given, or one is given
/// twice.
///
/// # Cancel safety
///
/// Dropping the future gives all keys up: what was granted is released in the background.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let both = seal.acquire_all(["accounts/7", "accounts/3"]).wait(Duration::from_secs(5)).await?;
/// let moved = both.run(async { 100 }).await?;
/// for (key, token) in both.tokens() {
///     println!("moved {moved}, {key} with token {token}");
/// }
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
pub type AcquireAll<M = Async> = Acquire<M, BTreeSet<Key>>;

impl<M> AcquireAll<M> {
    pub(crate) async fn send(self) -> Result<LeaseSet> {
        let Self { keys, options, mode: _mode } = self;
        let (keys, acquire) = (keys?, options.check()?);
        acquire.attempts(|wait| attempt(&acquire, &keys, wait)).await
    }
}

/// Acquires the keys in their order, all or none. Waits up to `wait` for all of them together, and ends with the
/// operation timeout after that: a take-back that is slower goes on in the background.
async fn attempt(acquire: &CheckedAcquire, keys: &BTreeSet<Key>, wait: Duration) -> Result<LeaseSet> {
    let acquire = acquire.clone().wait(wait);
    let context = &acquire.handle.context;
    let (clock, limit) = (context.clock(), acquire.limit());
    let until = clock.now().after(wait);
    let (mut leases, ended) = (Vec::<Ungiven>::new(), CancellationToken::new());
    let obtained = async {
        for key in keys {
            let left = until.since(clock.now());
            let lease = acquire.clone().wait(left).within(limit.clone()).acquire(key.clone()).await?;
            lease.lease_inner().suspend_progress();
            lease.lease_inner().cancel_at_end(&ended);
            leases.push(lease);
        }
        leases.iter().try_for_each(|lease| lease.check())
    }
    .await;
    if let Err(error) = obtained {
        // Before the caller sees the error.
        limit.next(context).wait_for(Ungiven::take_back_all(leases)).await;
        return Err(error);
    }
    let set = LeaseSet { leases: leases.into_iter().map(Ungiven::give).collect(), ended };
    set.progress();
    Ok(set)
}

awaitable!(AcquireAll => LeaseSet);

/// Leases on several keys that are of use only together: when one is lost, all work under them must stop.
///
/// Dropping the set releases all leases in the background, by one command.
#[derive(Debug)]
#[must_use = "leases are released when they are dropped, and `let _ =` drops them at once: bind them to a variable"]
pub struct LeaseSet {
    /// In the order of their keys.
    leases: Vec<Lease>,
    /// Cancelled when one of the leases ends.
    ended: CancellationToken,
}

impl LeaseSet {
    /// The leases, in order of their keys.
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let set = seal.acquire_all(["accounts/7", "accounts/3"]).await?;
    /// for lease in &set {
    ///     println!("{} with token {}", lease.key(), lease.token());
    ///     lease.verify().await?;
    /// }
    /// assert!(set.iter().map(|lease| lease.key().as_str()).eq(["accounts/3", "accounts/7"]));
    /// # set.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// The lease on one of the keys.
    #[must_use]
    pub fn lease(&self, key: &str) -> Option<&Lease> {
        let index = self.leases.binary_search_by(|lease| lease.key().as_str().cmp(key)).ok()?;
        self.leases.get(index)
    }

    /// The keys, in order, each with the token to pass with every write to what the key protects.
    pub fn tokens(&self) -> impl Iterator<Item = (&Key, FencingToken)> {
        self.leases.iter().map(|lease| (lease.key(), lease.token()))
    }

    /// The token of one of the keys.
    #[must_use]
    pub fn token(&self, key: &str) -> Option<FencingToken> {
        self.lease(key).map(Lease::token)
    }

    /// Whether none of the leases has ended, as far as this process can know. Needs no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.leases.iter().all(Lease::is_valid)
    }

    /// Returns an error if one of the leases has ended: see [`Lease::check`]. Needs no request.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) or [`Error::Ended`](crate::Error::Ended) of the first lease, in the order of the keys, that is over.
    pub fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(Lease::check)
    }

    /// How long all leases last without another refresh. Needs no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// A token that is cancelled when the first of the leases ends, for any reason.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.ended.child_token()
    }

    /// Waits until one of the leases is over, and returns its key and its last state.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) -> (Key, LeaseState) {
        loop {
            self.ended.cancelled().await;
            for lease in &self.leases {
                if !lease.is_valid() {
                    return (lease.key().clone(), lease.cancelled().await);
                }
            }
        }
    }

    /// Runs `work` while all leases are held, as [`Lease::run`] does for one lease.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) or [`Error::Ended`](crate::Error::Ended) of the first lease that is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. The leases stay.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = Result<F::Output>> {
        run_under(self, work)
    }

    /// Reports that the work under these leases makes progress: see [`Lease::progress`].
    pub fn progress(&self) {
        self.leases.iter().for_each(Lease::progress);
    }

    /// Releases all leases by one command, and returns for each key whether its lease was held until then. Work under
    /// the leases is stopped before the first is released.
    ///
    /// # Errors
    ///
    /// The error of the first key, in order, whose release was not confirmed, as of [`Lease::release`]. The other
    /// leases are released all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The leases are released all the same.
    pub async fn release(self) -> Result<Vec<(Key, ReleaseOutcome)>> {
        self.end();
        let mut released = Vec::new();
        let mut failed = None;
        for lease in &self.leases {
            match lease.end_by_release().await {
                Ok(how) => released.push((lease.key().clone(), how)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// Ends all leases. The keeper then releases them by one command.
    fn end(&self) {
        end_together(self.leases.iter().map(Lease::lease_inner));
    }
}

impl Granted for LeaseSet {
    fn leases(&self) -> &[Lease] {
        &self.leases
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    async fn release_after_work(&self) -> Result<()> {
        self.end();
        let mut held = Ok(());
        for lease in self {
            held = held.and(lease.release_after_work().await);
        }
        held
    }
}

impl<'a> IntoIterator for &'a LeaseSet {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Drop for LeaseSet {
    fn drop(&mut self) {
        self.end();
    }
}
