//! The contract of a backend: a place that keeps bytes under keys, and can swap them.

use std::{fmt, time::Duration};

use tokio::sync::mpsc::UnboundedSender;

use crate::{
    store::{BoxFuture, Capabilities, StoreOptions},
    types::{
        acquire_id::HandleId,
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
    },
};

/// A place that keeps bytes under keys. [`CompareAndSwap`](super::CompareAndSwap) makes a store of it.
///
/// Each call must answer before its deadline. Its errors are those of a store: `Unavailable` if the call may have taken
/// effect or not, `Invalid` if a retry returns the same.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Checks that the backend can keep its promises, and makes it ready. Default: nothing.
    fn prepare(&self, _deadline: Deadline) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Loads the bytes of a key, linearizably, and then reads the clock.
    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>>;

    /// Stores bytes under a key, in one step, if the key still has the loaded bytes and the loaded time is not too old.
    /// Returns whether it did. If it did, that is durable.
    fn swap(&self, swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>>;

    /// Loads all keys and their bytes, in any order, and then reads the clock. Each is as it was at some time between
    /// the call and its answer.
    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>>;

    /// Reads the clock, as a load does. Default: loads a key.
    fn now(&self, deadline: Deadline) -> BoxFuture<Result<Duration>> {
        match "clock".parse() {
            Ok(key) => {
                let loading = self.load(&key, deadline);
                Box::pin(async { Ok(loading.await?.now) })
            }
            Err(error) => Box::pin(async { Err(error.into()) }),
        }
    }

    /// Sends what swaps [publish](Swap::publish) to this handle, from the first message on, until the receiver is
    /// dropped or the connection fails. An empty message means that each later one is sent. Default: `Invalid`, and
    /// waiters poll.
    fn listen(&self, _handle: HandleId, _messages: UnboundedSender<Vec<u8>>) -> BoxFuture<Result<()>> {
        Box::pin(async { Err(Error::invalid("this backend has no notifications: poll")) })
    }

    /// What a store on the backend can do. Default: no notifications. A change of several keys at once is never among it.
    fn capabilities(&self) -> Capabilities {
        Capabilities { notifications: false, ..Capabilities::ALL }
    }

    /// Returns the backend of a sibling that keeps its records elsewhere, on what this backend has opened. `None`: the
    /// sibling uses this backend. Default: as [`Store::sibling`](crate::store::Store::sibling).
    ///
    /// # Errors
    ///
    /// `Invalid` if an option does not fit the backend.
    fn sibling(&self, options: &StoreOptions) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        options.refuse_place().map(|()| None)
    }

    /// Closes what the backend has opened. Default: nothing.
    fn close(&self, _deadline: Deadline) -> BoxFuture<()> {
        Box::pin(async {})
    }

    /// The clock of the holders' deadlines. Default: [`Clock::Boot`], because holders run on other machines than the
    /// backend.
    fn clock(&self) -> Clock {
        Clock::Boot
    }
}

/// What a backend has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The bytes. `None`: it has none.
    pub bytes: Option<Vec<u8>>,
    /// The backend's clock after that, as the time since the Unix epoch, to the microsecond. Over all keys and over
    /// failures it never goes back, and it moves on between two loads.
    pub now: Duration,
}

/// All keys of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedKeys {
    /// The keys, as texts, and their bytes.
    pub values: Vec<(String, Vec<u8>)>,
    /// The backend's clock after that, as in [`Loaded`].
    pub now: Duration,
}

/// A swap of the bytes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The key.
    pub key: Key,
    /// The bytes that it must have. `None`: it must have none.
    pub loaded: Option<Vec<u8>>,
    /// The bytes that it gets: a record, or a blank before the first record.
    pub bytes: Vec<u8>,
    /// The time of the load.
    pub now: Duration,
    /// How old that time may be. If the backend's clock is more than this after it, the swap is refused: the caller was
    /// paused. A backend whose clock can step back also refuses a time that is later than its clock.
    pub max_age: Duration,
    /// How long the backend keeps the bytes, from now. Then it deletes the key by itself.
    pub keep_for: Duration,
    /// Messages to send to the listeners of these handles if the swap is made, as soon as it is durable. A backend without
    /// notifications ignores them.
    pub publish: Vec<(HandleId, Vec<u8>)>,
}
