//! The verb `acquire_any`: the first free key of several.

use std::{future::poll_fn, mem, task::Poll, time::Duration};

use super::{
    acquire::Acquire,
    acquire_options::{CheckedAcquire, no_key_error, several},
};
use crate::{
    engine::ungiven::Ungiven,
    handle::{Async, Mongoseal, awaitable},
    lease::Lease,
    types::{
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
    },
};

impl Mongoseal {
    /// Acquires one key of several, the first that is free. Nothing is sent until the returned builder is awaited.
    ///
    /// Use it for things of which a worker needs any one: a GPU, a shard, an account. Each key has tokens of its own, which
    /// the holders of a [shared](Acquire::shared_up_to) key do not have.
    pub fn acquire_any(&self, keys: impl IntoIterator<Item: IntoName<Key>>) -> AcquireAny {
        AcquireAny::new(self, several(keys), Async)
    }
}

/// Acquires one key of several. Awaiting it returns the [`Lease`], whose [`key`](Lease::key) says which one it is, or an error.
///
/// [`Mongoseal::acquire_any`] makes it. The keys are tried one after another, in the order in which they are given. If all
/// are held and the acquire waits, it has a place in the queue of each key. When it is granted one of them, it leaves the other
/// queues in the background. If it is granted two at the same time, it keeps one, and the other is free at once.
///
/// Its options are those of an [`Acquire`], for each key, with these differences:
///
/// - [`wait`](Acquire::wait) begins with the call, for all keys.
/// - An attempt of a [`retry`](Acquire::retry) policy tries each key once.
///
/// The [operation timeout](crate::Builder::operation_timeout) bounds all requests: it must be longer than the round trips for
/// all keys.
///
/// # Errors
///
/// Those of an [`Acquire`]. A key that is held, whose queue is full, or whose record is corrupt is passed over. If no key is
/// granted, the error is the first that is not [`Error::Held`], or else that of the first key. [`Error::Unavailable`] ends the call.
/// [`Error::Invalid`] if no key is given, or one is given twice.
///
/// # Cancel safety
///
/// As an [`Acquire`]: dropping the future gives all keys up.
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

impl<M> AcquireAny<M> {
    pub(crate) async fn send(self) -> Result<Lease> {
        let Self { keys, options, mode: _mode } = self;
        let (keys, acquire) = (keys?, options.check()?);
        acquire.attempts(|wait| attempt(&acquire, &keys, wait)).await.map(Ungiven::give)
    }
}

awaitable!(AcquireAny => Lease);

/// Tries each key once. If all are held, waits for all of them until `wait` after its start.
async fn attempt(acquire: &CheckedAcquire, keys: &[Key], wait: Duration) -> Result<Ungiven> {
    let acquire = acquire.clone().wait(wait);
    let acquire = acquire.clone().within(acquire.limit());
    let clock = acquire.handle.context.clock();
    let until = clock.now().after(wait);
    let (mut refusal, mut held) = (None, Vec::new());
    for key in keys {
        match acquire.clone().wait(Duration::ZERO).acquire(key.clone()).await {
            Err(error) => {
                if matches!(error, Error::Held { .. }) {
                    held.push(key.clone());
                }
                refusal = Some(first_refusal(refusal, error)?);
            }
            granted => return granted,
        }
    }
    let left = until.since(clock.now());
    let mut waits: Vec<_> = Vec::new();
    if !left.is_zero() {
        // Who holds the keys at the end of the wait is told then.
        refusal = refusal.filter(|error| !matches!(error, Error::Held { .. }));
        waits.extend(held.into_iter().map(|key| Box::pin(acquire.clone().wait(left).acquire(key))));
    }
    // The drop of a wait gives up its place.
    poll_fn(|task| {
        for mut wait in mem::take(&mut waits) {
            match wait.as_mut().poll(task) {
                Poll::Pending => waits.push(wait),
                Poll::Ready(Err(error)) => refusal = Some(first_refusal(refusal.take(), error)?),
                granted => return granted,
            }
        }
        if waits.is_empty() { Poll::Ready(Err(refusal.take().unwrap_or_else(no_key_error))) } else { Poll::Pending }
    })
    .await
}

/// The error if no key is granted: the first that says more than that a key is held, or else the first. An error that is not
/// of one key ends the call.
fn first_refusal(refusal: Option<Error>, error: Error) -> Result<Error> {
    match (refusal, error) {
        (None | Some(Error::Held { .. }), error @ (Error::QueueFull { .. } | Error::Corrupt { .. })) => Ok(error),
        (Some(refusal), Error::Held { .. } | Error::QueueFull { .. } | Error::Corrupt { .. }) => Ok(refusal),
        (None, error @ Error::Held { .. }) => Ok(error),
        (_, error) => Err(error),
    }
}
