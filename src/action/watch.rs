//! The verbs `watch` and `watch_prefix`: what happens to a key, or to many keys.

mod poll;
mod watcher;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
pub(crate) use watcher::Watched;
use watcher::Watcher;

use crate::{
    engine::context::{Context, shut_down_error},
    handle::Mongoseal,
    record::{Event, Filter, KeyFilter, Record, StoreTime, events},
    types::{
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
    },
};

impl Mongoseal {
    /// Watches a key: returns what happens to its leases, in order.
    ///
    /// First come the holders, as [`Holds`](crate::inspect::EventKind::Holds). Then comes each event after this call has
    /// returned, with the token that it is about. See [`EventStream`].
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout.
    /// - [`Error::Corrupt`]: the document is not a record.
    /// - [`Error::Invalid`]: the key is not valid, or the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the watch and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Mongoseal, inspect::{EventKind, WatchItem}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    ///
    /// let mut stream = seal.watch("reports/nightly").await?;
    /// lease.release().await?;
    ///
    /// while let Some(item) = stream.next().await {
    ///     match item? {
    ///         WatchItem::Event(event) => {
    ///             println!("{} {:?}", event.token, event.kind);
    ///             if event.kind == EventKind::Released {
    ///                 break;
    ///             }
    ///         }
    ///         WatchItem::Missed { since, until } => println!("events may be missing from {since:?} to {until:?}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch(&self, key: impl IntoName<Key>) -> Result<EventStream> {
        EventStream::begin(&self.handle.context, KeyFilter::Key(key.into_name()?)).await
    }

    /// Watches all keys that begin with this text, byte for byte: returns what happens to their leases. No character is
    /// special. An empty text watches all keys.
    ///
    /// First come the holders of all these keys, as [`Holds`](crate::inspect::EventKind::Holds), in the order of their tokens.
    /// Then comes each event after this call has returned. Each event has its key. See [`EventStream`].
    ///
    /// A document that is not a record has no events, as in a list.
    ///
    /// # Cost
    ///
    /// The watch has a change stream of its own, which the server filters by the prefix. The stream has each change of
    /// a matching record, so also each refresh. At the beginning, and after [`WatchItem::Missed`], the server reads the records of all matching keys. The watch keeps the records that have holders in memory.
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout.
    /// - [`Error::Invalid`]: no key begins with this text, or the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the watch and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Mongoseal, inspect::{EventKind, WatchItem}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let mut stream = seal.watch_prefix("reports/").await?;
    /// let lease = seal.acquire("reports/nightly").await?;
    ///
    /// let item = stream.next().await.expect("it goes on")?;
    /// let WatchItem::Event(event) = item else { panic!("nothing was missed") };
    /// assert_eq!((event.key.as_str(), event.token), ("reports/nightly", lease.token()));
    /// assert!(matches!(event.kind, EventKind::Granted { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch_prefix(&self, prefix: impl Into<String>) -> Result<EventStream> {
        let prefix = prefix.into();
        Filter::ensure_prefix(&prefix)?;
        EventStream::begin(&self.handle.context, KeyFilter::Prefix(prefix)).await
    }
}

/// An item of an [`EventStream`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "nearly all items are events")]
pub enum WatchItem {
    /// Something happened to a lease.
    Event(Event),
    /// Events between these times may be missing. The next events show what is different since then: of each lease that
    /// the stream has reported, how it ended, and each lease that holds now.
    Missed {
        /// The store's time of the last change that the stream has seen.
        since: StoreTime,
        /// The store's time from which on the stream has each change again.
        until: StoreTime,
    },
}

impl WatchItem {
    /// The event. `None` if events are missing.
    #[must_use]
    pub fn into_event(self) -> Option<Event> {
        match self {
            Self::Event(event) => Some(event),
            Self::Missed { .. } => None,
        }
    }
}

/// The events of a key, or of the keys with a prefix, in order. The items of a
/// [`LeaderStream`](crate::election::LeaderStream) are leaders instead.
///
/// It is a [`Stream`]. It ends when it is dropped, when its handle is shut down, or with an error that a retry does not
/// remove; that error is its last item.
///
/// # Guarantees
///
/// If the store reports each change, as the memory store does and MongoDB with its change stream, no grant is left out,
/// however short, and each grant is followed by how it ended. An expiry is reported when it happens, even if no request
/// touches the key. A lease that is refreshed is reported once.
///
/// While the store cannot be reached, nothing is reported. Then the stream goes on where it was, however long that took: a
/// network failure, a failover and a restart of the server leave out nothing.
///
/// If events may be missing, the stream says so with [`WatchItem::Missed`]. Then it reads the records, and reports what is
/// different. That happens if the server no longer has the history, for example because the oplog is shorter than the
/// interruption. A lease that was granted and ended in between is left out. A lease that ended after its expiry would have
/// passed is reported as expired. A lease that was transferred and then taken up by another acquire is reported as released.
///
/// If there is no change stream, for example on Redis or because the user lacks the privilege `changeStream`, the watch
/// polls: at intervals that grow to a second, and when the next holder expires. Between two polls, events may be left out
/// without [`WatchItem::Missed`]. It is reported if a poll has failed.
///
/// Events wait for a slow reader. On MongoDB, if 4,096 changes of the key are waiting, the stream reports
/// [`WatchItem::Missed`] and continues with the record as it is then. All watches of keys of a handle and its siblings
/// share one change stream, which keeps one of the client's connections.
///
/// A watch of a prefix keeps these guarantees for each key. Its events are in the order in which the store made the
/// changes, and an expiry comes before the changes after it. If two keys change within milliseconds, their times can be in
/// the other order. It has a change stream of its own, and does not read it while the reader is slow. If a record was
/// deleted and its key had no holder, the watch has forgotten its tokens: then a copy that is put back is reported as
/// granted.
#[must_use = "a stream of events does nothing until it is polled"]
pub struct EventStream<T = WatchItem> {
    items: Pin<Box<dyn Stream<Item = Result<T>> + Send + Sync>>,
}

impl<T> EventStream<T> {
    /// Starts the task of a watch, and waits until the watch has begun.
    pub(crate) async fn begin(context: &Arc<Context>, filter: KeyFilter) -> Result<Self>
    where
        T: Watched,
    {
        context.ensure_open()?;
        let give_up = context.operation_deadline();
        let mut batches = Watcher::start(context, filter, give_up);
        let Some(first) = give_up.wait_for(batches.recv()).await else {
            return Err(Error::unavailable(
                "the store did not return the watched records within the operation timeout: check that it can be reached, and retry",
            ));
        };
        let mut first = first.unwrap_or_else(|| Err(shut_down_error()))?;
        T::sort(&mut first);
        let later = stream::try_unfold((Arc::clone(context), batches), |(context, mut batches)| async move {
            let items = batches.recv().await.unwrap_or_else(|| {
                Err(if context.closing.is_cancelled() {
                    shut_down_error()
                } else {
                    Error::unavailable("the runtime in which the handle was made has ended: make a new handle")
                })
            });
            Ok::<_, Error>(Some((stream::iter(items?).map(Ok), (context, batches))))
        });
        Ok(Self { items: Box::pin(stream::iter(first).map(Ok).chain(later.try_flatten())) })
    }

    /// Waits for the next item. Returns `None` after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the document of a watched key is no longer a record. [`Error::Invalid`] if the deployment or its
    /// privileges must be changed, or the handle was shut down. An error is the last item.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns the item that this one would have returned.
    pub async fn next(&mut self) -> Option<Result<T>> {
        self.items.next().await
    }
}

impl<T> Stream for EventStream<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Result<T>>> {
        self.items.poll_next_unpin(task)
    }
}

impl<T> fmt::Debug for EventStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl Watched for WatchItem {
    fn first(key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Self> {
        events::present(key, record, at).into_iter().map(Self::Event).collect()
    }

    fn changes(key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Self> {
        events::changes(key, before, after, at).into_iter().map(Self::Event).collect()
    }

    /// The present holders come in the order of their tokens.
    fn sort(first: &mut [Self]) {
        first.sort_by_key(|item| match item {
            Self::Event(event) => Some(event.token),
            Self::Missed { .. } => None,
        });
    }

    fn missed(since: StoreTime, until: StoreTime) -> Option<Self> {
        Some(Self::Missed { since, until })
    }
}
