//! A real server under a program: in real time, and in a collection of its own.

use std::{fmt, sync::Arc, time::Duration};

use mongodb::{Collection, bson::Document};
use mongoseal::{
    Builder, Clock, Deadline, HandleId, HybridTime, Key, Mongoseal, Result, StoreTime,
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Position, Request},
    store::{Applied, BoxFuture, Capabilities, FollowedState, Notification, Page, Snapshot, Store},
};
use tokio::sync::mpsc::{Sender, UnboundedSender};

use crate::{
    choices::Choice,
    link::Defect,
    route::{Route, away},
    run::Place,
};

/// Opens a handle with a client of its own.
type Connect = dyn Fn(Choice, Builder) -> BoxFuture<Result<Mongoseal>> + Send + Sync;

/// The collection of a program.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) place: Place,
    /// Makes the store of a handle.
    pub(crate) open: Arc<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
    pub(crate) connect: Arc<Connect>,
    /// What is written under leases, by the clients of the processes and by the judge's. Redis has none.
    pub(crate) documents: Option<[Collection<Document>; 2]>,
    /// A store by which the rules look at records. No fault is for it.
    pub(crate) judge: Arc<dyn Store>,
}

/// The store of a handle, as a process reaches it.
pub(crate) struct Observed {
    pub(crate) route: Arc<Route>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) defect: Option<Defect>,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observed")
    }
}

impl Observed {
    /// Awaits an answer, unless the process is cut off, and notes how long that took.
    fn send<T: Send + 'static>(&self, deadline: Deadline, answer: BoxFuture<Result<T>>) -> BoxFuture<Result<T>> {
        let route = Arc::clone(&self.route);
        Box::pin(async move {
            let began = route.world.now();
            let answer = if route.is_cut() { Err(away()) } else { answer.await };
            route.world.note_answer(route.world.now().saturating_sub(began));
            if route.is_cut() {
                tokio::time::sleep(deadline.remaining()).await;
                return Err(away());
            }
            answer
        })
    }
}

impl Store for Observed {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        let (world, prepared) = (Arc::clone(&self.route.world), self.store.prepare(deadline));
        Box::pin(async move {
            let began = world.now();
            let prepared = prepared.await;
            // It sends several commands.
            world.note_answer(world.now().saturating_sub(began) / 5);
            prepared
        })
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let request = self.defect.map_or(request.clone(), |defect| defect.change(request));
        if let (Request::Revoke(revoke), false) = (&request, self.route.is_cut()) {
            self.route.world.revoke(key, revoke.upto);
        }
        let answer = self.store.apply(key, request, deadline);
        let Some(defect) = self.defect else { return self.send(deadline, answer) };
        let falsified = Box::pin(async move {
            let mut answer = answer.await;
            defect.change_answer(&mut answer);
            answer
        });
        self.send(deadline, falsified)
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        if let (BatchRequest::Revoke { .. }, false) = (joint, self.route.is_cut()) {
            for (key, tokens) in leases {
                self.route.world.excuse(key, tokens.iter().copied());
            }
        }
        self.send(deadline, self.store.apply_batch(leases, joint, deadline))
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        self.send(deadline, self.store.read(key, deadline))
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.send(deadline, self.store.now(deadline))
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        self.send(deadline, self.store.list(selection, after, most, deadline))
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
        self.store.notifications(handle, since, tell)
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
