//! A `Store` around the real one: records what passes between store and engine, and falsifies it if the run is
//! sabotaged so.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongoseal::{
    Error, Key, LeaseId, Result,
    inspect::StoreTime,
    record::{Acquire, BatchRequest, Filter, KeyFilter, LeaseRefs, Outcome, Position, Request},
    store::{
        Applied, BoxFuture, Capabilities, Clock, Deadline, FollowedState, HandleId, HybridTime, Notification, Page,
        Snapshot, Store,
    },
};
use tokio::{
    sync::{
        mpsc::{Sender, UnboundedSender, unbounded_channel},
        watch,
    },
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{OUTSTAYED_KEYS, say, ticker::SCHEDULE};
use crate::{
    sabotage::Sabotage,
    words::{Event, Micros, Queued, now},
};

/// The entry of the metadata that tells which acquire of the worker a request belongs to.
pub(crate) const NUMBER: &str = "number";

#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) worker: u32,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) notes: Arc<Notes>,
}

/// What was seen of the acquires under way.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    asked: Mutex<HashMap<u64, Asked>>,
    /// Whose lease it is.
    numbers: Mutex<HashMap<LeaseId, u64>>,
    /// Answers that come when nobody waits for them any more.
    late: Mutex<HashMap<LeaseId, Late>>,
    /// Held by the request that is under way, if all wait for one another.
    fate: tokio::sync::Mutex<()>,
    /// The acquires whose first write was sent.
    written: Mutex<HashSet<LeaseId>>,
}

type Late = watch::Receiver<Option<std::result::Result<Applied, ()>>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    lease: Option<LeaseId>,
    pub(crate) attempts: u32,
    pub(crate) doubts: u32,
    pub(crate) queued: Option<Queued>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    /// What was seen of an acquire that has ended. Of one that was not granted nothing more is to be seen.
    pub(crate) fn take(&self, number: u64, granted: bool) -> Asked {
        let asked = open(&self.asked).remove(&number).unwrap_or_default();
        if let Some(lease) = asked.lease.filter(|_| !granted) {
            self.forget(lease);
        }
        asked
    }

    /// Forgets a lease that has ended: all that grows here is the history of the runner.
    pub(crate) fn forget(&self, lease: LeaseId) {
        open(&self.numbers).remove(&lease);
        open(&self.written).remove(&lease);
    }

    fn number(&self, lease: LeaseId) -> Option<u64> {
        open(&self.numbers).get(&lease).copied()
    }

    fn asks(&self, request: &Request) {
        let Request::Acquire(acquire) = request else { return };
        let number = acquire.terms.metadata.get(NUMBER).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            open(&self.numbers).insert(acquire.terms.lease, number);
            let mut asked = open(&self.asked);
            let asked = asked.entry(number).or_default();
            (asked.lease, asked.attempts) = (Some(acquire.terms.lease), asked.attempts + 1);
        }
    }

    fn answered(&self, request: &Request, sent: Micros, answer: &Result<Applied>) {
        let Request::Acquire(acquire) = request else { return };
        let Some(number) = self.number(acquire.terms.lease) else { return };
        let mut asked = open(&self.asked);
        let Some(asked) = asked.get_mut(&number) else { return };
        match answer {
            Err(Error::Unavailable { .. }) => asked.doubts += 1,
            Ok(Applied { outcome: Outcome::Queued { .. }, .. }) => {
                let since = asked.queued.as_ref().map_or_else(now, |queued| queued.since);
                asked.queued = Some(Queued { since, sent });
            }
            _ => {}
        }
    }
}

impl Observed {
    fn refreshed(&self, request: &Request, sent: Micros, answer: &Result<Applied>) {
        let Request::Refresh(refresh) = request else { return };
        let Ok(Applied { outcome: Outcome::Refreshed { .. }, .. }) = answer else { return };
        if let Some(lease) = self.notes.number(refresh.lease) {
            say(&Event::Refreshed { worker: self.worker, lease, begin: sent, end: now() });
        }
    }

    /// Lets the engine give up an attempt whose answer is late, and gives it that answer when it asks
    /// again: so it counts its deadline from a request that was never sent.
    async fn late_reply(self, key: Key, acquire: &Acquire, deadline: Deadline) -> Result<Applied> {
        let (lease, request) = (acquire.terms.lease, Request::Acquire(acquire.clone()));
        let late = || Error::unavailable("the answer is late");
        let under_way = open(&self.notes.late).get(&lease).cloned();
        let mut answer = if let Some(answer) = under_way {
            answer
        } else {
            let asked = self.store.apply(&key, request, Deadline::after(self.store.clock(), Duration::from_secs(20)));
            let (give, answer) = watch::channel(None);
            tokio::spawn(async move { give.send_replace(Some(asked.await.map_err(|_| ()))) });
            open(&self.notes.late).insert(lease, answer.clone());
            answer
        };
        let came =
            timeout(deadline.remaining().min(Duration::from_millis(250)), answer.wait_for(Option::is_some)).await;
        let Ok(Ok(came)) = came.map(|came| came.map(|came| came.clone())) else { return Err(late()) };
        open(&self.notes.late).remove(&lease);
        came.and_then(Result::ok).ok_or_else(late)
    }

    /// Waits for the answer to the request before, of whatever key.
    async fn share_fate<T>(self, answer: BoxFuture<Result<T>>, deadline: Deadline) -> Result<T> {
        let late = |_| Error::unavailable("the request before was not answered");
        let _alone = timeout(deadline.remaining(), self.notes.fate.lock()).await.map_err(late)?;
        answer.await
    }

    /// Sends an acquire again while its first write is still under way, and tells from a read whether it was
    /// granted: so the engine counts a deadline from the last request, whichever was executed. It does so for the
    /// keys that show it, in every other worker: the others are granted a key as soon as it is free.
    async fn grant_by_read(self, key: Key, acquire: &Acquire, deadline: Deadline) -> Result<Applied> {
        let (lease, request) = (acquire.terms.lease, Request::Acquire(acquire.clone()));
        if !OUTSTAYED_KEYS.contains(&key.as_str()) || self.worker.is_multiple_of(2) {
            return self.store.apply(&key, request, deadline).await;
        }
        let is_first = open(&self.notes.written).insert(lease);
        let longest = if is_first { Duration::from_secs(20) } else { Duration::from_millis(50) };
        let half = deadline.remaining() / 2;
        let wait = Duration::from_millis(500).min(half);
        let look_at = Instant::now() + wait;
        let writing = tokio::spawn(self.store.apply(&key, request, Deadline::after(self.store.clock(), longest)));
        if let Ok(Ok(answer)) = timeout(wait, writing).await
            && !matches!(answer, Err(Error::Unavailable { .. }))
        {
            return answer;
        }
        sleep_until(look_at).await;
        if let Ok(Some(Snapshot { record, at })) =
            self.store.read(&key, Deadline::after(self.store.clock(), half)).await
        {
            let holder = record.holders.iter().find(|holder| holder.terms.lease == lease);
            if let Some(holder) = holder.filter(|holder| holder.expires_at > at.now) {
                let outcome = Outcome::Granted { token: holder.version, not_after: holder.not_after, value: None };
                return Ok(Applied { outcome, at: Some(at), changed: false, sent: None });
            }
        }
        Err(Error::unavailable("the lease is not there yet"))
    }

    /// Gives up after a sixth of the ttl.
    async fn cut_short<T>(ttl: u64, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let cut = Duration::from_millis(ttl) / 6;
        timeout(cut, answer).await.unwrap_or_else(|_| Err(Error::unavailable("a sixth of the ttl is over")))
    }
}

impl Store for Observed {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (this, key) = (self.clone(), key.clone());
        Box::pin(async move {
            this.notes.asks(&request);
            let sent = now();
            let real = || this.store.apply(&key, request.clone(), deadline);
            let answer = match (this.sabotage, &request) {
                (Some(Sabotage::LateReply), Request::Acquire(acquire)) => {
                    this.clone().late_reply(key.clone(), acquire, deadline).await
                }
                (Some(Sabotage::GrantByRead), Request::Acquire(acquire)) => {
                    this.clone().grant_by_read(key.clone(), acquire, deadline).await
                }
                // What changed nothing is taken for a success.
                (Some(Sabotage::NoOpSuccess), Request::Acquire(_)) => {
                    real().await.map(|applied| match applied.outcome {
                        Outcome::Refused { holder } => {
                            let (token, not_after) = (holder.version, holder.not_after);
                            Applied { outcome: Outcome::Granted { token, not_after, value: None }, ..applied }
                        }
                        _ => applied,
                    })
                }
                (Some(Sabotage::SharedFate), _) | (Some(Sabotage::SharedRefreshes), Request::Refresh(_)) => {
                    this.clone().share_fate(real(), deadline).await
                }
                (Some(Sabotage::ShortAttempts), Request::Refresh(refresh)) => {
                    Self::cut_short(refresh.ttl, real()).await
                }
                (Some(Sabotage::Impatient), Request::Acquire(Acquire { wait: Some(_), .. })) => match real().await {
                    Err(Error::Unavailable { .. }) => Err(Error::invalid("a request of a waiter was not answered")),
                    answer => answer,
                },
                (Some(Sabotage::EarlyPut), Request::PutValue(_)) => {
                    tokio::spawn(real());
                    Ok(Applied { outcome: Outcome::ValuePut, at: None, changed: true, sent: None })
                }
                _ => real().await,
            };
            this.notes.answered(&request, sent, &answer);
            this.refreshed(&request, sent, &answer);
            answer
        })
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.store.prepare(deadline)
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let kept = self.store.apply_batch(leases, joint, deadline);
        match joint {
            BatchRequest::Keep { .. } if self.sabotage == Some(Sabotage::UnsentBatch) => Box::pin(async { Ok(true) }),
            BatchRequest::Keep { .. } if self.sabotage == Some(Sabotage::SharedRefreshes) => {
                Box::pin(self.clone().share_fate(kept, deadline))
            }
            BatchRequest::Keep { ttl } if self.sabotage == Some(Sabotage::ShortAttempts) => {
                Box::pin(Self::cut_short(*ttl, kept))
            }
            _ => kept,
        }
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let read = self.store.read(key, deadline);
        if self.sabotage != Some(Sabotage::OnceUnchecked) || !key.as_str().starts_with(SCHEDULE) {
            return read;
        }
        Box::pin(async move {
            let mut read = read.await?;
            // A runner reads the last completed tick after its grant, when it holds the key.
            if let Some(Snapshot { record, .. }) = read.as_mut().filter(|read| !read.record.holders.is_empty()) {
                record.done = None;
            }
            Ok(read)
        })
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.store.now(deadline)
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        self.store.list(selection, after, most, deadline)
    }

    fn handle_id(&self) -> HandleId {
        self.store.handle_id()
    }

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        tell: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        if self.sabotage != Some(Sabotage::UntoldHold) {
            return self.store.notifications(handle, since, tell);
        }
        let (all, mut told) = unbounded_channel();
        let watching = self.store.notifications(handle, since, all);
        Box::pin(async move {
            let telling = async {
                while let Some(notification) = told.recv().await {
                    if !matches!(notification, Notification::Recheck { .. }) {
                        tell.send(notification).ok();
                    }
                }
                pending().await
            };
            tokio::select! {
                ended = watching => ended,
                ended = telling => ended,
            }
        })
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, tell: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        self.store.follow(filter, known, tell)
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        let (closed, is_slow) = (self.store.close(deadline), self.sabotage == Some(Sabotage::SlowClose));
        Box::pin(async move {
            if is_slow {
                sleep(Duration::from_secs(2)).await;
            }
            closed.await;
        })
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn retention(&self) -> Duration {
        self.store.retention()
    }

    fn connections(&self) -> u32 {
        self.store.connections()
    }

    fn part_size(&self) -> usize {
        self.store.part_size()
    }
}
