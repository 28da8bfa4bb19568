//! Watching what happens to a key.

mod watcher;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

use futures_core::Stream;
use tokio::sync::mpsc::Receiver;
pub(crate) use watcher::EventDiff;
use watcher::Watcher;

use crate::{
    Error, Event, IntoName, Key, Mongoseal, Result,
    engine::context::{Context, shut_down},
    record::events,
};

impl Mongoseal {
    /// Watches a key: gives what happens to its leases, one after another.
    ///
    /// First come those who hold the key, as [`Holds`](crate::EventKind::Holds); then whatever happens
    /// after this has returned, each event with the token it is about. See [`EventStream`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where nobody answered within the operation timeout,
    /// [`Error::Corrupt`] where the document is not a record, [`Error::Invalid`] for a key that is none,
    /// or where the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the watch and changes nothing.
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
        let tale = EventDiff { first: events::present, then: events::changes };
        Ok(EventStream { events: KeyEvents::begin(&self.shared.context, key, tale).await? })
    }
}

/// What happens to a key, in order.
///
/// Also a [`Stream`]. It goes on until it is dropped, until its handle is shut down, or until an error
/// that asking again does not mend; that error is the last it gives.
///
/// # Guarantees
///
/// Where the store tells of each change, as the memory store does and MongoDB with its change stream, no
/// grant is left out, however short, and every grant is followed by how it ended. An expiry is told when
/// it comes, also where nobody touches the key. A lease that is kept alive is told once.
///
/// While the store cannot be reached nothing is told. A change stream that was interrupted goes on where
/// it was. Where it cannot, as when the oplog has moved on or the collection was dropped, the record is
/// read again and compared with what it was: then a lease that came and went in between is left out, one
/// that ended after its time would have been over is told as expired, and one that was given on and then
/// taken up by another acquire as released. The same goes for a watch that polls.
///
/// It polls where there is no change stream, as for a user without the privilege `changeStream`: at
/// intervals that grow to a second, and when the time of the next holder is over.
///
/// Events wait for who reads slowly. On MongoDB, if 4,096 changes of the key are waiting, the watch goes on with the record as
/// it is then, as after an interruption. All watches of a handle and its siblings on one runtime share one change stream,
/// which keeps one of the client's connections.
#[must_use = "events are told to who asks for them"]
pub struct EventStream {
    events: KeyEvents<Event>,
}

impl EventStream {
    /// The next event, when it happens; `None` after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where the document has become something else than a record, and
    /// [`Error::Invalid`] where the deployment or its privileges must be changed, or once the handle was
    /// shut down. It is the last that is given.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing: the next call gives the event that this one would have given.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|task| self.events.poll_next(task)).await
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Result<Event>>> {
        self.events.poll_next(task)
    }
}

/// What is told of a key, until an error.
pub(crate) struct KeyEvents<T> {
    context: Arc<Context>,
    tales: Receiver<Result<T>>,
    ended: bool,
}

impl<T: Send + 'static> KeyEvents<T> {
    /// Begins to watch a key, to tell this of it.
    pub(crate) async fn begin(context: &Arc<Context>, key: Key, tale: EventDiff<T>) -> Result<Self> {
        context.ensure_open()?;
        let give_up = context.operation_deadline();
        let (beginning, tales) = Watcher::start(context, key, tale, give_up);
        tokio::select! {
            biased;
            begun = beginning => match begun {
                Ok(begun) => begun?,
                Err(_ended) => return Err(shut_down()),
            },
            () = give_up.passed() => {
                return Err(Error::unavailable(
                    "the store did not say who holds the key within the operation timeout: check that it can be reached, and retry",
                ));
            }
        }
        Ok(Self { context: Arc::clone(context), tales, ended: false })
    }

    pub(crate) fn poll_next(&mut self, task: &mut task::Context<'_>) -> Poll<Option<Result<T>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let told = ready!(self.tales.poll_recv(task)).unwrap_or_else(|| {
            Err(if self.context.closing.is_cancelled() {
                shut_down()
            } else {
                Error::invalid("the runtime that watched has ended: watch on one that goes on")
            })
        });
        self.ended = told.is_err();
        Poll::Ready(Some(told))
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
