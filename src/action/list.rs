//! The verb `leases`: the leases of many keys.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use futures_util::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};

use crate::{
    engine::context::{Context, PAGE_SIZE},
    handle::{Async, Mongoseal, awaitable},
    record::{Filter, ListedLease, Position, SharingFilter, StoreTime},
    store::answers::Page,
    types::{
        error::{Error, Result},
        group::Group,
        into_name::IntoName,
        key::Key,
        owner::Owner,
    },
};

/// How many leases the first page has, so that its first lease comes soon.
const FIRST_PAGE: u32 = 500;

/// Lists leases. Awaiting it returns a [`LeaseStream`] of the leases that match all filters. Expired leases are left
/// out unless [`with_expired`](Self::with_expired) includes them.
///
/// [`Mongoseal::leases`] makes it. If a filter is set twice, the last setting counts.
///
/// # Errors
///
/// - [`Error::Invalid`](crate::Error::Invalid): a key, prefix, owner or group is not valid.
/// - [`Error::Unavailable`](crate::Error::Unavailable): the store did not answer within the operation timeout.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer and changes nothing.
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
/// let nightly = seal.acquire("reports/nightly").ttl(Duration::from_secs(5)).await?;
/// let _weekly = seal.acquire("reports/weekly").ttl(Duration::from_secs(60)).await?;
///
/// let mut soon_over = seal.leases().prefix("reports/").free_in_less_than(Duration::from_secs(10)).await?;
/// while let Some(lease) = soon_over.next().await {
///     let lease = lease?;
///     println!("{:?} is held by {:?}", lease.key, lease.holder.owner);
///     assert_eq!(lease.holder.token, nightly.token());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a list does nothing until it is awaited or run"]
pub struct Leases<M = Async> {
    context: Arc<Context>,
    selection: Result<Filter>,
    pub(crate) mode: M,
}

impl Mongoseal {
    /// Lists leases in the order of their keys, and the leases of a key in the order of their tokens. Nothing is sent
    /// until the returned builder is awaited.
    pub fn leases(&self) -> Leases {
        Leases::new(self, Async)
    }
}

impl<M> Leases<M> {
    pub(crate) fn new(seal: &Mongoseal, mode: M) -> Self {
        Self { context: Arc::clone(&seal.handle.context), selection: Ok(Filter::default()), mode }
    }

    fn set<T>(mut self, value: Result<T>, put: impl FnOnce(&mut Filter, T)) -> Self {
        self.selection = self.selection.and_then(|mut selection| {
            put(&mut selection, value?);
            Ok(selection)
        });
        self
    }

    /// Only leases of this key.
    pub fn key(self, key: impl IntoName<Key>) -> Self {
        self.set(key.into_name(), |selection, key| selection.key = Some(key))
    }

    /// Only leases of keys that begin with this text, byte for byte. No character is special.
    pub fn prefix(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.set(Filter::ensure_prefix(&text), |selection, ()| selection.prefix = text)
    }

    /// Only leases of this owner.
    pub fn owner(self, owner: impl IntoName<Owner>) -> Self {
        self.set(owner.into_name(), |selection, owner| selection.owner = Some(owner))
    }

    /// Only leases of this group.
    pub fn group(self, group: impl IntoName<Group>) -> Self {
        self.set(group.into_name(), |selection, group| selection.group = Some(group))
    }

    /// Only exclusive leases.
    pub fn exclusive(self) -> Self {
        self.set(Ok(SharingFilter::Exclusive), |selection, sharing| selection.sharing = Some(sharing))
    }

    /// Only shared leases, even if the key has one holder.
    pub fn shared(self) -> Self {
        self.set(Ok(SharingFilter::Shared), |selection, sharing| selection.sharing = Some(sharing))
    }

    /// Only leases that were granted before this time on the store's clock.
    pub fn since_before(self, time: StoreTime) -> Self {
        self.set(Ok(time), |selection, time| selection.since_before = Some(time))
    }

    /// Only leases that were granted after this time on the store's clock.
    pub fn since_after(self, time: StoreTime) -> Self {
        self.set(Ok(time), |selection, time| selection.since_after = Some(time))
    }

    /// Only leases whose key is free in less than this without a refresh, by the store's clock. Leases without expiry are
    /// not among them.
    pub fn free_in_less_than(self, time: Duration) -> Self {
        self.set(Ok(time), |selection, time| selection.free_in_less_than = Some(time))
    }

    /// Only leases whose key is not free for at least this without a refresh, by the store's clock. Leases without expiry
    /// are among them.
    pub fn free_in_at_least(self, time: Duration) -> Self {
        self.set(Ok(time), |selection, time| selection.free_in_at_least = Some(time))
    }

    /// Includes expired leases that are still in their record, because their key was not requested since.
    pub fn with_expired(self) -> Self {
        self.set(Ok(true), |selection, with_expired| selection.with_expired = with_expired)
    }

    pub(crate) async fn send(self) -> Result<LeaseStream> {
        let Self { context, selection, mode: _mode } = self;
        let selection = selection?;
        // An error is returned here and not with the first lease.
        let mut first = read_page(&context, &selection, None).await?;
        while first.leases.is_empty()
            && let Some(after) = first.next.take()
        {
            first = read_page(&context, &selection, Some(after)).await?;
        }
        let later = stream::try_unfold((context, selection, first.next), |(context, selection, after)| async move {
            let Some(after) = after else { return Ok(None) };
            let Page { leases, next } = read_page(&context, &selection, Some(after)).await?;
            Ok::<_, Error>(Some((stream::iter(leases).map(Ok), (context, selection, next))))
        });
        Ok(LeaseStream { leases: stream::iter(first.leases).map(Ok).chain(later.try_flatten()).boxed() })
    }
}

awaitable!(Leases => LeaseStream);

/// The leases that match a [`Leases`] list, in the order of their keys, and then of their tokens.
///
/// A page of at most 2,000 leases is read when the stream reaches it. A lease that exists while the whole list is read is
/// returned once. A lease that is granted or ends meanwhile may be returned or not.
///
/// It is a [`Stream`]. It ends after the last lease or after an error.
#[must_use = "a stream of leases does nothing until it is polled"]
pub struct LeaseStream {
    leases: BoxStream<'static, Result<ListedLease>>,
}

impl LeaseStream {
    /// Returns the next lease; `None` after the last.
    ///
    /// # Errors
    ///
    /// As [`Leases`]. An error is the last item.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns the lease that this one would have returned.
    pub async fn next(&mut self) -> Option<Result<ListedLease>> {
        self.leases.next().await
    }

    /// Reads all leases that are left, in their order.
    ///
    /// # Errors
    ///
    /// As [`Leases`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops what it has read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let _lease = seal.acquire("reports/nightly").await?;
    /// let held = seal.leases().prefix("reports/").await?.collect().await?;
    /// assert_eq!(held.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn collect(self) -> Result<Vec<ListedLease>> {
        self.leases.try_collect().await
    }
}

async fn read_page(context: &Context, selection: &Filter, after: Option<Position>) -> Result<Page> {
    context.ensure_open()?;
    let size = if after.is_none() { FIRST_PAGE } else { PAGE_SIZE };
    context.list(selection, after, size, context.operation_deadline()).await
}

impl Stream for LeaseStream {
    type Item = Result<ListedLease>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.leases.poll_next_unpin(task)
    }
}

impl fmt::Debug for LeaseStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStream").finish_non_exhaustive()
    }
}
