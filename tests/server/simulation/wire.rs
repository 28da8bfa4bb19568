//! `CompareAndSwap` on the table of a simulation, at the end of a faulty route.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mongoseal::{
    Clock, Deadline, FencingToken, HandleId, HybridTime, Key, Result, StoreTime,
    record::{BatchRequest, Filter, LeaseRefs, Position, Request},
    store::{
        Applied, Backend, BoxFuture, Capabilities, CompareAndSwap, ExpiredPage, Loaded, LoadedKeys, Notification, Page,
        RecordState, Snapshot, Store, Swap,
    },
};
use tokio::sync::mpsc::{Sender, UnboundedSender, unbounded_channel};

use crate::{
    millis,
    process::{GRACE, LONGEST},
    route::{Route, Sent, away},
    table::Table,
};

tokio::task_local! {
    /// The call of the store for which a request of the backend is sent.
    static CALL: Arc<Call>;
}

/// A call of the store.
struct Call {
    request: Request,
    /// Whether it has loaded, and has not sent its swap.
    is_between: AtomicBool,
}

impl Call {
    fn current() -> Option<Arc<Self>> {
        CALL.try_with(Arc::clone).ok()
    }
}

/// The table, as a process reaches it.
#[derive(Clone)]
struct Wire {
    route: Arc<Route>,
    table: Table,
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
        let (key, call) = (key.clone(), Call::current());
        self.send(Sent::Load, deadline, move |wire| {
            if let Some(call) = &call {
                call.is_between.store(true, Ordering::Relaxed);
            }
            wire.table.load(&wire.route.world, &key)
        })
    }

    fn swap(&self, swap: Swap, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let call = Call::current();
        if let Some(call) = &call {
            call.is_between.store(false, Ordering::Relaxed);
        }
        self.send(Sent::Swap, deadline, move |wire| {
            let world = &wire.route.world;
            let request = call.as_ref().map(|call| &call.request);
            let is_done = wire.table.swap(world, request, &swap);
            if is_done && deadline.has_passed() {
                world.count("a ghost swap takes effect");
            }
            is_done
        })
    }

    fn delete(&self, key: &Key, loaded: Vec<u8>, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let key = key.clone();
        self.send(Sent::Swap, deadline, move |wire| wire.table.delete(&wire.route.world, &key, &loaded))
    }

    fn list(&self, deadline: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.send(Sent::Load, deadline, |wire| wire.table.list(&wire.route.world))
    }

    fn listen(&self, handle: HandleId, messages: UnboundedSender<Vec<u8>>) -> BoxFuture<Result<()>> {
        let (route, world) = (Arc::clone(&self.route), Arc::clone(&self.route.world));
        let (fate, breaks) = (world.below(8), millis(world.below(20_000)));
        let faulty = world.is_faulty();
        if route.is_cut() || (faulty && fate == 0) {
            return Box::pin(async { Err(away()) });
        }
        let (sender, mut published) = unbounded_channel();
        self.table.listen(handle, sender);
        Box::pin(async move {
            let relaying = async {
                while let Some(message) = published.recv().await {
                    let fate = if world.is_faulty() && !message.is_empty() { world.below(8) } else { 7 };
                    if fate == 0 || route.is_cut() {
                        world.count("a message is lost");
                        continue;
                    }
                    if fate == 1 {
                        world.count("a message is late");
                        tokio::time::sleep(millis(world.below(4_000))).await;
                    }
                    if messages.send(message).is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                biased;
                () = relaying => Ok(()),
                () = messages.closed() => Ok(()),
                () = tokio::time::sleep(breaks), if faulty && fate < 4 => {
                    world.count("a listener drops");
                    Err(away())
                }
            }
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
#[derive(Debug)]
pub(crate) struct Caller(CompareAndSwap<Wire>);

impl Caller {
    pub(crate) fn new(route: Arc<Route>, table: Table) -> Self {
        Self(CompareAndSwap::new(Wire { route, table }, millis(LONGEST + GRACE)))
    }

    /// Runs a call of the store, or the first part of it.
    fn call<T: Send + 'static>(&self, calling: BoxFuture<Result<T>>, call: Option<Arc<Call>>) -> BoxFuture<Result<T>> {
        let world = Arc::clone(&self.0.backend().route.world);
        let is_dropped = world.is_faulty() && world.below(20) == 0;
        Box::pin(async move {
            if !is_dropped {
                return calling.await;
            }
            let patience = millis(world.below(30));
            let ended = tokio::time::timeout(patience, calling).await;
            if ended.is_err() {
                world.count("a call of the store is dropped");
            }
            if ended.is_err() && call.is_some_and(|call| call.is_between.load(Ordering::Relaxed)) {
                world.count("a caller is dropped between load and swap");
            }
            ended.unwrap_or_else(|_| Err(away()))
        })
    }
}

impl Store for Caller {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.0.prepare(deadline)
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let applying = self.0.apply(key, request.clone(), deadline);
        let call = Arc::new(Call { request, is_between: AtomicBool::default() });
        self.call(Box::pin(CALL.scope(Arc::clone(&call), applying)), Some(call))
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        if leases.len() > 1 {
            self.0.backend().route.world.count("a batch has several keys");
        }
        self.call(self.0.apply_batch(leases, batch, deadline), None)
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        self.0.read(key, deadline)
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.0.now(deadline)
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<Position>,
        page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        self.0.list(filter, after, page_size, deadline)
    }

    fn list_expired(
        &self,
        after: Option<String>,
        page_size: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<ExpiredPage>> {
        self.0.list_expired(after, page_size, deadline)
    }

    fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> BoxFuture<Result<bool>> {
        self.0.delete_idle(key, version, deadline)
    }

    fn watch(
        &self,
        handle: HandleId,
        since: HybridTime,
        notifications: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        self.0.watch(handle, since, notifications)
    }

    fn follow(&self, key: &Key, states: Sender<RecordState>) -> BoxFuture<Result<()>> {
        self.0.follow(key, states)
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.0.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn retention(&self) -> std::time::Duration {
        self.0.retention()
    }
}
