//! `CompareAndSwap` on the table of a simulation, at the end of a faulty route.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    FencingToken, Key, LeaseId, Result,
    record::{BatchRequest, Holder, LeaseRefs, Outcome, Request},
    store::{
        Applied, Backend, BoxFuture, Capabilities, Clock, CompareAndSwap, Deadline, HandleId, Loaded, LoadedKeys,
        Store, Swap,
    },
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    link::Defect,
    millis,
    process::LONGEST,
    route::{Route, Sent, away},
    table::Table,
    world::may_end,
};

/// A call of the store.
pub(crate) struct Call {
    key: Key,
    sent: Called,
    /// Whether it has loaded, and has not sent its swap.
    is_between: AtomicBool,
}

enum Called {
    Request(Request),
    Batch(Vec<FencingToken>, BatchRequest),
}

impl Call {
    fn new(key: &Key, sent: Called) -> Arc<Self> {
        Arc::new(Self { key: key.clone(), sent, is_between: AtomicBool::default() })
    }

    /// Whether it may end this holder.
    pub(crate) fn may_end(&self, held: &Holder) -> bool {
        match &self.sent {
            Called::Request(request) => may_end(request, held),
            Called::Batch(tokens, BatchRequest::Release | BatchRequest::Revoke { .. }) => {
                tokens.contains(&held.version)
            }
            Called::Batch(..) => false,
        }
    }

    /// Whether an operator ends this holder with it.
    pub(crate) fn revokes(&self, held: &Holder) -> bool {
        match &self.sent {
            Called::Request(Request::Revoke(revoke)) => held.version <= revoke.upto,
            Called::Batch(tokens, BatchRequest::Revoke { .. }) => tokens.contains(&held.version),
            _ => false,
        }
    }

    /// Whether it may bring this lease into the record.
    pub(crate) fn may_bring(&self, lease: LeaseId) -> bool {
        match &self.sent {
            Called::Request(Request::Acquire(acquire)) => acquire.terms.lease == lease,
            Called::Request(Request::Transfer(transfer) | Request::Upgrade(transfer)) => transfer.to == lease,
            _ => false,
        }
    }
}

/// The calls of a process whose callers wait.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Arc<Call>>>>);

impl Calls {
    fn of(&self, key: &Key) -> Vec<Arc<Call>> {
        self.0.lock().unwrap().iter().filter(|call| call.key == *key).cloned().collect()
    }

    fn begin(&self, call: &Arc<Call>) -> Calling {
        self.0.lock().unwrap().push(Arc::clone(call));
        Calling(self.clone(), Arc::clone(call))
    }
}

/// A call, until its caller has the answer or is gone.
struct Calling(Calls, Arc<Call>);

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().retain(|call| !Arc::ptr_eq(call, &self.1));
    }
}

/// The table, as a process reaches it.
#[derive(Clone)]
pub(crate) struct Wire {
    route: Arc<Route>,
    table: Table,
    calls: Calls,
    /// Tells the stores of a program apart.
    number: u64,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    fn send<T: Send + 'static>(
        &self,
        sent: Sent,
        deadline: Deadline,
        work: impl Fn(&Self) -> T + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let wire = self.clone();
        self.route.send(sent, deadline, move || {
            let done = work(&wire);
            Box::pin(async { Ok(done) })
        })
    }
}

impl Backend for Wire {
    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        let (key, calls) = (key.clone(), self.calls.of(key));
        self.send(Sent::LOAD, deadline, move |wire| {
            for call in &calls {
                call.is_between.store(true, Ordering::Relaxed);
            }
            wire.table.load(&wire.route.world, &key)
        })
    }

    fn swap(&self, swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>> {
        // An abandoned request is never sent, so the swap is for those whose callers wait now.
        let calls = self.calls.of(&swap.key);
        for call in &calls {
            call.is_between.store(false, Ordering::Relaxed);
        }
        if calls.len() > 1 {
            self.route.world.count("a swap has several callers");
        }
        self.send(Sent::SWAP, deadline, move |wire| {
            let world = &wire.route.world;
            let is_done = world.checked(|| wire.table.swap(world, &calls, &swap, wire.number));
            if is_done && deadline.has_passed() {
                world.count("a ghost swap takes effect");
            }
            is_done
        })
    }

    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.send(Sent::LOAD, deadline, |wire| wire.table.list(&wire.route.world))
    }

    fn listen(&self, handle: HandleId, messages: UnboundedSender<Vec<u8>>) -> BoxFuture<Result<()>> {
        let watch = |first| -> BoxFuture<Result<()>> {
            self.table.listen(handle, first);
            Box::pin(std::future::pending())
        };
        let route = Arc::clone(&self.route);
        self.route.relay("a listener drops", watch, messages, move |world, message| {
            let fate = if world.is_faulty() && !message.is_empty() { world.below(8) } else { 7 };
            if fate == 0 || route.is_cut() {
                world.count("a message is lost");
                return None;
            }
            if fate == 1 {
                world.count("a message is late");
                return Some(millis(world.below(4_000)));
            }
            Some(Duration::ZERO)
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn clock(&self) -> Clock {
        self.table.clock()
    }
}

/// The store of a process, whose caller drops some requests half-way.
pub(crate) struct Caller {
    pub(crate) store: CompareAndSwap<Wire>,
    /// The last grant of each key that was answered, for [`Defect::SwapsAnswers`].
    answered: Arc<Mutex<HashMap<Key, Applied>>>,
}

impl Caller {
    pub(crate) fn new(route: Arc<Route>, table: Table) -> Self {
        let number = table.next_store();
        let wire = Wire { route, table, calls: Calls::default(), number };
        Self { store: CompareAndSwap::new(wire, LONGEST), answered: Arc::default() }
    }

    fn wire(&self) -> &Wire {
        self.store.backend()
    }

    /// Runs a call of the store, or the first part of it.
    fn call<T: Send + 'static>(&self, calling: BoxFuture<Result<T>>, calls: Vec<Arc<Call>>) -> BoxFuture<Result<T>> {
        let world = Arc::clone(&self.wire().route.world);
        let waits: Vec<_> = calls.iter().map(|call| self.wire().calls.begin(call)).collect();
        let is_dropped = world.is_faulty() && world.below(20) == 0;
        Box::pin(async move {
            if !is_dropped {
                let answer = calling.await;
                drop(waits);
                return answer;
            }
            let patience = millis(world.below(30));
            let ended = tokio::time::timeout(patience, calling).await;
            drop(waits);
            if ended.is_err() {
                world.count("a call of the store is dropped");
            }
            if ended.is_err() && calls.iter().any(|call| call.is_between.load(Ordering::Relaxed)) {
                world.count("a caller is dropped between load and swap");
            }
            ended.unwrap_or_else(|_| Err(away()))
        })
    }

    pub(crate) fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let applying = match self.wire().table.defect {
            // No other request is known to a store of its own.
            Some(Defect::Apart) => {
                CompareAndSwap::new(self.wire().clone(), LONGEST).apply(key, request.clone(), deadline)
            }
            _ => self.store.apply(key, request.clone(), deadline),
        };
        let applied = self.call(applying, vec![Call::new(key, Called::Request(request.clone()))]);
        let (wire, key, answered) = (self.wire().clone(), key.clone(), Arc::clone(&self.answered));
        let store = self.store.clone();
        Box::pin(async move {
            let (world, defect) = (&wire.route.world, wire.table.defect);
            let mut applied = match applied.await {
                Ok(applied) => applied,
                Err(error) => {
                    if defect == Some(Defect::SendsAbandoned) {
                        tokio::spawn(store.apply(&key, request, deadline));
                    }
                    return Err(error);
                }
            };
            if defect == Some(Defect::SwapsAnswers) && matches!(applied.outcome, Outcome::Granted { .. }) {
                let other = answered.lock().unwrap().insert(key.clone(), applied.clone());
                applied = other.unwrap_or(applied);
            }
            world.checked(|| world.check_answer(&key, &request, &applied.outcome));
            Ok(applied)
        })
    }

    pub(crate) fn apply_batch(
        &self,
        leases: &LeaseRefs,
        batch: &BatchRequest,
        deadline: Deadline,
    ) -> BoxFuture<Result<bool>> {
        if leases.len() > 1 {
            self.wire().route.world.count("a batch has several keys");
        }
        let call =
            |(key, tokens): &(Key, Vec<FencingToken>)| Call::new(key, Called::Batch(tokens.clone(), batch.clone()));
        self.call(self.store.apply_batch(leases, batch, deadline), leases.iter().map(call).collect())
    }
}
