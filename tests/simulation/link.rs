//! A memory store at the end of a faulty route.

use std::{fmt, sync::Arc, time::Duration};

use mongoseal::{
    Clock, Deadline, HandleId, HybridTime, Key, Result, Sharing, StoreTime,
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Outcome, Position, Request},
    store::{Applied, BoxFuture, FollowedState, MemoryStore, Notification, Page, Snapshot, Store},
};
use tokio::sync::mpsc::{Sender, UnboundedSender, unbounded_channel};

use crate::{
    millis,
    process::OPERATION,
    route::{Route, Sent, away},
};

/// The memory store, as a process reaches it.
pub(crate) struct Link {
    pub(crate) route: Arc<Route>,
    pub(crate) store: MemoryStore,
    /// What is wrong with the store, or with what the library sends to it. A test expects that a rule is broken.
    pub(crate) defect: Option<Defect>,
}

/// A defect, most of them of earlier versions of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A refresh is given up after a sixth of its ttl.
    ShortAttempts,
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
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    /// How long the answer to a refresh is waited for.
    fn patience(&self, ttl: u64, deadline: Deadline) -> Deadline {
        if self.defect == Some(Defect::ShortAttempts) { deadline.or_after(millis(ttl / 6)) } else { deadline }
    }

    /// Sends what is done with the store.
    fn send<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl Fn(&MemoryStore) -> BoxFuture<Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let store = self.store.clone();
        let is_renewed = self.defect == Some(Defect::RenewedDeadlines);
        let deadline = if is_renewed { Deadline::after(store.clock(), OPERATION) } else { deadline };
        let answer = self.route.send(Sent::Request, deadline, move || work(&store));
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
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.send(deadline, |_| Box::pin(async { Ok(()) }))
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (world, key) = (Arc::clone(&self.route.world), key.clone());
        let request = self.defect.map_or(request.clone(), |defect| defect.change(request));
        let deadline = match &request {
            Request::Refresh(refresh) => self.patience(refresh.ttl, deadline),
            _ => deadline,
        };
        if world.is_faulty()
            && !self.route.is_cut()
            && world.below(25) == 0
            && let Some(stale) = world.stale(&key, &request)
        {
            world.count("an old primary answers");
            return Box::pin(async { Ok(stale) });
        }
        let (remembers, defect) = (world.below(10) == 0, self.defect);
        self.send(deadline, move |store| {
            let (world, store, key, request) = (Arc::clone(&world), store.clone(), key.clone(), request.clone());
            Box::pin(async move {
                let mut applied = world.apply(&store, &key, request, deadline).await;
                if let Some(defect) = defect {
                    defect.change_answer(&mut applied);
                }
                if remembers {
                    world.remember(&store, &key).await;
                }
                applied
            })
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (leases, joint) = (leases.clone(), joint.clone());
        let world = Arc::clone(&self.route.world);
        let deadline = match &joint {
            BatchRequest::Keep { ttl } => self.patience(*ttl, deadline),
            _ => deadline,
        };
        self.send(deadline, move |store| {
            let (world, store, leases, joint) = (Arc::clone(&world), store.clone(), leases.clone(), joint.clone());
            Box::pin(async move { world.apply_batch(&store, &leases, &joint, deadline).await })
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

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        tell: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        let world = Arc::clone(&self.route.world);
        let (fate, breaks) = (world.below(8), millis(world.below(20_000)));
        let (faulty, defect) = (world.is_faulty(), self.defect);
        if self.route.is_cut() || (faulty && fate == 0) || defect == Some(Defect::Unheard) {
            return Box::pin(async { Err(away()) });
        }
        let (first, mut told) = unbounded_channel();
        let watching = self.store.notifications(handle, since, first);
        Box::pin(async move {
            let relaying = async {
                while let Some(what) = told.recv().await {
                    let is_untold = defect == Some(Defect::UntoldHold)
                        && matches!(what, Notification::Recheck { .. })
                        && world.is_left_alone();
                    let is_lost = is_untold || (world.is_faulty() && world.below(8) == 0);
                    if is_lost && !matches!(what, Notification::Started { .. }) {
                        world.count("a wake-up is lost");
                    } else if tell.send(what).is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                biased;
                ended = watching => ended,
                () = relaying => Ok(()),
                () = tell.closed() => Ok(()),
                () = tokio::time::sleep(breaks), if faulty && fate < 4 => {
                    world.count("a watch breaks off");
                    Err(away())
                }
            }
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
}
