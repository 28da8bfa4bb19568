//! Who believes to hold a key, and what is always true about it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use mongoseal::{
    FencingToken, Key, Lease, LeaseId, LeaseState, StateStream,
    record::{self, Holder, Record, Request, StoreClock},
};

use crate::{
    choices::Choice,
    millis,
    program::{KEYS, Step},
    world::World,
};

/// How soon a living waiter is granted an available key, and a holder learns of its revocation, if nothing goes wrong. On a
/// server many programs run at once.
fn soon(world: &World) -> Duration {
    if world.is_on_server() { millis(750) } else { millis(50) }
}

/// How often the rules are checked.
fn every(world: &World) -> Duration {
    if world.is_on_server() { millis(250) } else { millis(25) }
}

/// A lease that a process was granted.
#[derive(Clone)]
pub(crate) struct Belief {
    process: u64,
    step: Step,
    key: Key,
    pub(crate) token: FencingToken,
    since: Duration,
    /// How many may hold the key with it.
    limit: Arc<AtomicU32>,
    /// Whether work runs that the library was told of.
    is_at_work: Arc<AtomicBool>,
    /// When it was first seen to be over, in milliseconds.
    over: Arc<AtomicU64>,
    state: Arc<StateStream>,
    is_on_server: bool,
}

impl Belief {
    pub(crate) fn state(&self) -> LeaseState {
        self.state.get()
    }

    fn is_valid(&self) -> bool {
        matches!(self.state(), LeaseState::Held | LeaseState::AtRisk)
    }

    /// Whether it excludes other holders: it is valid, or it has ended and its work has not. After a shutdown the key
    /// stays held for such work until the ttl is over, of which a third has passed at most.
    fn is_active(&self, now: Duration) -> bool {
        // On a server the end is seen too late to know how much of the ttl is left.
        if self.is_valid() || self.is_on_server {
            return self.is_valid();
        }
        let now = u64::try_from(now.as_millis()).unwrap();
        let over = match self.over.compare_exchange(u64::MAX, now, Relaxed, Relaxed) {
            Ok(_) => now,
            Err(over) => over,
        };
        let is_any = |choices: &[Choice]| choices.iter().any(|choice| self.step.has(*choice));
        let ttl = match () {
            // Nothing is known about what is left of it.
            () if is_any(&[Choice::RefreshedByHand, Choice::AtMost4s, Choice::Resumes]) => 0,
            () if is_any(&[Choice::Ttl1s]) => 1_000,
            () => 3_000,
        };
        self.is_at_work.load(Relaxed) && now < over + ttl / 2
    }

    /// Whether the store has made this the holder by an upgrade, whose answer is under way to the process.
    fn is_upgraded_to(&self, held: &Holder) -> bool {
        let is_of_process = held.terms.owner.as_str() == format!("process-{}", self.process);
        let is_later = held.version > self.token && held.terms.sharing.is_exclusive();
        self.step.has(Choice::Upgrades) && is_of_process && is_later
    }

    /// From now on others may share the key.
    pub(crate) fn share(&self, holders: u32) {
        self.limit.store(holders, Relaxed);
    }

    /// Work under the lease, until the value is dropped.
    pub(crate) fn work(&self) -> AtWork {
        self.is_at_work.store(true, Relaxed);
        AtWork(Arc::clone(&self.is_at_work))
    }

    fn describe(&self) -> String {
        let Self { process, step, key, token, .. } = self;
        format!("process {process} with {token} of {key:?}, {:?} by {:?}", self.state(), step.choices)
    }
}

/// Work that runs.
pub(crate) struct AtWork(Arc<AtomicBool>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// All beliefs of a program.
#[derive(Default)]
pub(crate) struct Beliefs {
    all: Mutex<Vec<Belief>>,
    /// Since when the store would grant a key to this waiter, and has not.
    available: Mutex<BTreeMap<Key, (LeaseId, Duration)>>,
}

impl Beliefs {
    pub(crate) fn add(&self, world: &World, process: u64, step: &Step, lease: &Lease, limit: u32) -> Belief {
        let belief = Belief {
            process,
            step: step.clone(),
            key: lease.key().clone(),
            token: lease.token(),
            since: world.now(),
            limit: Arc::new(AtomicU32::new(limit)),
            is_at_work: Arc::default(),
            over: Arc::new(AtomicU64::new(u64::MAX)),
            state: Arc::new(lease.watch_state()),
            is_on_server: world.is_on_server(),
        };
        self.all.lock().unwrap().push(belief.clone());
        self.check_exclusion(world);
        belief
    }

    /// A process is gone, and believes nothing any more.
    pub(crate) fn forget(&self, process: u64) {
        self.all.lock().unwrap().retain(|belief| belief.process != process);
    }

    /// At most one believes in a key, or works on it, or as many as the smallest limit. Who was revoked does not count.
    fn check_exclusion(&self, world: &World) {
        let now = world.now();
        let all: Vec<Belief> = {
            let mut all = self.all.lock().unwrap();
            all.retain(|belief| belief.is_active(now));
            all.clone()
        };
        for belief in &all {
            let others = |other: &&Belief| other.key == belief.key && world.excused(&other.key, other.token).is_none();
            // On a server, one of them can end while the next one begins.
            let rivals: Vec<_> = all.iter().filter(others).filter(|rival| rival.is_active(now)).collect();
            let most = rivals.iter().map(|rival| rival.limit.load(Relaxed)).min().unwrap_or(u32::MAX);
            assert!(
                rivals.len() <= usize::try_from(most).unwrap(),
                "exclusion: at {:?} there are {:#?}",
                world.now(),
                rivals.iter().map(|rival| rival.describe()).collect::<Vec<_>>()
            );
        }
    }

    /// A belief never outlives the store's record of it.
    /// The record is as it was at some time after `began`.
    fn check_record(&self, key: &Key, record: Option<&Record>, at: StoreClock, began: Duration, world: &World) {
        let all = self.all.lock().unwrap().clone();
        let is_calm = world.is_calm();
        let (soon, every) = (soon(world), every(world));
        let is_meant = |belief: &&Belief| belief.key == *key && belief.since <= began && belief.is_valid();
        for belief in all.iter().filter(is_meant) {
            if let Some(since) = world.excused(key, belief.token) {
                // The notifier reads the changes once a lease is held for a second.
                let known = since.max(belief.since + millis(1_000)) + soon;
                assert!(
                    !is_calm || world.now() <= known + every,
                    "revocation: {} still believes at {:?}, and was revoked at {since:?}",
                    belief.describe(),
                    world.now(),
                );
                continue;
            }
            let held = record.into_iter().flat_map(|record| &record.holders);
            let is_held = held.into_iter().any(|held| {
                let is_its = held.version == belief.token || belief.is_upgraded_to(held);
                is_its && held.expires_at > at.now && held.released_at.is_none()
            });
            assert!(is_held, "belief: {} is not in {record:?} at {:?}", belief.describe(), world.now());
        }
    }

    /// If nothing goes wrong, a waiter is granted a key soon after the record makes it available.
    fn check_liveness(&self, key: &Key, record: Option<&Record>, at: StoreClock, world: &World) {
        let next = record.and_then(|record| {
            let (after, _) = record::apply(Some(record), at, &Request::Prune);
            let is_granted = |lease| after.as_ref().is_some_and(|after| after.holder(lease).is_some());
            record.queue.iter().find(|waiter| is_granted(waiter.terms.lease))
        });
        let Some((record, next)) = record.zip(next).filter(|_| world.is_calm()) else {
            self.available.lock().unwrap().remove(key);
            return;
        };
        let lease = next.terms.lease;
        let since = {
            let mut available = self.available.lock().unwrap();
            let (of, since) = available.entry(key.clone()).or_insert_with(|| (lease, world.now()));
            if *of != lease {
                (*of, *since) = (lease, world.now());
            }
            *since
        };
        // A waiter that became the first by a hand-over does not know that it is, and learns with its next request when the
        // holder's time is over: see `Acquire::wait`.
        let knows = record.holders.iter().all(|held| held.since <= next.last_seen);
        let is_due = at.now > next.last_seen.after(next.wait_ttl / 3 + 50);
        assert!(
            world.now() <= since + soon(world) || !(knows || is_due),
            "liveness: {key:?} is available since {since:?}, and the waiter of {:?} is not granted at {:?}: {record:?}",
            next.terms.owner,
            world.now()
        );
    }

    async fn check(&self, world: &World) {
        self.check_exclusion(world);
        for key in KEYS {
            let key = key.parse().unwrap();
            let began = world.now();
            let snapshot = world.snapshot(&key).await;
            world.note_answer(world.now() - began);
            let Some((record, at)) = snapshot else {
                self.available.lock().unwrap().remove(&key);
                continue;
            };
            self.check_record(&key, record.as_ref(), at, began, world);
            self.check_liveness(&key, record.as_ref(), at, world);
        }
        world.ensure_unbroken();
        if world.is_on_server() {
            world.count(if world.is_slow() { "checks while it was slow" } else { "checks" });
        }
    }

    /// Checks the rules again and again.
    pub(crate) async fn keep_checking(&self, world: &World) {
        loop {
            self.check(world).await;
            tokio::time::sleep(every(world)).await;
        }
    }
}
