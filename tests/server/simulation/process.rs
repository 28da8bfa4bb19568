//! A process: a handle and what it does with leases, until it dies.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use mongoseal::{
    Acquire, Error, FencingToken, Key, Lease, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Resume,
    store::Store,
};

use crate::{
    KEYS,
    link::Link,
    millis,
    route::Route,
    secs,
    wire::Caller,
    world::{Records, World},
};

/// How long one call may take, with all requests it sends.
pub(crate) const OPERATION: Duration = secs(2);
/// What else a call may take.
const SLACK: Duration = millis(250);
/// The longest ttl.
pub(crate) const LONGEST: u64 = 6_000;
/// The shortest ttl.
pub(crate) const SHORTEST: u64 = 1_000;
/// The default grace of a lease with that ttl. The store keeps idle records for both together.
pub(crate) const GRACE: u64 = 500;

/// Which leases there are, so that everybody can be asked at once whether it believes.
#[derive(Default)]
pub(crate) struct Beliefs(Mutex<Vec<(u64, Weak<Lease>)>>);

impl Beliefs {
    /// I4: no two believe in an exclusive key, nor three in one that two share. A lease whose record an operator deleted
    /// does not count.
    pub(crate) fn check(&self, world: &World) {
        let mut leases = self.0.lock().unwrap();
        leases.retain(|(_, lease)| lease.strong_count() > 0);
        let held = leases.iter().filter_map(|(who, lease)| lease.upgrade().map(|lease| (*who, lease)));
        let valid: Vec<_> = held.filter(|(_, lease)| lease.is_valid() && !world.is_orphan(lease)).collect();
        for (who, lease) in &valid {
            let others = valid.iter().filter(|(_, other)| other.key() == lease.key()).count();
            let most = if lease.key().as_str() == "shared" { 2 } else { 1 };
            assert!(
                others <= most,
                "I4: process {who} believes in {lease:?} at {:?}, and so do {valid:#?}",
                world.now()
            );
        }
    }

    /// A process is gone, and believes nothing any more.
    pub(crate) fn forget(&self, who: u64) {
        self.0.lock().unwrap().retain(|(other, _)| *other != who);
    }
}

/// Transferred leases, each with its key, its lease id and its token.
pub(crate) type Given = Vec<(Key, LeaseId, FencingToken)>;

#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) number: u64,
    /// Which of the things that it does at once this is.
    worker: u64,
    pub(crate) seal: Mongoseal,
    pub(crate) route: Arc<Route>,
    pub(crate) world: Arc<World>,
    pub(crate) beliefs: Arc<Beliefs>,
    /// The transferred leases that no process has resumed.
    pub(crate) given: Arc<Mutex<Given>>,
}

impl Process {
    pub(crate) fn start(number: u64, world: &Arc<World>, beliefs: &Arc<Beliefs>, given: &Arc<Mutex<Given>>) -> Self {
        Self::start_on(Route::new(world, None), false, number, beliefs, given)
    }

    pub(crate) fn start_on(
        route: Arc<Route>,
        short_attempts: bool,
        number: u64,
        beliefs: &Arc<Beliefs>,
        given: &Arc<Mutex<Given>>,
    ) -> Self {
        let store: Arc<dyn Store> = match &route.world.records {
            Records::Memory(store) => {
                Arc::new(Link { route: Arc::clone(&route), store: store.clone(), short_attempts })
            }
            Records::Table(table) => Arc::new(Caller::new(Arc::clone(&route), table.clone())),
        };
        let builder = Mongoseal::builder().owner(format!("process-{number}")).operation_timeout(OPERATION);
        let seal = builder.ttl(secs(3)).on_store(store).unwrap();
        let (world, beliefs, given) = (Arc::clone(&route.world), Arc::clone(beliefs), Arc::clone(given));
        Self { number, worker: 0, seal, route, world, beliefs, given }
    }

    /// Its own: to release that of another is to revoke.
    fn group(&self) -> String {
        format!("crew-{}-{}", self.number, self.worker)
    }

    fn note(&self, what: &str) {
        self.world.note(format_args!("process {} {what}", self.number));
    }

    /// I8: a call returns in time.
    async fn within<T>(&self, what: &str, most: Duration, call: impl IntoFuture<Output = T>) -> T {
        let began = self.world.now();
        self.note(what);
        let value = call.await;
        let took = self.world.now().saturating_sub(began);
        assert!(took <= most + SLACK, "I8: {what} of process {} took {took:?}", self.number);
        value
    }

    /// The same process, which does another thing at once.
    pub(crate) fn beside(&self) -> Self {
        Self { worker: self.worker + 1, ..self.clone() }
    }

    /// Works until it is dropped or told to stop.
    pub(crate) async fn work(self, stop: Duration) {
        while self.world.now() < stop {
            let key = KEYS[usize::try_from(self.world.below(3)).unwrap()];
            let ttl = millis(SHORTEST + self.world.below(LONGEST - SHORTEST));
            let wait = if self.world.below(2) == 0 { Duration::ZERO } else { millis(self.world.below(15_000)) };
            let mut acquire = self.seal.acquire(key).ttl(ttl).wait(wait);
            if key == "shared" {
                acquire = acquire.shared_up_to(2);
            }
            if self.world.below(3) == 0 {
                acquire = acquire.group(self.group());
            }
            let given = self.given.lock().unwrap().pop();
            let lease = match given {
                Some((key, id, token)) => self.resume(self.seal.resume(key, id, token).ttl(ttl)).await,
                None => self.obtain(acquire, wait).await,
            };
            if let Some(lease) = lease {
                self.hold(lease).await;
            }
            tokio::time::sleep(millis(self.world.below(400))).await;
        }
        self.note("stops");
    }

    async fn obtain(&self, acquire: Acquire, wait: Duration) -> Option<Arc<Lease>> {
        // Some give up half-way.
        let patience = if self.world.below(6) == 0 { millis(self.world.below(3_000)) } else { secs(60) };
        let acquiring = async { tokio::time::timeout(patience, acquire).await };
        match self.within("acquires", wait + OPERATION, acquiring).await {
            Ok(Ok(lease)) => {
                self.world.count(if wait.is_zero() { "granted" } else { "granted to one who would wait" });
                Some(self.believe(lease))
            }
            Ok(Err(error)) => {
                self.note(&format!("is told: {error}"));
                self.world.count(match error {
                    Error::Held { .. } if wait.is_zero() => "refused",
                    Error::Held { .. } => "waited in vain",
                    Error::Unavailable { .. } => "not answered",
                    other => panic!("{other:?}"),
                });
                None
            }
            Err(_elapsed) => {
                self.world.count("an acquire is dropped");
                None
            }
        }
    }

    async fn resume(&self, resume: Resume) -> Option<Arc<Lease>> {
        match self.within("resumes", OPERATION, resume).await {
            Ok(lease) => {
                self.world.count("resumed");
                Some(self.believe(lease))
            }
            Err(Error::Lost { .. }) => {
                self.world.count("resumed too late");
                None
            }
            Err(Error::Unavailable { .. }) => {
                self.world.count("a resume is not answered");
                None
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Notes that this process holds the lease.
    fn believe(&self, lease: Lease) -> Arc<Lease> {
        self.note(&format!("holds {:?} with {}", lease.key(), lease.token()));
        let lease = Arc::new(lease);
        self.beliefs.0.lock().unwrap().push((self.number, Arc::downgrade(&lease)));
        self.beliefs.check(&self.world);
        lease
    }

    async fn hold(&self, lease: Arc<Lease>) {
        for _ in 0..self.world.below(4) {
            tokio::time::sleep(millis(self.world.below(3_000))).await;
            self.beliefs.check(&self.world);
            if lease.state() == LeaseState::AtRisk {
                self.world.count("at risk");
                self.note(&format!("is at risk of {:?}", lease.key()));
            }
            match self.world.below(6) {
                0 => drop(self.within("refreshes", OPERATION, lease.refresh()).await),
                1 => drop(self.within("verifies", OPERATION, lease.verify()).await),
                2 => drop(self.within("extends", OPERATION, lease.extend(millis(LONGEST))).await),
                _ => {}
            }
        }
        if let LeaseState::Lost { cause } = lease.state() {
            self.world.count("lost");
            if cause == LossCause::Expired {
                self.world.count("lost by expiry");
            }
        }
        let lease = Arc::into_inner(lease).expect("others only look");
        match self.world.below(9) {
            0 => {
                self.world.count("left to its ttl");
                lease.orphan();
            }
            1 => {
                self.world.count("dropped");
                drop(lease);
            }
            2 => self.transfer(lease).await,
            3 => {
                let released = self.within("releases a group", OPERATION, self.seal.release_group(self.group())).await;
                self.world.count(if released.is_ok() { "a group is released" } else { "a group is not released" });
            }
            4 => {
                let refreshing = async { self.seal.refresh_group(self.group(), millis(LONGEST)).await };
                let refreshed = self.within("refreshes a group", OPERATION, refreshing).await;
                self.world.count(if refreshed.is_ok() { "a group is refreshed" } else { "a group is not refreshed" });
            }
            _ => match self.within("releases", OPERATION, lease.release()).await {
                Ok(ReleaseOutcome::Released) => self.world.count("released"),
                Ok(_) => self.world.count("released too late"),
                Err(_) => self.world.count("not released"),
            },
        }
    }

    async fn transfer(&self, lease: Lease) {
        let to = LeaseId::random();
        let key = lease.key().clone();
        if let Ok(token) = self.within("transfers", OPERATION, lease.transfer(to)).await {
            self.note(&format!("has given {key:?} away, with {token}"));
            self.world.count("transferred");
            if self.world.below(4) > 0 {
                self.given.lock().unwrap().push((key, to, token));
            }
        }
    }

    /// Shuts down, whatever it holds.
    pub(crate) async fn shut_down(&self) {
        self.world.count("shut down");
        self.within("shuts down", OPERATION + millis(100), self.seal.shutdown()).await;
    }
}
