//! A backend that acts between a load and its swap.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{
    Clock, Deadline, HandleId, Key, Mongoseal, Result,
    store::{Backend, BoxFuture, Capabilities, CompareAndSwap, Loaded, LoadedKeys, Swap},
};
use mongoseal_redis::RedisBackend;
use tokio::sync::mpsc::UnboundedSender;

type Act = Box<dyn FnOnce() + Send>;

/// The answers of swaps.
pub(crate) type Swaps = Arc<Mutex<Vec<bool>>>;

/// A backend that acts once, after one of its loads, and notes the answers of its swaps.
pub(crate) struct AfterLoad {
    backend: RedisBackend,
    /// After how many more loads it acts, and what it does.
    act: Arc<Mutex<Option<(usize, Act)>>>,
    swaps: Swaps,
}

impl AfterLoad {
    /// A handle on a backend that does this after so many loads, and the answers of its swaps.
    pub(crate) fn seal(backend: RedisBackend, loads: usize, act: impl FnOnce() + Send + 'static) -> (Mongoseal, Swaps) {
        let swaps = Swaps::default();
        let backend =
            Self { backend, act: Arc::new(Mutex::new(Some((loads, Box::new(act))))), swaps: Arc::clone(&swaps) };
        (Mongoseal::builder().on_store(Arc::new(CompareAndSwap::new(backend, crate::RETENTION))).unwrap(), swaps)
    }
}

impl fmt::Debug for AfterLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

impl Backend for AfterLoad {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.backend.prepare(deadline)
    }

    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        let (loading, act) = (self.backend.load(key, deadline), Arc::clone(&self.act));
        Box::pin(async move {
            let loaded = loading.await;
            let mut waits = act.lock().unwrap();
            let more = waits.as_mut().map(|(loads, _)| {
                *loads -= 1;
                *loads
            });
            let due = waits.take_if(|_| more == Some(0));
            drop(waits);
            if let Some((_, act)) = due {
                act();
            }
            loaded
        })
    }

    fn swap(&self, swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (swapping, swaps) = (self.backend.swap(swap, deadline), Arc::clone(&self.swaps));
        Box::pin(async move {
            let swapped = swapping.await?;
            swaps.lock().unwrap().push(swapped);
            Ok(swapped)
        })
    }

    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.backend.list(deadline)
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<Duration>> {
        self.backend.now(deadline)
    }

    fn listen(&self, handle: HandleId, messages: UnboundedSender<Vec<u8>>) -> BoxFuture<Result<()>> {
        self.backend.listen(handle, messages)
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.backend.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.backend.clock()
    }
}
