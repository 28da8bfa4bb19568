//! A process: runs the steps of its tracks, and checks what each call returns.

#![allow(clippy::large_futures, reason = "the future of a step has those of all verbs, and runs in a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use mongodb::bson::{Document, doc};
use mongoseal::{
    Builder, CancellationToken, Error, Fence, FencingToken, Key, Leader, Lease, LeaseId, LeaseSet, LeaseState,
    LossCause, Metadata, Mongoseal, OnceOutcome, Result, Retry, Tick, TickLease, blocking, fence::Change, store::Store,
};
use tokio::task::{spawn_blocking, spawn_local};

use crate::{
    beliefs::{Belief, Beliefs},
    choices::Choice::{self, *},
    link::{Defect, Link},
    millis,
    program::{KEYS, Step},
    route::Route,
    run::{SHORTEST, Weather},
    secs,
    server::Observed,
    wire::Caller,
    world::{Records, World},
};

/// How long one call may take, with all requests it sends.
pub(crate) const OPERATION: Duration = secs(2);
/// What else a call may take.
const SLACK: Duration = millis(250);
/// The ttl of the handles.
pub(crate) const TTL: Duration = secs(3);
/// The longest ttl with the longest grace.
pub(crate) const LONGEST: Duration = secs(8);
const GROUP_TTL: Duration = secs(6);

/// A transferred or orphaned lease, which a process can resume.
type Given = (Key, LeaseId, FencingToken);

/// What all processes of a program share.
pub(crate) struct Common {
    pub(crate) world: Arc<World>,
    pub(crate) beliefs: Beliefs,
    given: Mutex<Vec<Given>>,
    defect: Option<Defect>,
    /// How often each tick of a key was completed.
    completed: Mutex<BTreeMap<(Key, u64), u32>>,
    /// The keys whose record an operator deleted, with the completed tick.
    pub(crate) forgotten: Mutex<BTreeSet<Key>>,
    /// The choices of each step that was granted.
    pub(crate) granted: Mutex<Vec<Vec<Choice>>>,
}

impl Common {
    pub(crate) fn new(world: Arc<World>, defect: Option<Defect>) -> Arc<Self> {
        let (given, completed, granted) = (Mutex::default(), Mutex::default(), Mutex::default());
        let beliefs = Beliefs::new(world.weather == Weather::Calm);
        Arc::new(Self { world, beliefs, given, defect, completed, forgotten: Mutex::default(), granted })
    }

    /// Whether something goes wrong beside the program.
    pub(crate) fn is_hurt(&self) -> bool {
        self.world.weather == Weather::Faulty
    }

    /// Whether a call took longer than it may, and no stall of this machine explains it.
    async fn is_late(&self, took: Duration, most: Duration) -> bool {
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
    common: Arc<Common>,
    pub(crate) route: Arc<Route>,
    /// Those of its handles that are open. One that was shut down is opened anew by the next step that needs it.
    handles: tokio::sync::Mutex<BTreeMap<Choice, Handle>>,
    /// How often each handle was shut down.
    shutdowns: Mutex<BTreeMap<Choice, u64>>,
}

/// A handle of either API.
#[derive(Clone)]
enum Handle {
    Async(Mongoseal),
    Blocking(blocking::Mongoseal),
}

impl Handle {
    fn seal(&self) -> &Mongoseal {
        match self {
            Self::Async(seal) => seal,
            Self::Blocking(seal) => seal.as_async(),
        }
    }

    async fn shut_down(self) {
        match self {
            Self::Async(seal) => seal.shutdown().await,
            Self::Blocking(seal) => on_thread(move || seal.shutdown()).await,
        }
    }
}

/// Runs a call that blocks.
async fn on_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(call).await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

impl Process {
    pub(crate) fn start(number: u64, common: &Arc<Common>) -> Arc<Self> {
        let world = &common.world;
        let longest = u64::try_from(SHORTEST.as_millis()).unwrap() * 38 / 100;
        let far = (common.world.weather == Weather::Far).then(|| millis(1 + world.below(longest)));
        let route = Route::new(world, far);
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
            Running { process: &self, seal: handle.seal().clone(), handle, which, shutdowns, step, group }.run().await;
        }
        self.note("has done its steps");
    }

    fn shutdowns_of(&self, which: Choice) -> u64 {
        self.shutdowns.lock().unwrap().get(&which).copied().unwrap_or_default()
    }

    /// One of its handles, opened if it is not open.
    async fn handle(&self, which: Choice) -> Result<Handle> {
        let mut handles = self.handles.lock().await;
        if let Some(handle) = handles.get(&which) {
            return Ok(handle.clone());
        }
        let (number, defect) = (self.number, self.common.defect);
        let store = || open_store(&self.route, defect);
        let handle = match which {
            Sibling => {
                let own = match handles.get(&OwnHandle) {
                    Some(own) => own.clone(),
                    None => Handle::Async(builder(number).on_store(store())?),
                };
                let sibling = builder(number).sibling_of(own.seal())?;
                handles.insert(OwnHandle, own);
                Handle::Async(sibling)
            }
            BlockingHandle => {
                let builder = blocking::Mongoseal::builder().owner(format!("process-{number}"));
                Handle::Blocking(builder.operation_timeout(OPERATION).ttl(TTL).on_store(store())?)
            }
            direct if direct.is_direct() => Handle::Async(self.common.world.connect(direct, builder(number)).await?),
            _ => Handle::Async(builder(number).on_store(store())?),
        };
        handles.insert(which, handle.clone());
        Ok(handle)
    }

    /// Its own handle.
    pub(crate) async fn seal(&self) -> Mongoseal {
        let own = self.handle(OwnHandle).await.expect("a handle on a store that is open");
        own.seal().clone()
    }

    /// Shuts a handle down, if it is open.
    async fn shut_down(&self, which: Choice) {
        let Some(handle) = self.handles.lock().await.remove(&which) else { return };
        *self.shutdowns.lock().unwrap().entry(which).or_default() += 1;
        self.note(&format!("shuts {which:?} down"));
        let began = self.common.world.now();
        handle.shut_down().await;
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
                handle.shut_down().await;
            }
        });
    }

    fn note(&self, what: &str) {
        self.common.world.note(format_args!("process {} {what}", self.number));
    }
}

fn builder(number: u64) -> Builder {
    Mongoseal::builder().owner(format!("process-{number}")).operation_timeout(OPERATION).ttl(TTL)
}

fn open_store(route: &Arc<Route>, defect: Option<Defect>) -> Arc<dyn Store> {
    match &route.world.records {
        Records::Memory(store) => Arc::new(Link { route: Arc::clone(route), store: store.clone(), defect }),
        Records::Table(table) => Arc::new(Caller::new(Arc::clone(route), table.clone())),
        Records::Server(server) => Arc::new(Observed { route: Arc::clone(route), store: (server.open)(), defect }),
    }
}

/// Sets the options of a builder that the step names.
macro_rules! set {
    ($builder:expr, $step:expr, $($choice:ident => $setter:ident($($value:expr),*)),+ $(,)?) => {{
        let mut builder = $builder;
        $(if $step.has($choice) { builder = builder.$setter($($value),*); })+
        builder
    }};
}

/// The options that each verb of one key has.
macro_rules! set_common {
    ($builder:expr, $step:expr) => {
        set!($builder, $step,
            WaitsBriefly => wait(secs(1)),
            WaitsLong => wait(secs(20)),
            Ttl1s => ttl(secs(1)),
            Ttl6s => ttl(secs(6)),
            RefreshedOften => refresh_every(millis(300)),
        )
    };
}

macro_rules! set_hold {
    ($builder:expr, $step:expr) => {
        set!($builder, $step,
            Retries => retry(Retry::fixed(millis(300)).max_elapsed(secs(5))),
            NoGrace => grace(Duration::ZERO),
            LongGrace => grace(secs(2)),
            AtLeast2s => min_hold(secs(2)),
            AtMost4s => max_hold(secs(4)),
            Progresses => stalled_after(millis(1_500)),
            Stalls => stalled_after(millis(1_500)),
            Labelled => metadata("step", "labelled"),
        )
    };
}

macro_rules! set_acquire {
    ($builder:expr, $step:expr, $group:expr) => {
        set!(set_hold!(set_common!($builder, $step), $step), $step,
            Shared => shared(),
            SharedByTwo => shared_up_to(2),
            NeverExpires => without_expiry(),
            RefreshedByHand => without_refresh(),
            InAGroup => group($group),
        )
    };
}

/// A step that runs.
struct Running<'a> {
    process: &'a Process,
    handle: Handle,
    /// The same, or its asynchronous form.
    seal: Mongoseal,
    which: Choice,
    /// How often the handle was shut down when the step began.
    shutdowns: u64,
    step: &'a Step,
    group: String,
}

/// What a step was granted.
enum Held {
    Lease(Lease),
    Set(LeaseSet),
    Tick(TickLease),
    Leader(Leader),
}

impl Held {
    fn leases(&self) -> Vec<&Lease> {
        match self {
            Self::Lease(lease) => vec![lease],
            Self::Set(set) => set.iter().collect(),
            Self::Tick(tick) => vec![tick.lease()],
            Self::Leader(leader) => vec![leader.lease()],
        }
    }
}

/// A lease of either API.
#[derive(Clone)]
enum Any<'a> {
    Async(&'a Lease),
    Blocking(Arc<blocking::Lease>),
}

/// Calls a verb of a lease of either API.
macro_rules! call {
    ($lease:expr, $verb:ident($($value:expr),*)) => {
        match $lease {
            Any::Async(lease) => lease.$verb($($value),*).await,
            Any::Blocking(lease) => {
                let lease = Arc::clone(lease);
                on_thread(move || lease.$verb($($value),*)).await
            }
        }
    };
}

impl Any<'_> {
    fn key(&self) -> &Key {
        match self {
            Self::Async(lease) => lease.key(),
            Self::Blocking(lease) => lease.key(),
        }
    }

    fn id(&self) -> LeaseId {
        match self {
            Self::Async(lease) => lease.id(),
            Self::Blocking(lease) => lease.id(),
        }
    }

    fn token(&self) -> FencingToken {
        match self {
            Self::Async(lease) => lease.token(),
            Self::Blocking(lease) => lease.token(),
        }
    }

    fn progress(&self) {
        match self {
            Self::Async(lease) => lease.progress(),
            Self::Blocking(lease) => lease.progress(),
        }
    }

    /// Gives its state, also when it is over.
    fn state(&self) -> Arc<dyn Fn() -> LeaseState> {
        match self {
            Self::Async(lease) => {
                let state = lease.watch_state();
                Arc::new(move || state.get())
            }
            Self::Blocking(lease) => {
                let lease = Arc::downgrade(lease);
                Arc::new(move || lease.upgrade().map_or(LeaseState::Released, |lease| lease.state()))
            }
        }
    }
}

fn all_of<'a>(leases: &[&'a Lease]) -> Vec<Any<'a>> {
    leases.iter().map(|lease| Any::Async(lease)).collect()
}

impl Running<'_> {
    fn world(&self) -> &World {
        &self.process.common.world
    }

    fn is_faulty(&self) -> bool {
        self.process.common.world.weather == Weather::Faulty || self.world().is_slow()
    }

    fn has(&self, choice: Choice) -> bool {
        self.step.has(choice) && choice.is_of(self.world().place())
    }

    fn note(&self, what: &str) {
        self.process.note(what);
    }

    fn describe(&self) -> String {
        let named: Vec<_> = self.step.choices.named().collect();
        format!("process {}, key {:?}, {named:?}", self.process.number, self.step.key)
    }

    /// Whether the handle was shut down meanwhile.
    fn is_shut_down(&self) -> bool {
        self.process.shutdowns_of(self.which) != self.shutdowns
    }

    /// A call returns in time.
    async fn within<T>(&self, what: &str, most: Duration, call: impl IntoFuture<Output = T>) -> T {
        let began = self.world().now();
        self.note(what);
        let value = call.await;
        let took = self.world().now().saturating_sub(began);
        let is_late = self.process.common.is_late(took, most + SLACK).await;
        assert!(!is_late, "time: {what} took {took:?} and not {most:?}: {}", self.describe());
        value
    }

    async fn run(&self) {
        let (key, seal) = (self.step.key, &self.seal);
        match self.step.choices.verb() {
            Acquires => {
                if let Handle::Blocking(seal) = &self.handle {
                    return Box::pin(self.block(seal)).await;
                }
                let acquire = set_acquire!(seal.acquire(key), self.step, self.group.as_str());
                if self.has(With) {
                    let worked = acquire.with(async |lease| self.work(&[lease]).await);
                    return self.with(worked).await;
                } else if self.has(TriesWith) {
                    let worked = acquire.try_with(async |lease| self.try_work(&[lease]).await);
                    return self.with(worked).await;
                }
                self.keep(acquire, Held::Lease).await;
            }
            AcquiresTwo => {
                let acquire = set_acquire!(seal.acquire_all(KEYS), self.step, self.group.as_str());
                if self.has(With) {
                    let worked = acquire.with(async |set| self.work(&set.iter().collect::<Vec<_>>()).await);
                    return self.with(worked).await;
                } else if self.has(TriesWith) {
                    let worked = acquire.try_with(async |set| self.try_work(&set.iter().collect::<Vec<_>>()).await);
                    return self.with(worked).await;
                }
                self.keep(acquire, Held::Set).await;
            }
            RunsATick => self.run_tick().await,
            Campaigns => self.campaign().await,
            Resumes => {
                let given = self.process.common.given.lock().unwrap().pop();
                let Some((key, id, token)) = given else { return };
                let resume = set!(seal.resume(key, id, token), self.step,
                    Ttl1s => ttl(secs(1)),
                    Ttl6s => ttl(secs(6)),
                    RefreshedOften => refresh_every(millis(300)),
                    RefreshedByHand => without_refresh(),
                );
                match self.within("resumes", OPERATION, resume).await {
                    Ok(lease) => self.hold(Held::Lease(lease)).await,
                    Err(Error::Lost { .. }) => self.world().count("resumed too late"),
                    Err(error) => self.accept(&error),
                }
            }
            Inspects => drop(self.ask("inspects", seal.inspect(key)).await),
            Lists => drop(self.ask("lists", async { seal.leases().await?.collect().await }).await),
            Raises => {
                let version = self.ask("inspects", seal.inspect(key)).await.flatten().map(|seen| seen.version.get());
                let to = FencingToken::new(version.unwrap_or(1) + 1).unwrap();
                self.ask("raises", seal.raise_token_floor(key, to)).await;
            }
            Purges => {
                // The operation timeout bounds each of its requests: a list, and one for each key.
                match self.within("purges", 3 * OPERATION, seal.purge()).await {
                    Ok(_) => self.world().count("purged"),
                    Err(error) => self.accept(&error),
                }
            }
            Revokes => drop(self.ask("revokes", seal.revoke(key).by("operator").reason("as the program says")).await),
            other => unreachable!("{other:?} is no verb"),
        }
    }

    async fn ask<T>(&self, what: &str, call: impl IntoFuture<Output = Result<T>>) -> Option<T> {
        self.within(what, OPERATION, call).await.map_err(|error| self.accept(&error)).ok()
    }

    /// How long an acquire may take.
    fn patience(&self) -> Duration {
        let waits = if self.has(WaitsBriefly) {
            secs(1)
        } else if self.has(WaitsLong) {
            secs(20)
        } else if self.has(Retries) {
            secs(5) + OPERATION
        } else if self.has(RunsATick) {
            // As long as a holder that dies may keep the key, and a second.
            LONGEST + secs(1)
        } else if self.has(Campaigns) {
            secs(1)
        } else {
            Duration::ZERO
        };
        waits + OPERATION
    }

    /// Acquires, and holds what is granted.
    async fn keep<T>(&self, acquire: impl IntoFuture<Output = Result<T>>, held: impl FnOnce(T) -> Held) {
        let half_way = if self.has(DropsHalfway) { millis(self.world().below(600)) } else { secs(3_600) };
        let acquiring = async { tokio::time::timeout(half_way, acquire).await };
        match self.within("acquires", self.patience(), acquiring).await {
            Ok(Ok(granted)) => self.hold(held(granted)).await,
            Ok(Err(error)) => self.accept(&error),
            Err(_elapsed) => self.world().count("an acquire is dropped"),
        }
    }

    /// Checks an error that a call returned.
    fn accept(&self, error: &Error) {
        self.note(&format!("is told: {error}"));
        let is_expected = match error {
            Error::Held { .. } | Error::RetriesExhausted { .. } => true,
            // A later holder has written, or a later sharer.
            Error::Fenced { .. } => {
                let shares = [Shared, SharedByTwo, Resumes].iter().any(|choice| self.has(*choice));
                shares || self.is_faulty() || self.ends_anyway() || self.is_shut_down()
            }
            Error::Lost { cause, .. } => self.may_lose(cause),
            // It may be revoked before its expiry is removed.
            Error::Unavailable { message, .. } => {
                self.is_faulty()
                    || self.process.common.world.weather != Weather::Calm
                    || self.is_shut_down()
                    || (self.has(NeverExpires) && message.starts_with("the lease ended before"))
            }
            // Only the store knows whether a resumed lease has an expiry that a ttl can be for.
            Error::Invalid { message, .. } => {
                self.step.choices.is_refused()
                    || self.is_shut_down()
                    || (self.has(Resumes) && message.contains("no expiry"))
                    || ((self.has(RunsATick) || self.has(Verifies)) && !self.seal.capabilities().linearizable_reads)
            }
            _ => false,
        };
        assert!(is_expected, "error: {error:?}: {}", self.describe());
        let text = error.to_string();
        // What an error advises, whatever the caller used.
        let advised = ["wait", "queue_limit", "operation_timeout", "maxPoolSize", "maxclients", "rediss", "redis"];
        let named = text.split('`').skip(1).step_by(2);
        for name in named.filter(|name| !advised.contains(name)) {
            let is_used = self.step.choices.functions().any(|function| function == name);
            assert!(is_used, "text: {text:?} names {name}: {}", self.describe());
        }
    }

    /// Whether a lease of this step can end although it is not released: the key is then free for others.
    fn ends_anyway(&self) -> bool {
        [RefreshedByHand, Stalls, AtMost4s, Resumes].iter().any(|choice| self.has(*choice))
    }

    /// Whether a lease of this step may be lost by this cause.
    fn may_lose(&self, cause: &LossCause) -> bool {
        match cause {
            LossCause::HeldTooLong => self.has(AtMost4s) || self.has(Resumes),
            // A call that is not answered is no progress.
            LossCause::Stalled => self.has(Stalls) || (self.has(Progresses) && self.is_faulty()),
            LossCause::Revoked { .. } => true,
            LossCause::ShutDown => self.is_shut_down(),
            LossCause::Transferred => self.has(Transfers),
            LossCause::Expired | LossCause::TakenOver { .. } => {
                self.is_faulty() || self.ends_anyway() || self.is_shut_down()
            }
            _ => self.is_faulty(),
        }
    }

    fn believe(&self, leases: &[Any<'_>]) -> Vec<Belief> {
        let Self { process, step, .. } = self;
        let place = self.world().place();
        process.common.granted.lock().unwrap().push(step.choices.all().filter(|choice| choice.is_of(place)).collect());
        let limit = match () {
            () if self.has(SharedByTwo) => 2,
            () if self.has(Shared) => u32::MAX,
            () => 1,
        };
        let believe = |lease: &Any<'_>| {
            let (key, token) = (lease.key(), lease.token());
            self.note(&format!("holds {key:?} with {token}"));
            // The terms of a resumed lease are known to the store.
            let limit = if self.has(Resumes) {
                self.world().limit(key, token)
            } else {
                self.world().note_believed(key, lease.id(), token, limit);
                limit
            };
            process.common.beliefs.add(self.world(), process.number, step, (key.clone(), token), lease.state(), limit)
        };
        leases.iter().map(believe).collect()
    }

    /// Works under a lease that a verb hands to its work.
    async fn work(&self, leases: &[&Lease]) {
        let leases = all_of(leases);
        let beliefs = self.believe(&leases);
        let _at_work: Vec<_> = beliefs.iter().map(Belief::work).collect();
        self.act(&leases, &beliefs).await;
    }

    async fn try_work(&self, leases: &[&Lease]) -> Result<()> {
        self.work(leases).await;
        Ok(())
    }

    /// Awaits a verb that acquires, works and releases, and shuts down meanwhile if the step says so.
    async fn with(&self, verb: impl Future<Output = Result<()>>) {
        let most = self.patience() + self.time() + 4 * OPERATION;
        let began = self.world().now();
        let ended = self.beside_a_shutdown(verb).await;
        let took = self.world().now() - began;
        let is_late = self.process.common.is_late(took, most).await;
        assert!(!is_late, "time: a verb with work took {took:?}: {}", self.describe());
        if let Err(error) = ended {
            self.accept(&error);
        }
    }

    /// Awaits what runs work, and shuts down meanwhile if the step says so.
    async fn beside_a_shutdown<T>(&self, work: impl Future<Output = T>) -> T {
        let shutting = async {
            if self.has(ShutsDown) && !self.has(Holds) {
                tokio::time::sleep(self.time() / 2).await;
                self.process.shut_down(self.which).await;
            }
        };
        tokio::join!(work, shutting).0
    }

    fn time(&self) -> Duration {
        if self.has(HoldsLong) { secs(3) } else { millis(150) }
    }

    /// Works for half of the time, does what the step says, and works for the other half.
    async fn act(&self, leases: &[Any<'_>], beliefs: &[Belief]) {
        self.pass(self.time() / 2, leases).await;
        for (lease, belief) in leases.iter().zip(beliefs) {
            let done = if self.has(Refreshes) {
                self.within("refreshes", OPERATION, async { call!(lease, refresh()) }).await
            } else if self.has(Verifies) {
                self.within("verifies", OPERATION, async { call!(lease, verify()) }).await
            } else if self.has(Relabels) {
                let mut metadata = Metadata::default();
                metadata.insert("step", "relabelled").unwrap();
                self.within("relabels", OPERATION, async { call!(lease, update_metadata(metadata)) }).await
            } else if self.has(Downgrades) {
                belief.share(2);
                self.within("downgrades", OPERATION, async { call!(lease, downgrade(2)) }).await
            } else if self.has(Extends) {
                match self.within("extends", OPERATION, async { call!(lease, extend(secs(5))) }).await {
                    // A lease without expiry has none to extend.
                    Err(Error::Invalid { .. }) if self.has(NeverExpires) || self.has(Resumes) => Ok(()),
                    extended => extended,
                }
            } else if self.has(WritesFenced) || self.has(WritesInBulk) {
                self.within("writes", OPERATION, Box::pin(self.write(lease))).await
            } else if self.has(Transacts) {
                // Its work has some time, and its commit.
                self.within("transacts", 3 * OPERATION, Box::pin(self.transact(lease))).await
            } else {
                Ok(())
            };
            if let Err(error) = done {
                self.accept(&error);
            }
        }
        if self.has(RefreshesGroup) {
            self.ask("refreshes a group", self.seal.refresh_group(self.group.as_str(), GROUP_TTL)).await;
        }
        self.pass(self.time() / 2, leases).await;
        for belief in beliefs {
            let is_at_risk = belief.state() == LeaseState::AtRisk && !self.ends_anyway() && !self.is_faulty();
            assert!(!is_at_risk, "risk: {} is at risk: {}", belief.token, self.describe());
            if let LeaseState::Lost { cause } = belief.state() {
                self.note(&format!("has lost {}: {cause}", belief.token));
                assert!(self.may_lose(&cause), "lost: by {cause:?}: {}", self.describe());
                self.world().count("lost");
            }
        }
        if self.has(IsRevoked) {
            for lease in leases {
                let revoke = self.seal.revoke(lease.key().as_str()).token(lease.token());
                self.ask("revokes its lease", revoke).await;
            }
            self.pass(millis(200), leases).await;
        }
    }

    /// Adds the token to the document of the key, at the fence.
    async fn write(&self, lease: &Any<'_>) -> Result<()> {
        let (documents, key, token) = (self.world().documents(), lease.key(), lease.token());
        let fenced = match lease {
            Any::Async(lease) => documents.fenced(*lease),
            Any::Blocking(lease) => documents.fenced(&**lease),
        };
        let (fenced, filter) = (fenced.operation_timeout(OPERATION), doc! { "_id": key.as_str() });
        let update = doc! { "$push": { "tokens": i64::from(token) } };
        if self.has(WritesInBulk) {
            fenced.bulk_write([Change::update_one(filter, update).upsert(true)]).await?;
        } else {
            fenced.update_one(filter, update).upsert(true).await?;
        }
        self.world().note_written(key, token);
        Ok(())
    }

    /// The same in a transaction.
    async fn transact(&self, lease: &Any<'_>) -> Result<()> {
        let Any::Async(lease) = lease else { unreachable!("a blocking lease has no transaction") };
        let (namespace, filter) = (self.world().documents().namespace(), doc! { "_id": lease.key().as_str() });
        let token = i64::from(lease.token());
        let update = doc! { "$push": { "tokens": token }, "$set": { "fence": token } };
        let work = lease.transaction(async |session| -> Result<()> {
            // A session is for collections of its own client.
            let documents = session.client().database(&namespace.db).collection::<Document>(&namespace.coll);
            let written = documents.update_one(filter.clone(), update.clone()).upsert(true).session(session);
            tokio::time::timeout(OPERATION / 2, written.into_future())
                .await
                .map_err(|_| Error::unavailable("the work took too long"))??;
            Ok(())
        });
        work.await?;
        self.world().note_written(lease.key(), lease.token());
        Ok(())
    }

    async fn pass(&self, time: Duration, leases: &[Any<'_>]) {
        let until = self.world().now() + time;
        while self.world().now() < until {
            tokio::time::sleep(millis(300).min(until - self.world().now())).await;
            if self.has(Progresses) {
                for lease in leases {
                    lease.progress();
                }
            }
        }
    }

    /// Holds what was granted, as the step says, and ends it.
    async fn hold(&self, held: Held) {
        self.work_under(&held).await;
        self.end(held).await;
    }

    async fn work_under(&self, held: &Held) {
        let leases = all_of(&held.leases());
        let beliefs = self.believe(&leases);
        let working = async {
            let _at_work: Vec<_> = beliefs.iter().map(Belief::work).collect();
            self.act(&leases, &beliefs).await;
            Ok::<_, Error>(())
        };
        let untold = self.process.common.defect == Some(Defect::UntoldWork);
        let worked = match held {
            Held::Lease(_) if untold && self.has(Runs) => self.beside_a_shutdown(working).await,
            _ if self.has(StopsPolling) => {
                let mut running = pin!(held.leases()[0].run(working));
                // Work begins, unless the lease is lost already.
                std::future::poll_fn(|task| Poll::Ready(running.as_mut().poll(task).is_ready())).await;
                if self.has(ShutsDown) {
                    self.process.shut_down(self.which).await;
                }
                tokio::time::sleep(millis(100)).await;
                Ok(())
            }
            Held::Lease(lease) if self.has(Runs) => {
                self.beside_a_shutdown(lease.run(working)).await.and_then(|ended| ended)
            }
            Held::Lease(lease) if self.has(Tries) => self.beside_a_shutdown(lease.try_run(working)).await,
            Held::Set(set) if self.has(Runs) => self.beside_a_shutdown(set.run(working)).await.and_then(|ended| ended),
            Held::Set(set) if self.has(Tries) => self.beside_a_shutdown(set.try_run(working)).await,
            _ => {
                self.act(&leases, &beliefs).await;
                Ok(())
            }
        };
        if let Err(error) = worked {
            self.accept(&error);
        }
        if let (Held::Leader(leader), true) = (held, self.has(Proclaims)) {
            self.ask("proclaims", leader.proclaim("elsewhere")).await;
        }
    }

    /// Acquires, works and ends by the blocking API.
    async fn block(&self, seal: &blocking::Mongoseal) {
        let acquire = set_acquire!(seal.acquire(self.step.key), self.step, self.group.as_str());
        let lease = match self.within("acquires", self.patience(), on_thread(move || acquire.run())).await {
            Ok(lease) => Arc::new(lease),
            Err(error) => return self.accept(&error),
        };
        let leases = [Any::Blocking(Arc::clone(&lease))];
        let beliefs = self.believe(&leases);
        self.act(&leases, &beliefs).await;
        drop(leases);
        let lease = Arc::into_inner(lease).expect("nobody else has it");
        let given = (lease.key().clone(), lease.id(), lease.token());
        if self.has(ShutsDown) {
            self.process.shut_down(self.which).await;
        } else if self.has(Orphans) {
            lease.orphan();
            self.process.common.given.lock().unwrap().push(given);
        } else if self.has(Transfers) {
            let to = LeaseId::random();
            if let Some(token) = self.ask("transfers", on_thread(move || lease.transfer(to))).await {
                self.process.common.given.lock().unwrap().push((given.0, to, token));
            }
        } else if !self.has(Drops) {
            self.ask("releases", on_thread(move || lease.release())).await;
        }
    }

    async fn end(&self, held: Held) {
        match held {
            _ if self.has(Drops) => {}
            held if self.has(Leaks) => std::mem::forget(held),
            _ if self.has(ShutsDown) && self.has(Holds) => self.process.shut_down(self.which).await,
            Held::Lease(lease) if self.has(Orphans) => {
                let given = (lease.key().clone(), lease.id(), lease.token());
                lease.orphan();
                self.process.common.given.lock().unwrap().push(given);
            }
            Held::Lease(lease) if self.has(Transfers) => {
                let to = LeaseId::random();
                if let Some(token) = self.ask("transfers", lease.transfer(to)).await {
                    self.process.common.given.lock().unwrap().push((lease.key().clone(), to, token));
                }
            }
            _ if self.has(EndsGroup) => {
                self.ask("releases a group", self.seal.release_group(self.group.as_str())).await;
            }
            Held::Lease(lease) => drop(self.ask("releases", lease.release()).await),
            Held::Set(set) => drop(self.ask("releases all", set.release()).await),
            Held::Tick(tick) => {
                let at = (tick.lease().key().clone(), tick.number());
                if self.ask("completes", tick.complete()).await.is_some() {
                    self.complete(&at);
                }
            }
            Held::Leader(leader) => drop(self.ask("resigns", leader.resign()).await),
        }
    }

    /// A tick is completed once.
    fn complete(&self, at: &(Key, u64)) {
        self.world().count("a tick is completed");
        let mut completed = self.process.common.completed.lock().unwrap();
        let times = completed.entry(at.clone()).or_default();
        *times += 1;
        let times = *times;
        drop(completed);
        let is_forgotten = self.process.common.forgotten.lock().unwrap().contains(&at.0);
        assert!(times == 1 || is_forgotten, "tick: {at:?} was completed {times} times: {}", self.describe());
    }

    async fn run_tick(&self) {
        let number = 1 + self.world().below(2);
        let once = set_hold!(set_common!(self.seal.once(self.step.key, Tick::number(number)), self.step), self.step);
        let ended = if self.has(Holds) {
            match self.within("begins a tick", self.patience(), once.begin()).await {
                Ok(OnceOutcome::Started(tick)) => return self.hold(Held::Tick(tick)).await,
                Ok(_) => return self.world().count("a tick is not begun"),
                Err(error) => Err(error),
            }
        } else {
            let running = once.run(async |tick| self.try_work(&[tick.lease()]).await);
            self.beside_a_shutdown(running).await
        };
        match ended {
            Ok(OnceOutcome::Ran(())) => self.complete(&(self.step.key.parse().unwrap(), number)),
            Ok(_) => self.world().count("a tick is not begun"),
            Err(error) => self.accept(&error),
        }
    }

    async fn campaign(&self) {
        let campaign = set_common!(self.seal.campaign(self.step.key).value("here"), self.step);
        if self.has(Holds) {
            // By default it waits for ever.
            let campaign =
                if self.has(WaitsBriefly) || self.has(WaitsLong) { campaign } else { campaign.wait(secs(1)) };
            return self.keep(campaign, Held::Leader).await;
        }
        let end = CancellationToken::new();
        let elector = campaign.elector().until(end.clone());
        let leading = elector.run(async |leader| self.try_work(&[leader.lease()]).await);
        let giving_up = async {
            tokio::time::sleep(secs(20)).await;
            end.cancel();
            std::future::pending::<()>().await;
        };
        let led = self.beside_a_shutdown(async {
            tokio::select! {
                led = leading => led,
                () = giving_up => unreachable!("it does not end"),
            }
        });
        if let Err(error) = led.await {
            self.accept(&error);
        }
    }
}
