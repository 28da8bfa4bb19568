//! A store that does what a test says before, after or instead of what it was asked.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{
    Builder, Error, Key, Lease, Mongoseal, Result,
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Outcome, Position, Request, StoreClock, StoreTime},
    store::{
        Applied, BoxFuture, Clock, Deadline, FollowedState, HandleId, HybridTime, MemoryStore, Notification, Page,
        RecordState, Snapshot, Store,
    },
};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender};

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is done and no answer comes until the time is up.
    Hang,
    /// Nothing is done and an error comes at once.
    Fail,
    /// It is done, and an error comes instead of the answer.
    LoseReply,
    /// It is done, and the answer comes so much later.
    DelayReply(Duration),
    /// It is done so much later.
    Delay(Duration),
    /// Nothing is done, and the answer says that asking again gives the same.
    Refuse,
    /// Nothing is done, and the answer is that of a copy which knows nothing of the lease.
    Stale,
    /// An answer of several parts breaks off before its last part.
    LoseTail,
}

/// What a store is asked.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    Prepare,
    Apply(&'a Request),
    Jointly(&'a LeaseRefs),
    Read,
    Now,
    List,
    Watch,
    Follow,
}

type Script = Box<dyn FnMut(Call<'_>) -> Option<Fault> + Send>;

/// A memory store with a script of faults.
#[derive(Clone)]
pub(crate) struct Faulty {
    pub(crate) records: MemoryStore,
    script: Arc<Mutex<Script>>,
    requests: Arc<Mutex<Vec<Request>>>,
    /// How many connections it says that its requests share.
    pub(crate) connections: u32,
    /// How many leases it wants in a part.
    pub(crate) part_size: usize,
}

impl Faulty {
    pub(crate) fn new() -> Self {
        Self {
            records: MemoryStore::default(),
            script: Arc::new(Mutex::new(Box::new(|_| None))),
            requests: Arc::default(),
            connections: 64,
            part_size: 512,
        }
    }

    /// A store, and a handle on it.
    pub(crate) fn open() -> (Self, Mongoseal) {
        let store = Self::new();
        let seal = store.seal();
        (store, seal)
    }

    /// A store, and the lease of a handle on it.
    pub(crate) async fn held() -> (Self, Lease) {
        let (store, seal) = Self::open();
        let lease = seal.acquire("k").await.unwrap();
        (store, lease)
    }

    /// What goes wrong with each call that follows, by its number from 1.
    pub(crate) fn follow_by(&self, mut fault: impl FnMut(u32) -> Option<Fault> + Send + 'static) {
        let mut calls = 0;
        self.script(move |call| {
            if !matches!(call, Call::Follow) {
                return None;
            }
            calls += 1;
            fault(calls)
        });
    }

    /// What goes wrong from now on.
    pub(crate) fn script(&self, script: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The first so many calls that match meet this fault.
    pub(crate) fn first(&self, times: usize, is_match: impl Fn(Call<'_>) -> bool + Send + 'static, fault: Fault) {
        let mut left = times;
        self.script(move |call| {
            let meets = left > 0 && is_match(call);
            left -= usize::from(meets);
            meets.then_some(fault)
        });
    }

    /// Every request meets this fault.
    pub(crate) fn always(&self, fault: Fault) {
        self.script(move |_| Some(fault));
    }

    /// Nothing goes wrong any more.
    pub(crate) fn heal(&self) {
        self.script(|_| None);
    }

    fn fault(&self, call: Call<'_>) -> Option<Fault> {
        (*self.script.lock().unwrap())(call)
    }

    /// The requests that were sent so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn seal(&self) -> Mongoseal {
        self.build(Mongoseal::builder())
    }

    pub(crate) fn build(&self, builder: Builder) -> Mongoseal {
        builder.on_store(Arc::new(self.clone())).unwrap()
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn away() -> Error {
    Error::unavailable("the store is away")
}

/// Answers one call as the script says. The work runs on a task of its own, as a driver's
/// request does. So the store does it also if the caller has given up.
fn meet<T: Send + 'static>(
    fault: Option<Fault>,
    deadline: Deadline,
    work: BoxFuture<Result<T>>,
) -> BoxFuture<Result<T>> {
    Box::pin(async move {
        let work = tokio::spawn(async move {
            match fault {
                None | Some(Fault::Stale | Fault::LoseTail) => work.await,
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Fail) => Err(away()),
                Some(Fault::LoseReply) => work.await.and(Err(away())),
                Some(Fault::DelayReply(delay)) => {
                    let answer = work.await;
                    tokio::time::sleep(delay).await;
                    answer
                }
                Some(Fault::Delay(delay)) => {
                    tokio::time::sleep(delay).await;
                    work.await
                }
                Some(Fault::Refuse) => Err(Error::invalid("the store refuses").caused_by("the reason")),
            }
        });
        match tokio::time::timeout(deadline.remaining(), work).await {
            Ok(answer) => answer.unwrap(),
            Err(_elapsed) => Err(away()),
        }
    })
}

/// Passes on how the records are. Then, by the fault, passes on what happens so much later, or nothing. Or fails in between.
async fn pass_on(mut states: Receiver<FollowedState>, tell: Sender<FollowedState>, fault: Fault) -> Result<()> {
    while let Some(state) = states.recv().await {
        let is_last = matches!(state, FollowedState::Complete { .. });
        if is_last && matches!(fault, Fault::LoseTail) {
            return Err(away());
        }
        drop(tell.send(state).await);
        if is_last {
            break;
        }
    }
    let Fault::DelayReply(delay) = fault else {
        tell.closed().await;
        return Ok(());
    };
    while let Some(state) = states.recv().await {
        let tell = tell.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            drop(tell.send(state).await);
        });
    }
    Ok(())
}

impl Store for Faulty {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        meet(self.fault(Call::Prepare), deadline, self.records.prepare(deadline))
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        self.requests.lock().unwrap().push(request.clone());
        let fault = self.fault(Call::Apply(&request));
        if matches!(fault, Some(Fault::Stale)) {
            return Box::pin(async { Ok(Applied { outcome: Outcome::Absent, at: None, changed: false, sent: None }) });
        }
        meet(fault, deadline, self.records.apply(key, request, deadline))
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let fault = self.fault(Call::Jointly(leases));
        if matches!(fault, Some(Fault::Stale)) {
            return Box::pin(async { Ok(false) });
        }
        meet(fault, deadline, self.records.apply_batch(leases, joint, deadline))
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        meet(self.fault(Call::Read), deadline, self.records.read(key, deadline))
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        meet(self.fault(Call::Now), deadline, self.records.now(deadline))
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        meet(self.fault(Call::List), deadline, self.records.list(selection, after, most, deadline))
    }

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        tell: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        match self.fault(Call::Watch) {
            Some(Fault::Refuse) => Box::pin(async { Err(Error::invalid("the store does not tell")) }),
            Some(Fault::Hang) => Box::pin(std::future::pending()),
            Some(_) => Box::pin(async { Err(away()) }),
            None => self.records.notifications(handle, since, tell),
        }
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, tell: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        match self.fault(Call::Follow) {
            Some(Fault::Refuse) => Box::pin(async { Err(Error::invalid("the store does not tell")) }),
            Some(Fault::Hang) => Box::pin(std::future::pending()),
            // It breaks off after a while.
            Some(Fault::Delay(time)) => {
                let following = self.records.follow(filter, known, tell);
                Box::pin(async move { tokio::time::timeout(time, following).await.unwrap_or_else(|_| Err(away())) })
            }
            Some(fault @ (Fault::DelayReply(_) | Fault::Stale | Fault::LoseTail)) => {
                let (told, states) = tokio::sync::mpsc::channel(1_000);
                let following = self.records.follow(filter, known, told);
                Box::pin(async move {
                    tokio::select! {
                        ended = following => ended,
                        ended = pass_on(states, tell, fault) => ended,
                    }
                })
            }
            // It tells first how it was long ago, as a new primary may that is behind.
            Some(Fault::LoseReply) => {
                let following = self.records.follow(filter, known, tell.clone());
                let KeyFilter::Key(key) = filter.clone() else { panic!("only of a key") };
                Box::pin(async move {
                    let at = StoreClock { now: StoreTime::default(), hlc: HybridTime { seconds: 0, ordinal: 0 } };
                    drop(tell.send(FollowedState::Record { key, state: RecordState { record: None, at } }).await);
                    following.await
                })
            }
            Some(_) => Box::pin(async { Err(away()) }),
            None => self.records.follow(filter, known, tell),
        }
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.records.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.records.clock()
    }

    fn retention(&self) -> Duration {
        self.records.retention()
    }

    fn connections(&self) -> u32 {
        self.connections
    }

    fn part_size(&self) -> usize {
        self.part_size
    }
}
