//! A process: its handles, which its tracks share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{Builder, Error, FencingToken, Key, LeaseId, Mongoseal, Result};
use tokio::task::spawn_local;

use crate::{
    beliefs::Beliefs,
    choices::Choice::{self, OwnHandle, Sibling},
    link::{Defect, Link},
    millis,
    program::Step,
    route::Route,
    run::{Report, Run},
    secs,
    step::Running,
    world::{Records, World},
};

/// How long one call may take, with all requests it sends.
pub(crate) const OPERATION: Duration = secs(2);
/// What else a call may take.
pub(crate) const SLACK: Duration = millis(250);
/// The ttl of the handles.
pub(crate) const TTL: Duration = secs(3);
/// The longest ttl with the longest grace.
pub(crate) const LONGEST: Duration = secs(8);

/// A transferred or orphaned lease, which a process can resume.
type Given = (Key, LeaseId, FencingToken);

/// What all processes of a program share.
pub(crate) struct Common {
    pub(crate) world: Arc<World>,
    pub(crate) beliefs: Beliefs,
    pub(crate) given: Mutex<Vec<Given>>,
    pub(crate) defect: Option<Defect>,
    /// How often each tick of a key was completed.
    pub(crate) completed: Mutex<BTreeMap<(Key, u64), u32>>,
    /// The keys whose record an operator deleted, with the completed tick.
    pub(crate) forgotten: Mutex<BTreeSet<Key>>,
    /// The choices of each step that was granted.
    pub(crate) granted: Mutex<Vec<Vec<Choice>>>,
}

impl Common {
    pub(crate) fn new(run: Run, records: Records) -> Arc<Self> {
        Arc::new(Self {
            world: World::new(run.seed, run.weather, records),
            beliefs: Beliefs::default(),
            given: Mutex::default(),
            defect: run.defect,
            completed: Mutex::default(),
            forgotten: Mutex::default(),
            granted: Mutex::default(),
        })
    }

    pub(crate) fn report(&self) -> Report {
        let granted = std::mem::take(&mut *self.granted.lock().unwrap());
        Report { granted, seen: self.world.seen.lock().unwrap().clone(), trace: self.world.trace() }
    }

    /// Whether a call took longer than it may, and no stall of this machine explains it.
    pub(crate) async fn is_late(&self, took: Duration, most: Duration) -> bool {
        if took > most && self.world.is_on_server() {
            // A stall is noted after it.
            tokio::time::sleep(millis(200)).await;
        }
        took > most && !self.world.has_stalled()
    }
}

/// A process.
pub(crate) struct Process {
    pub(crate) number: u64,
    pub(crate) common: Arc<Common>,
    pub(crate) route: Arc<Route>,
    /// Those of its handles that are open. One that was shut down is opened anew by the next step that needs it.
    handles: tokio::sync::Mutex<BTreeMap<Choice, Mongoseal>>,
    /// How often each handle was shut down.
    shutdowns: Mutex<BTreeMap<Choice, u64>>,
}

impl Process {
    pub(crate) fn start(number: u64, common: &Arc<Common>) -> Arc<Self> {
        let route = Route::new(&common.world);
        let (handles, shutdowns) = (tokio::sync::Mutex::default(), Mutex::default());
        Arc::new(Self { number, common: Arc::clone(common), route, handles, shutdowns })
    }

    pub(crate) async fn run(self: Arc<Self>, track: usize, steps: Vec<Step>) {
        for (at, step) in steps.iter().enumerate() {
            tokio::time::sleep(millis(step.pause)).await;
            let chosen = step.choices.handle();
            let which = if chosen.is_of(self.common.world.place()) { chosen } else { OwnHandle };
            let handle = match self.handle(which).await {
                Ok(handle) => handle,
                Err(Error::Unavailable { .. }) => {
                    self.common.world.count("a handle is not opened");
                    continue;
                }
                Err(error) => panic!("error: process {} cannot open {which:?}: {error:?}", self.number),
            };
            let shutdowns = self.shutdowns_of(which);
            let group = format!("group-{}-{track}-{at}", self.number);
            let running = Running { process: &self, handle, which, shutdowns, step, group };
            Box::pin(running.run()).await;
        }
        self.note("has done its steps");
    }

    pub(crate) fn shutdowns_of(&self, which: Choice) -> u64 {
        self.shutdowns.lock().unwrap().get(&which).copied().unwrap_or_default()
    }

    /// One of its handles, opened if it is not open.
    async fn handle(&self, which: Choice) -> Result<Mongoseal> {
        let mut handles = self.handles.lock().await;
        if let Some(handle) = handles.get(&which) {
            return Ok(handle.clone());
        }
        let (number, defect) = (self.number, self.common.defect);
        let store = || Arc::new(Link::new(&self.route, defect));
        let handle = match which {
            Sibling => {
                let own = match handles.get(&OwnHandle) {
                    Some(own) => own.clone(),
                    None => builder(number).on_store(store())?,
                };
                let sibling = builder(number).sibling_of(&own)?;
                handles.insert(OwnHandle, own);
                sibling
            }
            direct if direct.is_direct() => self.common.world.connect(direct, builder(number)).await?,
            _ => builder(number).on_store(store())?,
        };
        handles.insert(which, handle.clone());
        Ok(handle)
    }

    /// Its own handle.
    pub(crate) async fn seal(&self) -> Mongoseal {
        self.handle(OwnHandle).await.expect("a handle on a store that is open")
    }

    /// Shuts a handle down, if it is open.
    pub(crate) async fn shut_down(&self, which: Choice) {
        let Some(handle) = self.handles.lock().await.remove(&which) else { return };
        *self.shutdowns.lock().unwrap().entry(which).or_default() += 1;
        self.note(&format!("shuts {which:?} down"));
        let began = self.common.world.now();
        handle.shutdown().await;
        let took = self.common.world.now() - began;
        let most = OPERATION + millis(100) + SLACK;
        let is_late = self.common.is_late(took, most).await;
        assert!(!is_late, "time: a shutdown of {which:?} of process {} took {took:?}", self.number);
    }

    pub(crate) async fn shut_down_all(&self) {
        let open: Vec<_> = self.handles.lock().await.keys().copied().collect();
        for which in open {
            self.shut_down(which).await;
        }
    }

    /// Ends what its route does not cut off when it dies: the handles with a client of their own.
    pub(crate) fn end_direct_handles(self: Arc<Self>) {
        spawn_local(async move {
            let handles = std::mem::take(&mut *self.handles.lock().await);
            for (_, handle) in handles.into_iter().filter(|(which, _)| which.is_direct()) {
                handle.shutdown().await;
            }
        });
    }

    pub(crate) fn note(&self, what: &str) {
        self.common.world.note(format_args!("process {} {what}", self.number));
    }
}

fn builder(number: u64) -> Builder {
    Mongoseal::builder().owner(format!("process-{number}")).operation_timeout(OPERATION).ttl(TTL)
}
