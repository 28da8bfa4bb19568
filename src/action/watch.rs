//! The verbs `watch` and `watch_prefix`: what happens to a key, or to many keys.

mod prefix_watcher;
mod task;
mod watcher;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
};

use futures_core::Stream;
use prefix_watcher::PrefixWatcher;
use tokio::sync::{mpsc::Receiver, oneshot};
pub(crate) use watcher::EventDiff;
use watcher::Watcher;

use crate::{
    Deadline, Error, Event, IntoName, Key, Mongoseal, Result,
    engine::context::{Context, shut_down_error},
    record::{Filter, events},
};

impl Mongoseal {
    /// Watches a key: returns what happens to its leases, in order.
    ///
    /// First come the holders, as [`Holds`](crate::EventKind::Holds). Then comes each event after this call has
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
    /// use mongoseal::{EventKind, Mongoseal};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let token = lease.token();
    ///
    /// let mut events = seal.watch("reports/nightly").await?;
    /// lease.release().await?;
    ///
    /// let first = events.next().await.expect("it goes on")?;
    /// assert!(matches!(first.kind, EventKind::Holds { .. }));
    /// let second = events.next().await.expect("it goes on")?;
    /// assert_eq!((second.token, second.kind), (token, EventKind::Released));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch<K>(&self, key: K) -> Result<EventStream>
    where
        K: IntoName<Key>,
    {
        let key = key.into_name()?;
        let diff = EventDiff { first: events::present, then: events::changes };
        Ok(EventStream { events: WatchEvents::begin(&self.shared.context, key, diff).await? })
    }

    /// Watches all keys that begin with this text, byte for byte: returns what happens to their leases. No character is
    /// special. An empty text watches all keys.
    ///
    /// First come the holders of all these keys, as [`Holds`](crate::EventKind::Holds), in the order of their tokens.
    /// Then comes each event after this call has returned. Each event has its key. See [`EventStream`].
    ///
    /// A document that is not a record has no events, as in a list.
    ///
    /// # Cost
    ///
    /// The watch has a change stream of its own, which the server filters by the prefix. The stream has each change of
    /// a matching record, so also each refresh. At the beginning, and after an interruption that cannot be resumed, the
    /// server reads the records of all matching keys. The watch keeps the records that have holders in memory.
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
    /// use mongoseal::{EventKind, Mongoseal};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let mut events = seal.watch_prefix("reports/").await?;
    /// let lease = seal.acquire("reports/nightly").await?;
    ///
    /// let event = events.next().await.expect("it goes on")?;
    /// assert_eq!((event.key.as_str(), event.token), ("reports/nightly", lease.token()));
    /// assert!(matches!(event.kind, EventKind::Granted { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch_prefix(&self, prefix: impl Into<String>) -> Result<EventStream> {
        let prefix = prefix.into();
        Filter::ensure_prefix(&prefix)?;
        Ok(EventStream { events: WatchEvents::begin_prefix(&self.shared.context, prefix).await? })
    }
}

/// The events of a key, or of the keys with a prefix, in order.
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
/// While the store cannot be reached, nothing is reported. An interrupted change stream resumes where it was. If it
/// cannot, for example because the oplog has moved on or the collection was dropped, the record is read again and
/// compared with its last state. Then a lease that was granted and ended in between is left out. A lease that ended
/// after its expiry would have passed is reported as expired. A lease that was transferred and then taken up by another
/// acquire is reported as released. The same holds for a watch that polls.
///
/// If there is no change stream, for example because the user lacks the privilege `changeStream`, the watch polls: at
/// intervals that grow to a second, and when the next holder expires.
///
/// Events wait for a slow reader. On MongoDB, if 4,096 changes of the key are waiting, the watch continues with the
/// record as it is then, as after an interruption. All watches of keys of a handle and its siblings on one runtime share
/// one change stream, which keeps one of the client's connections.
///
/// A watch of a prefix keeps these guarantees for each key. Its events are in the order in which the store made the
/// changes, and an expiry comes before the changes after it. If two keys change within milliseconds, their times can be in
/// the other order. It has a change stream of its own, and does not read it while the reader is slow. If a record was
/// deleted and its key had no holder, the watch has forgotten its tokens: then a copy that is put back is reported as
/// granted.
#[must_use = "a stream of events does nothing until it is polled"]
pub struct EventStream {
    events: WatchEvents<Event>,
}

impl EventStream {
    /// Waits for the next event. Returns `None` after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the document is no longer a record. [`Error::Invalid`] if the deployment or its privileges
    /// must be changed, or the handle was shut down. An error is the last item.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns the event that this one would have returned.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|task| self.events.poll_next(task)).await
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Option<Result<Event>>> {
        self.events.poll_next(task)
    }
}

/// The events of a watch, until an error.
pub(crate) struct WatchEvents<T> {
    context: Arc<Context>,
    events: Receiver<Result<T>>,
    has_ended: bool,
}

/// What a task of a watch returns: that it has begun, and its events.
type Started<T> = (oneshot::Receiver<Result<()>>, Receiver<Result<T>>);

impl WatchEvents<Event> {
    /// Begins to watch all keys with a prefix.
    async fn begin_prefix(context: &Arc<Context>, prefix: String) -> Result<Self> {
        Self::start(context, |give_up| PrefixWatcher::start(context, prefix, give_up)).await
    }
}

impl<T: Send + 'static> WatchEvents<T> {
    /// Begins to watch a key. `diff` makes the events from its records.
    pub(crate) async fn begin(context: &Arc<Context>, key: Key, diff: EventDiff<T>) -> Result<Self> {
        Self::start(context, |give_up| Watcher::start(context, key, diff, give_up)).await
    }

    /// Starts a task, and waits until its watch has begun.
    async fn start(context: &Arc<Context>, task: impl FnOnce(Deadline) -> Started<T>) -> Result<Self> {
        context.ensure_open()?;
        let give_up = context.operation_deadline();
        let (beginning, events) = task(give_up);
        tokio::select! {
            biased;
            begun = beginning => match begun {
                Ok(begun) => begun?,
                Err(_ended) => return Err(shut_down_error()),
            },
            () = give_up.passed() => {
                return Err(Error::unavailable(
                    "the store did not return the watched records within the operation timeout: check that it can be reached, and retry",
                ));
            }
        }
        Ok(Self { context: Arc::clone(context), events, has_ended: false })
    }

    pub(crate) fn poll_next(&mut self, task: &mut std::task::Context<'_>) -> Poll<Option<Result<T>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(task)).unwrap_or_else(|| {
            Err(if self.context.closing.is_cancelled() {
                shut_down_error()
            } else {
                Error::invalid("the runtime of this watch has ended: watch again on a running runtime")
            })
        });
        self.has_ended = event.is_err();
        Poll::Ready(Some(event))
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
