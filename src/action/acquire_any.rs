//! The verb `acquire_any`: the first free key of several.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};

use super::{
    acquire::Acquire,
    acquire_options::{CheckedAcquire, no_key_error, several},
};
use crate::{
    engine::{call_limit::CallLimit, ungiven::Ungiven},
    handle::{Async, Mongoseal, awaitable},
    lease::Lease,
    types::{
        deadline::Deadline,
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
    },
};

impl Mongoseal {
    /// Acquires one key of several, the first that is free. Nothing is sent until the returned builder is awaited.
    ///
    /// Use it for things of which a worker needs any one: a GPU, a shard, an account. The token of each key fences; those of the
    /// holders of a [shared](Acquire::shared_up_to) key do not fence them against each other.
    pub fn acquire_any(&self, keys: impl IntoIterator<Item: IntoName<Key>>) -> AcquireAny {
        AcquireAny::new(self, several(keys), Async)
    }
}

/// Acquires one key of several. Awaiting it returns the [`Lease`], whose [`key`](Lease::key) says which one it is, or an error.
///
/// [`Mongoseal::acquire_any`] makes it. The keys are tried one after another, in the order in which they are given. If none is
/// granted and the acquire waits, it has a place in the queue of each key. When it is granted one of them, it leaves the other
/// queues in the background. If it is granted two at the same time, it keeps one, and the other is taken back in the background.
///
/// Its options are those of an [`Acquire`], for each key, with these differences:
///
/// - [`wait`](Acquire::wait) begins with the call, for all keys.
/// - An attempt of a [`retry`](Acquire::retry) policy tries each key once.
///
/// The [operation timeout](crate::Builder::operation_timeout) bounds all requests: it must be longer than two round trips for
/// each key. A key that the store does not answer for takes a quarter of what is left of it, or more if fewer than three keys
/// follow. The handle notifies its observers of an acquire of each key.
///
/// # Errors
///
/// Those of an [`Acquire`]. A key that is refused is passed over. If no key is granted, the error is the [`Error::Held`] of the
/// first key that is held, or else the error of the first key. [`Error::Invalid`] if no key is given, or one is given twice.
///
/// # Cancel safety
///
/// As an [`Acquire`]: dropping the future gives all keys up. If it waits and is neither polled nor dropped, each of its keys can
/// be granted and held meanwhile.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let first = seal.acquire_any(["gpu/0", "gpu/1"]).await?;
/// let second = seal.acquire_any(["gpu/0", "gpu/1"]).await?;
/// assert_eq!((first.key().as_str(), second.key().as_str()), ("gpu/0", "gpu/1"));
/// # second.release().await?;
/// # first.release().await?;
/// # Ok(())
/// # }
/// ```
pub type AcquireAny<M = Async> = Acquire<M, Vec<Key>>;

impl AcquireAny {
    pub(crate) async fn send(self) -> Result<Lease> {
        let Self { keys, options, mode: _mode } = self;
        let (keys, acquire) = (keys?, options.check()?);
        acquire.attempts(|wait| attempt(&acquire, &keys, wait)).await.map(Ungiven::give)
    }
}

awaitable!(AcquireAny => Lease);

/// Tries each key once. If none is granted, waits for all of them until `wait` after its start.
async fn attempt(acquire: &CheckedAcquire, keys: &[Key], wait: Duration) -> Result<Ungiven> {
    let acquire = acquire.clone().wait(wait);
    let context = &acquire.handle.context;
    let (clock, limit) = (context.clock(), acquire.limit());
    let until = clock.now().after(wait);
    let mut refused = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        // A key whose record is locked leaves time for the others, and for the waits.
        let later = keys.len().saturating_sub(at.saturating_add(usize::from(wait.is_zero())));
        let parts = u32::try_from(later.min(3)).unwrap_or_default().saturating_add(1);
        let part = limit.next(context).remaining().checked_div(parts).unwrap_or_default();
        let limit = CallLimit::new(context, Deadline::after(clock, part));
        match acquire.clone().wait(Duration::ZERO).within(limit).acquire(key.clone()).await {
            Err(error) => refused.push((at, error)),
            granted => return granted,
        }
    }
    let left = until.since(clock.now());
    // The drop of a wait gives up its place.
    let mut waits = FuturesUnordered::new();
    if !left.is_zero() {
        let acquire = acquire.clone().wait(left).within(limit);
        for (at, _) in refused.extract_if(.., |(_, error)| !matches!(error, Error::Corrupt { .. })) {
            waits.extend(keys.get(at).map(|key| acquire.clone().acquire(key.clone()).map(move |ended| (at, ended))));
        }
    }
    while let Some((at, ended)) = waits.next().await {
        match ended {
            Err(error) => refused.push((at, error)),
            granted => return granted,
        }
    }
    Err(error_of_all(refused))
}

/// The error if no key is granted: that of the first key that is held, which a later call may be granted, or else of the first.
fn error_of_all(refused: Vec<(usize, Error)>) -> Error {
    let first = refused.into_iter().min_by_key(|(at, error)| (!matches!(error, Error::Held { .. }), *at));
    first.map_or_else(no_key_error, |(_, error)| error)
}
