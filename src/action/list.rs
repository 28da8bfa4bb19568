//! The verb `leases`: the leases of many keys.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
    time::Duration,
};

use futures_core::Stream;

use crate::{
    engine::context::Context,
    handle::{Async, Mongoseal, awaitable},
    record::{Filter, ListedLease, Position, SharingFilter, StoreTime},
    store::{BoxFuture, answers::Page},
    types::{
        duration::format_duration,
        error::{Error, Result},
        group::Group,
        into_name::IntoName,
        key::Key,
        owner::Owner,
    },
};

/// How many leases the first page has, so that its first lease comes soon, and how many each later page has. To fill a page,
/// MongoDB reads 4 MB of records at a time, which are some thousands.
const FIRST_PAGE: u32 = 500;
const PAGE_SIZE: u32 = 2_000;

/// Lists leases. Awaiting it returns a [`LeaseStream`] of the leases that match all filters. Expired leases are left
/// out unless [`with_expired`](Self::with_expired) includes them.
///
/// [`Mongoseal::leases`] makes it. If a filter is set twice, both apply: the narrower of two bounds counts, and two
/// owners are a contradiction.
///
/// # Errors
///
/// - [`Error::Invalid`]: a key, prefix or owner is not valid, or no lease can match all filters.
/// - [`Error::Unavailable`]: the store did not answer within the operation timeout.
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
/// let mut soon_over = seal.leases().prefix("reports/").remaining_less_than(Duration::from_secs(10)).await?;
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
        Self { context: Arc::clone(&seal.shared.context), selection: Ok(Filter::default()), mode }
    }

    fn and(mut self, narrow: impl FnOnce(&mut Filter) -> Result<()>) -> Self {
        self.selection = self.selection.and_then(|mut selection| {
            narrow(&mut selection)?;
            Ok(selection)
        });
        self
    }

    /// Only leases of this key.
    pub fn key<K>(self, key: K) -> Self
    where
        K: IntoName<Key>,
    {
        let key = key.into_name();
        self.and(|selection| only(&mut selection.key, key?, "keys"))
    }

    /// Only leases of keys that begin with this text, byte for byte. No character is special.
    pub fn prefix(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(|selection| {
            Filter::ensure_prefix(&text)?;
            if text.starts_with(&selection.prefix) {
                selection.prefix = text;
            } else if !selection.prefix.starts_with(&text) {
                return Err(contradiction(&format!("the prefixes {:?} and {text:?}", selection.prefix)));
            }
            Ok(())
        })
    }

    /// Only leases of this owner.
    pub fn owner<O>(self, owner: O) -> Self
    where
        O: IntoName<Owner>,
    {
        let owner = owner.into_name();
        self.and(|selection| only(&mut selection.owner, owner?, "owners"))
    }

    /// Only leases of this group.
    pub fn group<G>(self, group: G) -> Self
    where
        G: IntoName<Group>,
    {
        let group = group.into_name();
        self.and(|selection| only(&mut selection.group, group?, "groups"))
    }

    /// Only exclusive leases.
    pub fn exclusive(self) -> Self {
        self.and(|selection| only(&mut selection.sharing, SharingFilter::Exclusive, "ways to hold"))
    }

    /// Only shared leases, even if the key has one holder.
    pub fn shared(self) -> Self {
        self.and(|selection| only(&mut selection.sharing, SharingFilter::Shared, "ways to hold"))
    }

    /// Only leases that were granted before this time on the store's clock.
    pub fn since_before(self, time: StoreTime) -> Self {
        self.and(|selection| {
            selection.since_before = Some(selection.since_before.map_or(time, |other| other.min(time)));
            Ok(())
        })
    }

    /// Only leases that were granted after this time on the store's clock.
    pub fn since_after(self, time: StoreTime) -> Self {
        self.and(|selection| {
            selection.since_after = Some(selection.since_after.map_or(time, |other| other.max(time)));
            Ok(())
        })
    }

    /// Only leases that last for less than this without a refresh, by the store's clock. Leases without expiry are not
    /// among them.
    pub fn remaining_less_than(self, time: Duration) -> Self {
        self.and(|selection| {
            selection.remaining_less_than = Some(selection.remaining_less_than.map_or(time, |other| other.min(time)));
            Ok(())
        })
    }

    /// Only leases that last for at least this without a refresh, by the store's clock. Leases without expiry are among
    /// them.
    pub fn remaining_at_least(self, time: Duration) -> Self {
        self.and(|selection| {
            selection.remaining_at_least = Some(selection.remaining_at_least.map_or(time, |other| other.max(time)));
            Ok(())
        })
    }

    /// Includes expired leases that are still in their record, because their key was not requested since.
    pub fn with_expired(self) -> Self {
        self.and(|selection| {
            selection.with_expired = true;
            Ok(())
        })
    }

    pub(crate) async fn send(self) -> Result<LeaseStream> {
        let mut leases = self.checked()?;
        // An error is returned here and not with the first lease.
        poll_fn(|task| leases.poll_read(task)).await?;
        Ok(leases)
    }

    /// Refuses filters that no lease can match together.
    fn checked(self) -> Result<LeaseStream> {
        let Self { context, selection, mode: _mode } = self;
        let selection = selection?;
        if let Some(key) = &selection.key
            && !key.as_str().starts_with(&selection.prefix)
        {
            return Err(contradiction(&format!("the key {key:?} and the prefix {:?}", selection.prefix)));
        }
        if let (Some(after), Some(before)) = (selection.since_after, selection.since_before)
            && before <= after.after(1)
        {
            return Err(contradiction(&format!(
                "a grant after {} ms and before {} ms",
                after.millis(),
                before.millis()
            )));
        }
        let least = selection.remaining_at_least.unwrap_or_default();
        if let Some(bound) = selection.remaining_less_than
            && bound <= least
        {
            return Err(contradiction(&format!(
                "less than {} remaining and at least {}",
                format_duration(bound),
                format_duration(least)
            )));
        }
        Ok(LeaseStream { context, selection, read: VecDeque::new(), rest: Rest::Unread(None) })
    }
}

awaitable!(Leases => LeaseStream);

/// Sets a filter of which a lease has one value.
fn only<T: PartialEq>(wanted: &mut Option<T>, value: T, what: &str) -> Result<()> {
    if wanted.replace(value).is_some_and(|other| wanted.as_ref() != Some(&other)) {
        return Err(contradiction(&format!("two {what}")));
    }
    Ok(())
}

fn contradiction(what: &str) -> Error {
    Error::invalid(format!("the selection has {what}, which no lease matches: leave out one"))
}

/// The leases that match a [`Leases`] list, in the order of their keys, and then of their tokens.
///
/// A page of at most 2,000 leases is read when the stream reaches it. A lease that exists while the whole list is read is
/// returned once. A lease that is granted or ends meanwhile may be returned or not.
///
/// It is a [`Stream`]. It ends after the last lease or after an error.
#[must_use = "a stream of leases does nothing until it is polled"]
pub struct LeaseStream {
    context: Arc<Context>,
    selection: Filter,
    /// What was read and not returned yet.
    read: VecDeque<ListedLease>,
    rest: Rest,
}

/// What was not read yet.
enum Rest {
    /// All leases after this position.
    Unread(Option<Position>),
    /// The next page is being read.
    Reading(BoxFuture<Result<Page>>),
    Nothing,
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
        poll_fn(|task| self.poll_lease(task)).await
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
    pub async fn collect(mut self) -> Result<Vec<ListedLease>> {
        let mut leases = Vec::new();
        while let Some(lease) = self.next().await {
            leases.push(lease?);
        }
        Ok(leases)
    }

    fn poll_lease(&mut self, task: &mut task::Context<'_>) -> Poll<Option<Result<ListedLease>>> {
        match ready!(self.poll_read(task)) {
            Ok(()) => Poll::Ready(self.read.pop_front().map(Ok)),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    /// Reads until there is a lease to return, or nothing more to read.
    fn poll_read(&mut self, task: &mut task::Context<'_>) -> Poll<Result<()>> {
        while self.read.is_empty() {
            match &mut self.rest {
                Rest::Nothing => break,
                Rest::Unread(after) => {
                    let page = read_page(Arc::clone(&self.context), self.selection.clone(), after.take());
                    self.rest = Rest::Reading(Box::pin(page));
                }
                Rest::Reading(page) => {
                    let page = ready!(page.as_mut().poll(task));
                    self.rest = Rest::Nothing;
                    let Page { leases, next } = page?;
                    self.read = leases.into();
                    if next.is_some() {
                        self.rest = Rest::Unread(next);
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

async fn read_page(context: Arc<Context>, selection: Filter, after: Option<Position>) -> Result<Page> {
    context.ensure_open()?;
    let size = if after.is_none() { FIRST_PAGE } else { PAGE_SIZE };
    context.list(&selection, after, size, context.operation_deadline()).await
}

impl Stream for LeaseStream {
    type Item = Result<ListedLease>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_lease(task)
    }
}

impl fmt::Debug for LeaseStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStream").field("selection", &self.selection).finish_non_exhaustive()
    }
}
