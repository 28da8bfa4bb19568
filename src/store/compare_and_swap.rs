//! A store on any place that can compare and swap bytes.
//!
//! Purpose: an author of a store writes a [`Backend`] of four small functions, and not the protocol.
//!
//! Mechanism: a request loads the record, runs [`record::apply`](crate::record::apply), and swaps the new record in if
//! nothing has changed it meanwhile. If the swap fails, the request runs again. Requests of one process for a key that come
//! meanwhile are applied together, by one load and one swap: `store/coalesce.rs`.
//!
//! Invariants: the store counts a lease from the clock of its load, and the holder counts from before that load. So no
//! holder counts on a lease for longer than the store keeps it. Each write has a nonce, so a swap never replaces a record
//! that it has not loaded. A key without a record first gets a blank, which has a nonce, too. So a process that was paused
//! writes no old token, even if the key was deleted meanwhile. A swap whose load is too old is refused.

mod backend;
mod codec;

use std::{cmp, collections::BTreeMap, sync::Arc, time::Duration};

pub use backend::{Backend, Loaded, LoadedKeys, Swap};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::JoinSet,
};

use super::{
    BoxFuture, Capabilities, Store, StoreOptions,
    answers::{Applied, Notification, Page, Snapshot},
    coalesce::{self, Coalescer, Join, Queued, SendTogether, Turn},
    pages::list_page,
    runtime::Home,
};
use crate::{
    record::{
        self, BatchRequest, Filter, KeyRequest, LeaseRefs, Outcome, Position, Record, Request, StoreClock, StoreTime,
    },
    types::{
        acquire_id::HandleId,
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        token::HybridTime,
        ttl::millis,
    },
};

/// How old a load may be when its swap arrives. An idle record is kept for much longer.
const MAX_AGE: Duration = Duration::from_secs(10);

/// For how long a blank is kept: longer than a load may be old.
const BLANK_RETENTION: Duration = Duration::from_secs(60);

/// How many keys of a batch are changed at the same time.
const MAX_CONCURRENT: usize = 64;

/// The longest pause before requests whose swap has failed run again, in milliseconds.
const MAX_PAUSE: u64 = 50;

/// How long after its deadline a call is given up if the home is not driven. The error of the backend comes first.
const MARGIN: Duration = Duration::from_millis(500);

/// A store on a [`Backend`]. A clone shares it.
#[derive(Debug)]
pub struct CompareAndSwap<B>(Arc<Shared<B>>);

#[derive(Debug)]
struct Shared<B> {
    backend: B,
    retention: Duration,
    coalescer: Coalescer<KeyRequest>,
    home: Arc<Home>,
}

impl<B> Clone for CompareAndSwap<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> CompareAndSwap<B> {
    /// Makes a store that keeps idle records for `retention`, which is at least 11 seconds.
    #[must_use]
    pub fn new(backend: B, retention: Duration) -> Self {
        Self::at(Home::here(), backend, retention)
    }

    fn at(home: Arc<Home>, backend: B, retention: Duration) -> Self {
        // A record must outlive each swap that was loaded before.
        let retention = retention.max(MAX_AGE.saturating_add(Duration::from_secs(1)));
        Self(Arc::new(Shared { backend, retention, coalescer: Coalescer::default(), home }))
    }

    /// Checks that the bytes of a key are a record, or a blank, that this version of the crate reads. For tools that inspect a
    /// backend.
    ///
    /// # Errors
    ///
    /// - [`Error::Corrupt`]: they are not a record. Requests for the key fail: delete it, or move it elsewhere.
    /// - [`Error::Invalid`]: a newer version of this crate wrote the record: upgrade this one.
    pub fn check_bytes(key: &Key, bytes: &[u8]) -> Result<()> {
        codec::decode(key, bytes).map(drop)
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Runs `work` on the home: what reads a connection runs where the connection was opened, and the runtime that calls may not
    /// be driven afterwards. `work` ends before the deadline if the home is driven.
    fn run<T: Send + 'static, W>(&self, deadline: Deadline, work: impl FnOnce(Self) -> W) -> BoxFuture<Result<T>>
    where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let (home, work) = (Arc::clone(&self.0.home), work(self.clone()));
        Box::pin(async move {
            let done = deadline.later_by(MARGIN).wait_for(home.run(work)).await;
            done.unwrap_or_else(|| {
                Err(Error::unavailable(
                    "the store has not answered: if it was made in a runtime of your own, drive that one, and retry",
                ))
            })
        })
    }

    /// Loads the bytes of a key, and the record in them.
    async fn load(&self, key: &Key, deadline: Deadline) -> Result<(Loaded, Option<Record>)> {
        let loaded = self.0.backend.load(key, deadline).await?;
        let record = loaded.bytes.as_deref().map(|bytes| codec::decode(key, bytes)).transpose()?;
        Ok((loaded, record.flatten()))
    }

    /// Sends these requests of a key, and answers each. Returns the turn, unless it has passed on.
    async fn send(self, turn: Turn<Shared<B>>, mut requests: Vec<Queued<KeyRequest>>) -> Option<Turn<Shared<B>>> {
        let (key, mut turn, mut longest) = (turn.key().clone(), Some(turn), 1);
        loop {
            match self.attempt(&key, &mut turn, &mut requests).await {
                Ok(true) => {}
                Ok(false) => {
                    let pause = Duration::from_millis(fastrand::u64(0..=longest));
                    longest = cmp::min(longest.saturating_mul(2), MAX_PAUSE);
                    self.clock().sleep_until(self.clock().now().after(pause)).await;
                }
                Err(error) => {
                    coalesce::fail(requests, error);
                    return turn;
                }
            }
            if requests.is_empty() {
                return turn;
            }
            if let Some(turn) = &turn {
                turn.take_more(&mut requests);
            }
        }
    }

    /// Applies requests by one load and one swap, and answers those that were applied. The others stay: all, if the key had no
    /// value and has a blank now. Returns `false` if another process has changed the key between load and swap.
    async fn attempt(
        &self,
        key: &Key,
        turn: &mut Option<Turn<Shared<B>>>,
        requests: &mut Vec<Queued<KeyRequest>>,
    ) -> Result<bool> {
        let Some(deadline) = coalesce::prepare(key, requests) else { return Ok(true) };
        let sent = self.clock().now();
        let (loaded, before) = coalesce::wait_for(turn, self.load(key, deadline)).await?;
        // Without those whose callers have given up meanwhile.
        let Some(deadline) = coalesce::prepare(key, requests) else { return Ok(true) };
        let at = store_clock(loaded.now);
        let all = requests.iter().map(|queued| &queued.request);
        let (after, outcomes) = record::apply_in_turn(before.as_ref(), at, all);
        let changed = before != after;
        // An earlier send may have made the change without a confirmation, and a load does not say whether the replicas have
        // it. So what the caller believes is confirmed by a write, also if it changes nothing.
        let confirms = outcomes.iter().any(Outcome::is_believed);
        if let Some(after) = after.filter(|_| changed || confirms) {
            let is_blank = loaded.bytes.is_none();
            let swap = self.swap(key, loaded, &after)?;
            let is_swapped = coalesce::wait_for(turn, self.0.backend.swap(swap, deadline)).await?;
            if is_blank || !is_swapped {
                return Ok(is_swapped);
            }
        }
        for (queued, outcome) in requests.drain(..outcomes.len()).zip(outcomes) {
            queued.answer(Ok(Applied { outcome, at: Some(at), changed, sent: Some(sent) }));
        }
        Ok(true)
    }

    /// The swap of what was loaded to this record, or of nothing to a blank: after a deletion the key has no value again, so
    /// that cannot be compared. A blank has a nonce.
    fn swap(&self, key: &Key, Loaded { bytes, now }: Loaded, after: &Record) -> Result<Swap> {
        let after = bytes.as_ref().map(|_| after);
        let keep_for = |after: &Record| after.expires_at.since(store_clock(now).now).saturating_add(self.0.retention);
        Ok(Swap {
            key: key.clone(),
            bytes: codec::encode(after)?,
            loaded: bytes,
            now,
            max_age: MAX_AGE,
            keep_for: after.map_or(BLANK_RETENTION, keep_for),
            publish: after.into_iter().flat_map(codec::messages).map(|(to, message)| (to.handle, message)).collect(),
        })
    }
}

/// All records that can be read. A value that is not a record is left out.
fn decode_all(LoadedKeys { values, now }: LoadedKeys) -> (BTreeMap<Key, Record>, StoreClock) {
    let records = values.into_iter().filter_map(|(key, bytes)| {
        let key: Key = key.parse().ok()?;
        let record = codec::decode(&key, &bytes).ok()??;
        Some((key, record))
    });
    (records.collect(), store_clock(now))
}

/// The store's clocks at this time. The count of the hybrid clock is that of microseconds, so the clock itself moves it on.
fn store_clock(now: Duration) -> StoreClock {
    let hlc = HybridTime { seconds: now.as_secs(), ordinal: now.subsec_micros().into() };
    StoreClock { now: StoreTime::default().after(millis(now)), hlc }
}

impl<B: Backend> SendTogether for Shared<B> {
    type Request = KeyRequest;

    /// The first attempt of a refresh has a second.
    const PATIENCE: Duration = Duration::from_millis(100);

    fn coalescer(&self) -> &Coalescer<KeyRequest> {
        &self.coalescer
    }

    fn home(&self) -> &Home {
        &self.home
    }

    fn join(_others: &[Queued<KeyRequest>], _request: &KeyRequest) -> Join {
        Join::Together
    }

    fn send(self: Arc<Self>, turn: Turn<Self>, requests: Vec<Queued<KeyRequest>>) -> BoxFuture<Option<Turn<Self>>> {
        Box::pin(CompareAndSwap(self).send(turn, requests))
    }
}

impl<B: Backend> Store for CompareAndSwap<B> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { change_streams: false, ..self.0.backend.capabilities() }
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.run(deadline, |store| async move { store.0.backend.prepare(deadline).await })
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(async move { coalesce::apply(&store.0, &key, KeyRequest::Single(request), deadline).await })
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (leases, batch) = (leases.clone(), batch.clone());
        self.run(deadline, |store| async move {
            let is_several = leases.len() > 1;
            let mut leases = leases.into_iter();
            let (mut running, mut all, mut failed) = (JoinSet::new(), true, None);
            loop {
                while running.len() < MAX_CONCURRENT
                    && let Some((key, tokens)) = leases.next()
                {
                    let (store, request) = (store.clone(), KeyRequest::Batch(tokens, batch.clone()));
                    running.spawn(async move { coalesce::apply(&store.0, &key, request, deadline).await });
                }
                let Some(applied) = running.join_next().await else { break };
                match applied {
                    Ok(Ok(Applied { outcome, .. })) => all &= outcome != Outcome::Absent,
                    // Only the request of this key alone reports a record that cannot be read.
                    Ok(Err(Error::Corrupt { .. } | Error::Invalid { .. })) if is_several => all = false,
                    Ok(Err(error)) => failed = Some(error),
                    Err(ended) => failed = Some(Error::unavailable("a request was stopped: retry").caused_by(ended)),
                }
            }
            failed.map_or(Ok(all), Err)
        })
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let key = key.clone();
        self.run(deadline, |store| async move {
            let (loaded, record) = store.load(&key, deadline).await?;
            Ok(record.map(|record| Snapshot { record: Box::new(record), at: store_clock(loaded.now) }))
        })
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.run(deadline, |store| async move { Ok(store_clock(store.0.backend.now(deadline).await?).now) })
    }

    /// Returns all leases that follow the position: each page loads all values.
    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        _page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let (store, filter) = (self.clone(), filter.clone());
        Box::pin(async move {
            let loading = store.run(deadline, |store| async move { store.0.backend.list(deadline).await });
            // Not on the home, because it may take long.
            let (records, at) = decode_all(loading.await?);
            Ok(list_page(records.iter(), at.now, &filter, after.as_ref(), u32::MAX))
        })
    }

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        let (store, home) = (self.clone(), Arc::clone(&self.0.home));
        let listening = async move {
            let (sender, mut messages) = mpsc::unbounded_channel();
            let mut listening = store.0.backend.listen(handle, sender);
            loop {
                let message: Vec<u8> = tokio::select! {
                    biased;
                    () = notifications.closed() => return Ok(()),
                    Some(message) = messages.recv() => message,
                    ended = &mut listening => return ended,
                };
                let notification = if message.is_empty() {
                    // A change whose load is later than this one is published after it.
                    let now = store.0.backend.now(Deadline::after(store.clock(), MAX_AGE)).await?;
                    Some(Notification::Started { since: store_clock(now).hlc.max(since) })
                } else {
                    codec::notification(&message)
                };
                if let Some(notification) = notification {
                    drop(notifications.send(notification));
                }
            }
        };
        Box::pin(async move { home.run(listening).await })
    }

    fn sibling(&self, options: &StoreOptions) -> Result<Option<Arc<dyn Store>>> {
        let sibling = self.0.backend.sibling(options)?;
        let at =
            |backend| -> Arc<dyn Store> { Arc::new(Self::at(Arc::clone(&self.0.home), backend, options.retention)) };
        Ok(sibling.map(at))
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.0.backend.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.0.backend.clock()
    }

    fn retention(&self) -> Duration {
        self.0.retention
    }
}
