//! The verb `acquire_all`: several keys, all or none.

#[cfg(feature = "mongodb")]
mod transaction;

use std::{fmt, mem, pin::pin, slice, time::Duration};

use tokio_util::sync::CancellationToken;

use super::acquire_options::{AcquireOptions, CheckedAcquire};
use crate::{
    engine::{
        context::shut_down_error,
        lease_inner::end_together,
        lease_state::{LeaseState, ReleaseOutcome},
        refresh::Refreshing,
        retry_policy::{Attempts, OnHeld, Retry},
    },
    handle::{Async, Mongoseal},
    lease::{Lease, work::run_while_held},
    store::BoxFuture,
    types::{
        error::{Error, Result},
        group::Group,
        into_name::IntoName,
        key::Key,
        token::FencingToken,
    },
};

impl Mongoseal {
    /// Acquires several keys, all or none. Nothing is sent until the returned builder is awaited.
    pub fn acquire_all<K>(&self, keys: impl IntoIterator<Item = K>) -> AcquireAll
    where
        K: IntoName<Key>,
    {
        AcquireAll::new(self, keys, Async)
    }
}

/// Acquires several keys. Awaiting it returns a [`LeaseSet`] with a lease on each key, or an error and no lease.
///
/// [`Mongoseal::acquire_all`] makes it. The keys are acquired one after another in their own order, whatever order they
/// are given in, so two sets with the same keys never deadlock. [`wait`](Self::wait) bounds all the waits together, and the
/// [operation timeout](crate::Builder::operation_timeout) all requests: it must be longer than the round trips for all keys.
///
/// Its options are those of an [`Acquire`](crate::Acquire), for each key. There is no option for progress, because
/// each lease has its own.
///
/// # Errors
///
/// The errors of an [`Acquire`](crate::Acquire), for the first key that was not granted. [`Error::Lost`] if one of the
/// first leases was lost while the others were waited for. [`Error::Invalid`] if no key is given, or one is given
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
#[derive(Debug)]
#[must_use = "an acquire does nothing until it is awaited or run"]
pub struct AcquireAll<M = Async> {
    keys: Result<Vec<Key>>,
    options: AcquireOptions,
    pub(crate) mode: M,
}

impl<M> AcquireAll<M> {
    pub(crate) fn new(seal: &Mongoseal, keys: impl IntoIterator<Item: IntoName<Key>>, mode: M) -> Self {
        let keys = keys.into_iter().map(IntoName::into_name).collect();
        Self { keys, options: AcquireOptions::new(&seal.shared), mode }
    }

    /// Waits up to this long for all keys together: see [`Acquire::wait`](crate::Acquire::wait). Default: the handle's wait.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.options.wait = Some(at_most);
        self
    }

    /// Retries by this policy, without places in the queues: see [`Acquire::retry`](crate::Acquire::retry). An attempt is
    /// for all keys. If one of them is held, the others are released before the delay. Default: the handle's policy.
    pub fn retry(mut self, policy: Retry) -> Self {
        self.options.retry = Some(policy);
        self
    }

    /// Sets how long each lease lasts without a refresh. Default: the handle's ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how much longer than the ttl the store keeps each key: see [`Acquire::grace`](crate::Acquire::grace). Default:
    /// the handle's grace.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = Some(grace);
        self
    }

    /// Holds the keys without expiry: see [`Acquire::without_expiry`](crate::Acquire::without_expiry).
    pub fn without_expiry(mut self) -> Self {
        self.options.has_expiry = false;
        self
    }

    /// Shares each key with any number of sharing holders: see [`Acquire::shared`](crate::Acquire::shared). Default:
    /// exclusive.
    pub fn shared(mut self) -> Self {
        self.options.share();
        self
    }

    /// Shares each key with up to this many holders, this one included: see
    /// [`Acquire::shared_up_to`](crate::Acquire::shared_up_to).
    pub fn shared_up_to(mut self, holders: u32) -> Self {
        self.options.share_up_to(holders);
        self
    }

    /// Adds each lease to this group: see [`Acquire::group`](crate::Acquire::group).
    pub fn group<G>(mut self, group: G) -> Self
    where
        G: IntoName<Group>,
    {
        self.options.group(group);
        self
    }

    /// Adds an entry to the metadata that other processes see of each lease. See [`Metadata`](crate::Metadata) for its
    /// bounds.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.options.metadata(name, text);
        self
    }

    /// Sets the minimum hold of each lease: see [`Acquire::min_hold`](crate::Acquire::min_hold). It applies
    /// from the grant of the last key on: if a key is not granted, the others are free at once. Default: none.
    pub fn min_hold(mut self, time: Duration) -> Self {
        self.options.min_hold = Some(time);
        self
    }

    /// Sets the maximum hold of each lease: see [`Acquire::max_hold`](crate::Acquire::max_hold). It is counted from
    /// the grant of each key, so that of the first key ends first. Default: none.
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.options.max_hold = Some(time);
        self
    }

    /// Loses each lease if its holder has reported no [progress](LeaseSet::progress) for this long: see
    /// [`Acquire::stalled_after`](crate::Acquire::stalled_after). The time is counted from the grant of the last key.
    /// Default: no limit.
    pub fn stalled_after(mut self, time: Duration) -> Self {
        self.options.stalled_after = Some(time);
        self
    }

    /// Refreshes each lease this often: see [`Acquire::refresh_every`](crate::Acquire::refresh_every). Default: a third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Does not refresh in the background: each lease ends with its ttl unless it is [refreshed](Lease::refresh).
    pub fn without_refresh(mut self) -> Self {
        self.options.refreshing = Refreshing::ByHand;
        self
    }

    pub(crate) async fn send(self) -> Result<LeaseSet> {
        let Self { keys, options, mode: _mode } = self;
        let mut keys = keys?;
        keys.sort();
        if keys.is_empty() {
            return Err(Error::invalid("no key is given: name one or more"));
        }
        if let Some(twice) = keys.windows(2).find(|pair| pair.first() == pair.last()).and_then(<[Key]>::first) {
            return Err(Error::invalid(format!("the key {twice:?} is given twice: name each key once")));
        }
        let acquire = options.check()?;
        let policy = match &acquire.on_held {
            OnHeld::Once => return attempt(&acquire, &keys, Duration::ZERO).await,
            OnHeld::Wait(wait) => return attempt(&acquire, &keys, *wait).await,
            OnHeld::Retry(policy) => policy,
        };
        let context = &acquire.shared.context;
        let (clock, mut attempts) = (context.clock(), Attempts::of(policy));
        let began = clock.now();
        loop {
            let error = match attempt(&acquire, &keys, Duration::ZERO).await {
                Err(error) => error,
                granted => return granted,
            };
            let delay = attempts.next(error, clock.now().since(began))?;
            tokio::select! {
                biased;
                () = context.closing.cancelled() => return Err(shut_down_error()),
                () = clock.sleep_until(clock.now().after(delay)) => {}
            }
        }
    }
}

/// Acquires the keys in their order, all or none. Waits up to `wait` for all of them together, and ends with the
/// operation timeout after that: a take-back that is slower goes on in the background.
async fn attempt(acquire: &CheckedAcquire, keys: &[Key], wait: Duration) -> Result<LeaseSet> {
    let acquire = acquire.clone().wait(wait);
    let context = &acquire.shared.context;
    let (clock, give_up) = (context.clock(), acquire.deadline());
    let until = clock.now().after(wait);
    let mut leases = Gathered::default();
    for key in keys {
        let left = until.since(clock.now());
        match acquire.clone().wait(left).give_up_at(give_up).acquire(key.clone()).await {
            Ok(lease) => {
                lease.lease_inner().suspend_progress();
                leases.push(lease);
            }
            Err(error) => {
                // Before the caller sees the error.
                give_up.wait_for(leases.take_back()).await;
                return Err(error);
            }
        }
    }
    // Before the caller sees that one was lost.
    if let Err(lost) = leases.check() {
        give_up.wait_for(leases.take_back()).await;
        return Err(lost);
    }
    let leases = leases.complete();
    for lease in &leases {
        lease.lease_inner().record_progress();
    }
    Ok(LeaseSet::of(leases))
}

impl IntoFuture for AcquireAll {
    type Output = Result<LeaseSet>;
    type IntoFuture = BoxFuture<Result<LeaseSet>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Leases on several keys that are of use only together: when one is lost, all work under them must stop.
///
/// Each lease is refreshed by itself. Dropping the set releases all leases in the background, by one command.
#[must_use = "leases are released when they are dropped, and `let _ =` drops them at once: bind them to a variable"]
pub struct LeaseSet {
    /// In the order of their keys.
    leases: Vec<Lease>,
    /// Cancelled when one of the leases ends.
    ended: CancellationToken,
}

impl LeaseSet {
    fn of(leases: Vec<Lease>) -> Self {
        let ended = CancellationToken::new();
        for lease in &leases {
            lease.lease_inner().cancel_at_end(&ended);
        }
        Self { leases, ended }
    }

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
    /// [`Error::Lost`] or [`Error::Ended`] of the first lease that is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. The leases stay.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        // Before the work, so that it is dropped after it.
        let _at_work: Vec<_> = self.leases.iter().map(|lease| lease.lease_inner().begin_work()).collect();
        run_while_held(&self.ended, || self.check(), pin!(work)).await
    }

    /// Runs `work` that returns a `Result` while all leases are held, as [`Lease::try_run`] does for one lease.
    ///
    /// # Errors
    ///
    /// The error of the work. [`Error::Lost`] or [`Error::Ended`] of the first lease that is over.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.run(work).await?
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
        self.end_by_release().await
    }

    /// Releases all leases: see [`release`](Self::release).
    pub(crate) async fn end_by_release(&self) -> Result<Vec<(Key, ReleaseOutcome)>> {
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

    /// Ends all leases. Their tasks then release them.
    fn end(&self) {
        end_together(self.leases.iter().map(Lease::lease_inner));
    }

    fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(Lease::check)
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

impl fmt::Debug for LeaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}

/// The leases of a set before all of them are granted. Dropping them takes them back in the background: no work has run under
/// them, so a minimum hold does not apply.
#[derive(Default)]
struct Gathered(Vec<Lease>);

impl Gathered {
    fn push(&mut self, lease: Lease) {
        self.0.push(lease);
    }

    /// Refuses a set of which a lease is lost.
    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(Lease::check)
    }

    /// The leases of a complete set.
    fn complete(mut self) -> Vec<Lease> {
        mem::take(&mut self.0)
    }

    /// Takes the leases back, all at the same time.
    async fn take_back(mut self) {
        let leases = mem::take(&mut self.0);
        leases.iter().for_each(Lease::begin_take_back);
        for lease in leases {
            lease.take_back().await;
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.0.iter().for_each(Lease::begin_take_back);
    }
}
