//! A backend around that of Redis, which breaks it if the run is sabotaged so.

use std::time::{Duration, SystemTime};

use mongoseal::{
    Error, Key, Result,
    store::{Backend, BoxFuture, Capabilities, Clock, Deadline, HandleId, Loaded, LoadedKeys, Swap},
};
use mongoseal_redis::RedisBackend;
use tokio::sync::mpsc::UnboundedSender;

use crate::sabotage::Sabotage;

#[derive(Clone, Debug)]
pub(super) struct Tampered {
    backend: RedisBackend,
    sabotage: Sabotage,
    /// How far the clock of this worker is ahead.
    ahead: Duration,
}

impl Tampered {
    pub(super) fn new(backend: RedisBackend, sabotage: Sabotage, worker: u32) -> Self {
        let ahead = Duration::from_secs(if worker.is_multiple_of(2) { 0 } else { 4 });
        Self { backend, sabotage, ahead }
    }

    /// Whether a sabotage is done here.
    pub(super) fn does(sabotage: Sabotage) -> bool {
        let here = [Sabotage::BlindSwap, Sabotage::ShortKeep, Sabotage::LostSwap, Sabotage::ClientClock];
        here.contains(&sabotage)
    }

    /// The clock of the server, or of the worker.
    fn time(&self, server: Duration) -> Duration {
        if self.sabotage != Sabotage::ClientClock {
            return server;
        }
        let own = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        own + self.ahead
    }

    /// Swaps whatever is there.
    async fn swap_blindly(self, mut swap: Swap, deadline: Deadline) -> Result<bool> {
        loop {
            swap.loaded = self.backend.load(&swap.key, deadline).await?.bytes;
            if self.backend.swap(swap.clone(), deadline).await? {
                return Ok(true);
            }
        }
    }
}

impl Backend for Tampered {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.backend.prepare(deadline)
    }

    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        let (this, loading) = (self.clone(), self.backend.load(key, deadline));
        Box::pin(async move {
            let loaded = loading.await?;
            Ok(Loaded { now: this.time(loaded.now), ..loaded })
        })
    }

    fn swap(&self, swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>> {
        match self.sabotage {
            Sabotage::BlindSwap => Box::pin(self.clone().swap_blindly(swap, deadline)),
            Sabotage::ShortKeep => {
                let keep_for = Duration::from_millis(500);
                self.backend.swap(Swap { keep_for, ..swap }, deadline)
            }
            Sabotage::LostSwap => {
                let swapping = self.backend.swap(swap, deadline);
                Box::pin(async {
                    match swapping.await {
                        Err(Error::Unavailable { .. }) => Ok(true),
                        answer => answer,
                    }
                })
            }
            _ => self.backend.swap(swap, deadline),
        }
    }

    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.backend.list(deadline)
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<Duration>> {
        let (this, reading) = (self.clone(), self.backend.now(deadline));
        Box::pin(async move { Ok(this.time(reading.await?)) })
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
