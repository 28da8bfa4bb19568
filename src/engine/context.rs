//! What each request of a handle needs: the store, the settings, the clock, the tasks and the shutdown.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    engine::{confirm::ProvenStore, retry, settings::Settings, siblings::Siblings},
    record::{Filter, ListedLease, Position},
    store::{
        answers::{Page, Snapshot},
        runtime::{self, Home},
    },
    types::{
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        instant::Instant,
        key::Key,
    },
};

/// How many leases a page has. To fill one, MongoDB reads 4 MB of records at a time, which are some thousands.
pub(crate) const PAGE_SIZE: u32 = 2_000;

/// What each request of a handle needs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: ProvenStore,
    pub(crate) settings: Settings,
    /// When the handle was made.
    pub(crate) since: Instant,
    /// Cancelled when the handle is shut down.
    pub(crate) closing: CancellationToken,
    /// The tasks of this handle: acquires, the keeper, ends of leases and their batches, the listener and checks for a loss.
    pub(crate) tasks: TaskTracker,
    /// When all tasks must have ended. Set by the shutdown.
    end: OnceLock<Instant>,
    /// The runtime of the tasks.
    pub(crate) home: Arc<Home>,
    /// What the handle shares with its siblings.
    pub(crate) siblings: Arc<Siblings>,
}

impl Context {
    pub(crate) fn new(store: ProvenStore, settings: Settings, home: Arc<Home>, siblings: Arc<Siblings>) -> Arc<Self> {
        let since = store.clock().now();
        Arc::new(Self {
            store,
            settings,
            since,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            end: OnceLock::new(),
            home,
            siblings,
        })
    }

    pub(crate) fn clock(&self) -> Clock {
        self.store.clock()
    }

    /// Starts a task of this handle.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_on(task, self.home.runtime())
    }

    /// The deadline of an operation that begins now.
    pub(crate) fn operation_deadline(&self) -> Deadline {
        let deadline = Deadline::after(self.clock(), self.settings.operation_timeout);
        self.end.get().map_or(deadline, |end| deadline.or_at(*end))
    }

    /// The deadline of a request that is sent once.
    pub(crate) fn attempt_deadline(&self) -> Deadline {
        self.operation_deadline().or_after(self.settings.attempt)
    }

    /// Sets, once, when all tasks must have ended, cancels `closing`, and returns the deadline.
    pub(crate) fn close(&self) -> Deadline {
        let end = *self.end.get_or_init(|| self.operation_deadline().instant());
        self.closing.cancel();
        self.tasks.close();
        Deadline::at(self.clock(), end)
    }

    /// Checks the store before the first request.
    pub(crate) async fn prepare(&self, deadline: Deadline) -> Result<()> {
        let is_prepared = &self.siblings.is_prepared;
        if !is_prepared.load(Ordering::Acquire) {
            self.store.prepare(deadline).await?;
            is_prepared.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Checks the store and sends a request, and retries both until the outcome is definite.
    pub(crate) async fn request<T, F>(&self, until: Deadline, send: impl Fn(Deadline) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let send = &send;
        retry::until_definite(until, self.settings.attempt, |deadline| async move {
            self.prepare(deadline).await?;
            send(deadline).await
        })
        .await
    }

    /// Reads the record of a key.
    pub(crate) async fn read_record(&self, key: &Key, until: Deadline) -> Result<Option<Snapshot>> {
        self.request(until, |deadline| self.store.read(key, deadline)).await
    }

    /// Reads a page of at most `most` leases that match the filter and follow the position.
    pub(crate) async fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        until: Deadline,
    ) -> Result<Page> {
        self.request(until, |deadline| self.store.list(selection, after.clone(), most, deadline)).await
    }

    /// Lists all wanted leases, in the order of their keys. `until`: the end of the next page.
    pub(crate) async fn list_all(&self, selection: &Filter, until: impl Fn() -> Deadline) -> Result<Vec<ListedLease>> {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = self.list(selection, after, PAGE_SIZE, until()).await?;
            listed.extend(page.leases);
            after = page.next;
            if after.is_none() {
                return Ok(listed);
            }
        }
    }

    /// Waits for the next attempt of a call that was refused because its key is held.
    pub(crate) async fn wait_to_retry(&self, delay: Duration) -> Result<()> {
        debug!(?delay, "held: retrying after a delay");
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(shut_down_error()),
            () = self.clock().sleep_until(self.clock().now().after(delay)) => Ok(()),
        }
    }

    /// Refuses a call after the shutdown, and a call outside of a runtime, which would panic half-way.
    pub(crate) fn ensure_open(&self) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(shut_down_error());
        }
        runtime::current().map(drop)
    }
}

/// The error of a call after the shutdown.
pub(crate) fn shut_down_error() -> Error {
    Error::invalid("this handle was shut down: make a new one")
}
