//! The store of a handle, as a process reaches it.

use std::{fmt, sync::Arc, time::Duration};

use mongoseal::{
    Key, Result, Sharing,
    inspect::StoreTime,
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Outcome, Position, Request},
    store::{
        Applied, BoxFuture, Capabilities, Clock, Deadline, FollowedState, HandleId, HybridTime, Notification, Page,
        Snapshot, Store,
    },
};
use tokio::sync::mpsc::{Sender, UnboundedSender};

use crate::{
    millis,
    process::OPERATION,
    route::{Route, Sent, away},
    wire::Caller,
    world::Records,
};

/// A store, and the route of its process. The faults of a memory store are on the route. Those of a table are behind
/// `CompareAndSwap`, and those of a server are its own.
pub(crate) struct Link {
    route: Arc<Route>,
    store: Arc<dyn Store>,
    /// The store, if it is a table.
    caller: Option<Caller>,
    /// What is wrong with the store, or with what the library sends to it. A test expects that a rule is broken.
    defect: Option<Defect>,
}

/// A defect, most of them of earlier versions of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A waiter that is the first during a minimum hold is not notified of it.
    UntoldHold,
    /// The store keeps a maximum hold of which the holder does not know.
    UnknownMaximum,
    /// The store takes an exclusive acquire for a shared one.
    UnknownSharing,
    /// The store forgets a completed tick with its record.
    ForgottenTick,
    /// A resumed lease is not notified of its revocation.
    UntoldRevocation,
    /// The library is not told of the work that runs under a lease. See the process.
    UntoldWork,
    /// A waiter that left or died stays in the queue for hours.
    EndlessPlace,
    /// An answer can come seconds after its deadline.
    LateAnswers,
    /// `CompareAndSwap` sends a request although its caller is gone.
    SendsAbandoned,
    /// `CompareAndSwap` answers a request with the outcome of an earlier one.
    SwapsAnswers,
    /// Each request of a process for a key is a load and a swap of its own.
    Apart,
    /// The listener of a handle, once it has failed, stays closed.
    Unheard,
    /// Each request of a call may take as long as the call.
    RenewedDeadlines,
    /// The store answers no refresh.
    UnansweredRefreshes,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    pub(crate) fn new(route: &Arc<Route>, defect: Option<Defect>) -> Self {
        let (store, caller): (Arc<dyn Store>, _) = match &route.world.records {
            Records::Memory(store) => (Arc::new(store.clone()), None),
            Records::Table(table) => {
                let caller = Caller::new(Arc::clone(route), table.clone());
                (Arc::new(caller.store.clone()), Some(caller))
            }
            Records::Server(server) => ((server.open)(), None),
        };
        Self { route: Arc::clone(route), store, caller, defect }
    }

    /// Sends what is done with the store.
    fn send<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl Fn(&dyn Store) -> BoxFuture<Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        match &self.route.world.records {
            Records::Memory(_) => {}
            Records::Table(_) => return work(&*self.store),
            Records::Server(_) => return self.route.observe(deadline, 1, work(&*self.store)),
        }
        let store = Arc::clone(&self.store);
        let is_renewed = self.defect == Some(Defect::RenewedDeadlines);
        let deadline = if is_renewed { Deadline::after(store.clock(), OPERATION) } else { deadline };
        let answer = self.route.send(Sent::REQUEST, deadline, move || work(&*store));
        if self.defect == Some(Defect::LateAnswers) && self.route.world.below(20) == 0 {
            return Box::pin(async move {
                tokio::time::sleep(millis(10_000)).await;
                answer.await
            });
        }
        answer
    }
}

impl Defect {
    /// The request as it is sent.
    pub(crate) fn change(self, mut request: Request) -> Request {
        match (self, &mut request) {
            (Self::UnknownMaximum, Request::Acquire(acquire)) if acquire.terms.hold.max.is_none() => {
                acquire.terms.hold.max = acquire.terms.hold.min.max(Some(2_000));
            }
            (Self::EndlessPlace, Request::Acquire(acquire)) => {
                acquire.wait.iter_mut().for_each(|wait| wait.ttl = wait.ttl.saturating_mul(10_000));
            }
            (Self::UnknownSharing, Request::Acquire(acquire)) => acquire.terms.sharing = Sharing::UpTo(2),
            (Self::ForgottenTick, Request::Complete(complete)) => complete.keep = 0,
            (Self::UntoldRevocation, Request::Refresh(refresh)) => refresh.acquire_id = None,
            _ => {}
        }
        request
    }

    /// Falsifies the answer of the store.
    pub(crate) fn change_answer(self, answer: &mut Result<Applied>) {
        if let (Self::UnknownMaximum, Ok(Applied { outcome: Outcome::Granted { not_after, .. }, .. })) = (self, answer)
        {
            *not_after = None;
        }
    }
}

impl Store for Link {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        if self.route.world.is_on_server() {
            return self.route.observe(deadline, 5, self.store.prepare(deadline));
        }
        self.send(deadline, move |store| store.prepare(deadline))
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        if let Some(caller) = &self.caller {
            return caller.apply(key, request, deadline);
        }
        if self.defect == Some(Defect::UnansweredRefreshes) && matches!(request, Request::Refresh(_)) {
            return Box::pin(async { Err(away()) });
        }
        let request = self.defect.map_or(request.clone(), |defect| defect.change(request));
        let (world, key) = (Arc::clone(&self.route.world), key.clone());
        let answer = if world.is_on_server() {
            if let (Request::Revoke(revoke), false) = (&request, self.route.is_cut()) {
                world.revoke(&key, revoke.upto);
            }
            self.send(deadline, move |store| store.apply(&key, request.clone(), deadline))
        } else if world.is_faulty()
            && !self.route.is_cut()
            && world.below(25) == 0
            && let Some(stale) = world.stale(&key, &request)
        {
            world.count("an old primary answers");
            Box::pin(async { Ok(stale) })
        } else {
            let (remembers, store) = (world.below(10) == 0, Arc::clone(&self.store));
            self.send(deadline, move |_| {
                let (world, store) = (Arc::clone(&world), Arc::clone(&store));
                let (key, request) = (key.clone(), request.clone());
                Box::pin(async move {
                    let applied = world.apply(&*store, &key, request, deadline).await;
                    if remembers {
                        world.remember(&key).await;
                    }
                    applied
                })
            })
        };
        let Some(defect) = self.defect else { return answer };
        Box::pin(async move {
            let mut answer = answer.await;
            defect.change_answer(&mut answer);
            answer
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        if let Some(caller) = &self.caller {
            return caller.apply_batch(leases, batch, deadline);
        }
        if self.defect == Some(Defect::UnansweredRefreshes) && matches!(batch, BatchRequest::Keep { .. }) {
            return Box::pin(async { Err(away()) });
        }
        let (leases, batch, world) = (leases.clone(), batch.clone(), Arc::clone(&self.route.world));
        if world.is_on_server() {
            if let (BatchRequest::Revoke { .. }, false) = (&batch, self.route.is_cut()) {
                for (key, tokens) in &leases {
                    world.excuse(key, tokens.iter().copied());
                }
            }
            return self.send(deadline, move |store| store.apply_batch(&leases, &batch, deadline));
        }
        let store = Arc::clone(&self.store);
        self.send(deadline, move |_| {
            let (world, store, leases, batch) = (Arc::clone(&world), Arc::clone(&store), leases.clone(), batch.clone());
            Box::pin(async move { world.apply_batch(&*store, &leases, &batch, deadline).await })
        })
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let key = key.clone();
        self.send(deadline, move |store| store.read(&key, deadline))
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.send(deadline, move |store| store.now(deadline))
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let selection = selection.clone();
        self.send(deadline, move |store| store.list(&selection, after.clone(), most, deadline))
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
        let Records::Memory(_) = &self.route.world.records else {
            return self.store.notifications(handle, since, tell);
        };
        let defect = self.defect;
        let watch = |first| match defect {
            Some(Defect::Unheard) => Box::pin(async { Err(away()) }),
            _ => self.store.notifications(handle, since, first),
        };
        self.route.relay("a watch breaks off", watch, tell, move |world, what| {
            let is_untold = defect == Some(Defect::UntoldHold)
                && matches!(what, Notification::Recheck { .. })
                && world.is_left_alone();
            let is_lost = is_untold || (world.is_faulty() && world.below(8) == 0);
            if is_lost && !matches!(what, Notification::Started { .. }) {
                world.count("a wake-up is lost");
                return None;
            }
            Some(Duration::ZERO)
        })
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, tell: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        self.store.follow(filter, known, tell)
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.store.close(deadline)
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
