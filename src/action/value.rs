//! The verbs of the value of a key: `put_value`, `clear_value`, `value` and `release_with_value`.

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    engine::{
        end_action::{End, EndAction, ValueWrite},
        handle_inner::HandleInner,
        lease_inner::{GrantedValue, LeaseInner},
        lease_state::LeaseState,
        value::{self, PutEnd, shared_error},
    },
    handle::{Async, Mongoseal, awaitable},
    lease::{Lease, end::end_error, work},
    record::{KeyValue, StoredValue},
    types::{
        error::{Error, Result},
        into_name::IntoName,
        json::Json,
        keep,
        key::Key,
        lease_id::LeaseId,
        token::FencingToken,
    },
};

/// A write of the value of a key. [`Lease::put_value`] and the verbs beside it make it; awaiting it sends it.
///
/// The write succeeds only under the token of its lease, while that lease holds the key and excludes others. So a holder
/// that was deposed writes no value. A write that is delayed in the network changes nothing once a later one was applied.
///
/// # Errors
///
/// - [`Error::Invalid`]: the content is none that a store can keep (see [`Json::of`]), the lease shares its key, or the
///   deployment or its privileges must be changed.
/// - [`Error::Lost`] or [`Error::Ended`]: the lease is over. If an answer was lost before, the value may have been stored.
/// - [`Error::Unavailable`]: the store did not confirm the write within the operation timeout. The value may be stored or
///   not: retry.
/// - [`Error::Corrupt`]: another program wrote over the record.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. The write may still be applied. Once the future of
/// [`release_with_value`](Lease::release_with_value) was polled, the lease is released all the same.
#[derive(Debug)]
#[must_use = "a write of a value does nothing until it is awaited or run"]
pub struct PutValue<M = Async> {
    target: Target,
    content: Result<Option<Json>>,
    /// Whether the write releases the lease.
    releases: bool,
    keep_for: Duration,
    pub(crate) mode: M,
}

/// Under what a value is written.
#[derive(Debug)]
enum Target {
    /// A lease of this process.
    Held(Arc<HandleInner>, Arc<LeaseInner>),
    /// A lease that another process refreshes.
    Named(Arc<HandleInner>, Result<Key>, LeaseId, FencingToken),
}

impl PutValue {
    /// The default of [`keep_for`](Self::keep_for): 90 days.
    pub const DEFAULT_KEEP: Duration = keep::DEFAULT_KEEP;

    /// The largest value of [`keep_for`](Self::keep_for): 36,500 days, about a century.
    pub const MAX_KEEP: Duration = keep::MAX_KEEP;
}

impl<M> PutValue<M> {
    fn new(target: Target, content: Result<Option<Json>>, releases: bool, mode: M) -> Self {
        Self { target, content, releases, keep_for: keep::DEFAULT_KEEP, mode }
    }

    pub(crate) fn named(
        seal: &Mongoseal,
        key: impl IntoName<Key>,
        (id, token): (LeaseId, FencingToken),
        content: Result<Json>,
        mode: M,
    ) -> Self {
        let target = Target::Named(Arc::clone(&seal.handle), key.into_name(), id, token);
        Self::new(target, content.map(Some), false, mode)
    }

    /// Keeps the value for at least this long after the write, up to [`MAX_KEEP`](PutValue::MAX_KEEP), and for at least the
    /// [retention](crate::Builder::retention). After that the store may delete it, if the key is not held. Default:
    /// [`DEFAULT_KEEP`](PutValue::DEFAULT_KEEP).
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep_for = time;
        self
    }

    pub(crate) async fn send(self) -> Result<()> {
        let Self { target, content, releases, keep_for, mode: _mode } = self;
        keep::ensure_keep(keep_for)?;
        let write = ValueWrite { content: content?, keep: keep_for, releases };
        match target {
            Target::Held(handle, lease) if releases => release(&handle, &lease, write).await,
            Target::Held(handle, lease) => put(&handle, &lease, &write).await,
            Target::Named(handle, key, id, token) => {
                let (context, key) = (&handle.context, key?);
                context.ensure_open()?;
                id.ensure_some()?;
                let until = context.operation_deadline();
                match value::put(context, &key, (id, token), &AtomicU64::new(0), &write, until).await? {
                    PutEnd::Stored => Ok(()),
                    PutEnd::Lost { cause, .. } => Err(Error::Lost { key, token, cause }),
                }
            }
        }
    }
}

awaitable!(PutValue => ());

/// Writes a value under a lease of this process.
async fn put(handle: &HandleInner, lease: &LeaseInner, write: &ValueWrite) -> Result<()> {
    let context = &handle.context;
    ensure_writable(lease)?;
    context.ensure_open()?;
    // From now on, the value is not that of the grant.
    drop(lease.take_granted_value());
    let (of, until) = ((lease.id, lease.token), context.operation_deadline());
    let sent = value::put(context, &lease.key, of, &lease.last_write, write, until);
    match work::run_while_held(&lease.ended, || lease.check(), pin!(sent)).await?? {
        PutEnd::Stored => Ok(()),
        PutEnd::Lost { cause, .. } => {
            lease.lose(cause);
            Err(lease.end_error())
        }
    }
}

/// Releases a lease of this process by a write that stores the value. The lease ends when nothing is left to refuse.
async fn release(handle: &HandleInner, lease: &LeaseInner, write: ValueWrite) -> Result<()> {
    ensure_writable(lease)?;
    if !lease.end_with(EndAction::ReleaseWithValue(Box::new(write)), &LeaseState::RELEASED) {
        return Err(lease.end_error());
    }
    let end = lease.wait_for_end(&handle.context).await?;
    match end {
        End::ReleasedWithValue => Ok(()),
        end => Err(end_error(lease, end.outcome())),
    }
}

fn ensure_writable(lease: &LeaseInner) -> Result<()> {
    lease.check()?;
    if lease.is_exclusive() { Ok(()) } else { Err(shared_error(&lease.key)) }
}

impl Lease {
    /// Stores a small value with the key: a checkpoint of a job, or the offset of a consumer. The next holders of the key read
    /// it by [`value`](Self::value), whatever ends this lease.
    ///
    /// The content is what `serde_json` makes of it, at most 64 KiB: see [`Json::of`]. The store keeps it for
    /// [90 days](PutValue::keep_for) after the last write.
    ///
    /// Each write is confirmed by a majority, and writes the record of the key: a few in a second at most. Watches and
    /// notifications do not carry the value.
    ///
    /// # Errors
    ///
    /// Those of [`PutValue`].
    ///
    /// # Cancel safety
    ///
    /// As of [`PutValue`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("import").await?;
    /// let mut page = lease.value::<u64>().await?.map_or(0, |value| value.content);
    /// while page < 3 {
    ///     // Import the page, then:
    ///     page += 1;
    ///     lease.put_value(&page).await?;
    /// }
    /// lease.release().await?;
    ///
    /// let next = seal.acquire("import").await?;
    /// let value = next.value::<u64>().await?.expect("it was stored");
    /// assert!(value.content == 3 && value.token < next.token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.write_value(Json::of(content).map(Some), false, Async)
    }

    /// Clears the value of the key, so that [`value`](Self::value) returns `None`.
    pub fn clear_value(&self) -> PutValue {
        self.write_value(Ok(None), false, Async)
    }

    /// Stores a value and releases the lease, in one write. Returns an error if the value was not stored.
    ///
    /// Content, [`keep_for`](PutValue::keep_for) and the lease are checked before the lease ends: such an error leaves its
    /// [`state`](Self::state) as it is. After an error of the store the lease has ended: it is released, or its ttl ends it,
    /// or a revocation if it has no expiry.
    ///
    /// Keep the lease until the release is awaited: its drop releases it without the value. Work under the lease is stopped.
    /// A later [`release`](Self::release) waits for the end of this one, if its future was dropped, and returns how it ended.
    /// After [`Error::Unavailable`] that is [`ReleaseOutcome::Unknown`](crate::ReleaseOutcome::Unknown).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("import").await?;
    /// lease.release_with_value("done").await?;
    /// # let next = seal.acquire("import").await?;
    /// # assert_eq!(next.value::<String>().await?.unwrap().content, "done");
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_with_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.write_value(Json::of(content).map(Some), true, Async)
    }

    /// Reads the value of the key: its content, the token of the lease that wrote it, and when. `None`: no holder has stored
    /// one, or the last one cleared it.
    ///
    /// The value is that of the last write that was confirmed to an earlier holder, or a later one. If this lease was granted
    /// its key directly and has written no value, the first call needs no request: the grant had the value in its answer.
    /// Other calls read it.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Self::verify), and [`Error::Invalid`] if the content is not a `T`. Read it as [`Json`] to get it in
    /// any form.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn value<T: DeserializeOwned>(&self) -> Result<Option<KeyValue<T>>> {
        KeyValue::of(self.stored_value().await?).map(KeyValue::parse).transpose()
    }

    pub(crate) async fn stored_value(&self) -> Result<Option<StoredValue>> {
        self.check()?;
        self.context().ensure_open()?;
        Ok(match self.lease_inner().take_granted_value() {
            GrantedValue::Known(granted) => granted.map(|value| *value),
            GrantedValue::Unknown => self.read_held().await?.and_then(|read| read.record.value),
        })
    }

    pub(crate) fn write_value<M>(&self, content: Result<Option<Json>>, releases: bool, mode: M) -> PutValue<M> {
        PutValue::new(Target::Held(Arc::clone(&self.handle), Arc::clone(self.lease_inner())), content, releases, mode)
    }
}

impl Mongoseal {
    /// Stores the value of a key under a lease that another process holds, by its id and its token: for a program that a
    /// holder starts. It neither refreshes nor ends that lease. See [`Lease::put_value`].
    ///
    /// # Errors
    ///
    /// Those of [`PutValue`]. [`Error::Lost`] if the lease does not hold the key.
    ///
    /// # Cancel safety
    ///
    /// As of [`PutValue`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("import").await?;
    /// let (id, token) = (lease.id(), lease.token());
    /// // In a process that received these three:
    /// seal.put_value("import", id, token, "page 7").await?;
    /// # lease.put_value("page 8").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_value<T: Serialize + ?Sized>(
        &self,
        key: impl IntoName<Key>,
        id: LeaseId,
        token: FencingToken,
        content: &T,
    ) -> PutValue {
        PutValue::named(self, key, (id, token), Json::of(content), Async)
    }
}
