//! The link between a process and the store: requests are delayed, lost, duplicated or cut off.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use mongoseal::{
    Clock, Deadline, Error, FencingToken, HandleId, HybridTime, Key, LeaseId, Result, StoreTime,
    record::{self, BatchRequest, Filter, LeaseRefs, Position, Record, Request, StoreClock},
    store::{
        Applied, BoxFuture, ExpiredPage, MemoryStore, Notification, Page, PrefixState, RecordState, Snapshot, Store,
    },
};
use tokio::sync::mpsc::{Sender, UnboundedSender, unbounded_channel};

use crate::millis;

/// What all processes share: the store, chance, and what was seen.
pub(crate) struct World {
    pub(crate) records: MemoryStore,
    pub(crate) rng: Mutex<Rng>,
    /// Whether things still go wrong.
    pub(crate) faulty: Mutex<bool>,
    pub(crate) trace: Mutex<Vec<String>>,
    pub(crate) seen: Mutex<BTreeMap<&'static str, usize>>,
    /// The last grant of each key, as the store made it.
    last: Mutex<HashMap<Key, (LeaseId, FencingToken)>>,
    /// How records were some time ago, as a deposed primary has them.
    past: Mutex<HashMap<Key, (Record, StoreClock)>>,
}

impl World {
    pub(crate) fn new(seed: u64, retention: Duration) -> Arc<Self> {
        Arc::new(Self {
            records: MemoryStore::new(retention),
            rng: Mutex::new(Rng::with_seed(seed)),
            faulty: Mutex::new(true),
            trace: Mutex::default(),
            seen: Mutex::default(),
            last: Mutex::default(),
            past: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.records.clock().now()
    }

    /// A number below this one.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap().u64(..bound)
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.seen.lock().unwrap().entry(what).or_default() += 1;
    }

    pub(crate) fn note(&self, what: impl fmt::Display) {
        self.trace.lock().unwrap().push(format!("{:?} {what}", self.now()));
    }

    /// Applies a request, and checks that it did what it may to whom it may. All in one poll, so at once.
    async fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> Result<Applied> {
        let before = self.record(key).await;
        let applied = self.records.apply(key, request.clone(), deadline).await?;
        let at = applied.at.expect("the memory store tells the time");
        let after = self.record(key).await;
        for held in before.iter().flat_map(|before| &before.holders).filter(|held| held.expires_at > at.now) {
            let theirs = request.lease() == Some(held.terms.lease);
            let named = match &request {
                Request::Release(release) => theirs && release.token == held.version,
                Request::Leave(leave) => theirs && leave.caller == held.terms.caller,
                Request::Transfer(transfer) => theirs && transfer.token == held.version,
                Request::Revoke(revoke) => held.version <= revoke.upto,
                _ => false,
            };
            let kept = after.as_ref().and_then(|after| after.holder(held.terms.lease));
            let kept = kept.is_some_and(|kept| kept.version == held.version && kept.expires_at >= held.expires_at);
            assert!(kept || named, "I9: {request:?} touched {held:?}");
        }
        if before.is_none() && self.last.lock().unwrap().contains_key(key) && after.is_some() {
            self.count("a collected record is made again");
        }
        let mut last = self.last.lock().unwrap();
        for held in after.iter().flat_map(|after| &after.holders) {
            let grant = (held.terms.lease, held.version);
            let known = before.iter().flat_map(|before| &before.holders);
            if !known.into_iter().any(|known| (known.terms.lease, known.version) == grant) {
                self.note(format_args!("{key:?} is granted with {}", held.version));
                if let Some((_, newest)) = last.insert(key.clone(), grant) {
                    assert!(held.version > newest, "I1, I2: {key:?} is granted with {} after {newest}", held.version);
                }
            }
        }
        Ok(applied)
    }

    pub(crate) async fn record(&self, key: &Key) -> Option<Record> {
        let read = self.records.read(key, Deadline::after(self.records.clock(), millis(1)));
        read.await.unwrap().map(|Snapshot { record, .. }| *record)
    }

    /// Keeps how a record is, for later.
    async fn remember(&self, key: &Key) {
        if let Some(Snapshot { record, at }) =
            self.records.read(key, Deadline::after(self.records.clock(), millis(1))).await.unwrap()
        {
            self.past.lock().unwrap().insert(key.clone(), (*record, at));
        }
    }

    /// What a deposed primary answers: only what it need not write.
    fn stale(&self, key: &Key, request: &Request) -> Option<Applied> {
        let (record, at) = self.past.lock().unwrap().get(key).cloned()?;
        let (after, outcome) = record::apply(Some(&record), at, request);
        (after.as_ref() == Some(&record)).then_some(Applied { outcome, at: Some(at), changed: false, sent: None })
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is done after so long, and the answer takes so long.
    Takes(Duration, Duration),
    /// Nothing is done and an error comes.
    Fails,
    /// It is done, and an error comes.
    LosesReply,
    /// Nothing is done, and nothing comes.
    Hangs,
    /// It is done, and done again so much later.
    Twice(Duration),
    /// An old primary answers.
    Stale,
}

/// The way of one process to the store.
pub(crate) struct Link {
    pub(crate) world: Arc<World>,
    /// Until when it is cut off; for ever, once the process died.
    pub(crate) cut: Mutex<Duration>,
    /// The constant round trip of a process that is far away, of which nothing is lost.
    pub(crate) far: Option<Duration>,
    /// Whether a refresh is given up after a sixth of its ttl: a rule taken out, to see that somebody notices.
    pub(crate) short_attempts: bool,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

fn away() -> Error {
    Error::unavailable("the store is away")
}

impl Link {
    pub(crate) fn new(world: &Arc<World>, far: Option<Duration>, short_attempts: bool) -> Arc<Self> {
        Arc::new(Self { world: Arc::clone(world), cut: Mutex::default(), far, short_attempts })
    }

    /// How long the answer to a refresh is waited for.
    fn patience(&self, ttl: u64, deadline: Deadline) -> Deadline {
        if self.short_attempts { deadline.or_after(millis(ttl / 6)) } else { deadline }
    }

    fn is_cut(&self) -> bool {
        *self.cut.lock().unwrap() > self.world.now()
    }

    fn fate(&self) -> Fate {
        if let Some(round_trip) = self.far {
            return Fate::Takes(round_trip / 2, round_trip / 2);
        }
        let mut rng = self.world.rng.lock().unwrap();
        let quick = |rng: &mut Rng| millis(rng.u64(..8));
        if !*self.world.faulty.lock().unwrap() {
            return Fate::Takes(quick(&mut rng), quick(&mut rng));
        }
        let long = |rng: &mut Rng| millis(rng.u64(..9_000));
        match rng.u8(..40) {
            0 | 1 => Fate::Fails,
            2 | 3 => Fate::LosesReply,
            4 => Fate::Hangs,
            5 | 6 => Fate::Takes(long(&mut rng), Duration::ZERO),
            7 | 8 => Fate::Takes(Duration::ZERO, long(&mut rng)),
            9 => Fate::Twice(long(&mut rng)),
            10 | 11 => Fate::Stale,
            _ => Fate::Takes(quick(&mut rng), quick(&mut rng)),
        }
    }

    /// Sends what is done on a task of its own, as a network does: it is done though nobody waits.
    fn send<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl Fn() -> BoxFuture<Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let (world, cut, fate) = (Arc::clone(&self.world), self.is_cut(), self.fate());
        Box::pin(async move {
            let busy = Arc::clone(&world);
            let doing = tokio::spawn(async move {
                match fate {
                    _ if cut => std::future::pending().await,
                    Fate::Takes(before, after) => {
                        tokio::time::sleep(before).await;
                        if deadline.has_passed() {
                            busy.count("a ghost arrives");
                        }
                        let answer = work().await;
                        tokio::time::sleep(after).await;
                        answer
                    }
                    Fate::Fails | Fate::Stale => Err(away()),
                    Fate::LosesReply => {
                        busy.count("a reply is lost");
                        work().await.and(Err(away()))
                    }
                    Fate::Hangs => std::future::pending().await,
                    Fate::Twice(later) => {
                        let answer = work().await;
                        tokio::spawn(async move {
                            tokio::time::sleep(later).await;
                            busy.count("a request is done twice");
                            drop(work().await);
                        });
                        answer
                    }
                }
            });
            match tokio::time::timeout(deadline.remaining(), doing).await {
                Ok(answer) => answer.unwrap(),
                Err(_elapsed) => {
                    world.count("a request times out");
                    Err(away())
                }
            }
        })
    }
}

impl Store for Link {
    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.send(deadline, || Box::pin(async { Ok(()) }))
    }

    fn apply(&self, key: &Key, request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let (world, key) = (Arc::clone(&self.world), key.clone());
        let deadline = match &request {
            Request::Refresh(refresh) => self.patience(refresh.ttl, deadline),
            _ => deadline,
        };
        if *world.faulty.lock().unwrap()
            && !self.is_cut()
            && world.below(25) == 0
            && let Some(stale) = world.stale(&key, &request)
        {
            world.count("an old primary answers");
            return Box::pin(async { Ok(stale) });
        }
        let remembers = world.below(10) == 0;
        self.send(deadline, move || {
            let (world, key, request) = (Arc::clone(&world), key.clone(), request.clone());
            Box::pin(async move {
                let applied = world.apply(&key, request, deadline).await;
                if remembers {
                    world.remember(&key).await;
                }
                applied
            })
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, joint: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (world, leases, joint) = (Arc::clone(&self.world), leases.clone(), joint.clone());
        let deadline = match &joint {
            BatchRequest::Keep { ttl } => self.patience(*ttl, deadline),
            _ => deadline,
        };
        self.send(deadline, move || world.records.apply_batch(&leases, &joint, deadline))
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let (world, key) = (Arc::clone(&self.world), key.clone());
        self.send(deadline, move || world.records.read(&key, deadline))
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        let world = Arc::clone(&self.world);
        self.send(deadline, move || world.records.now(deadline))
    }

    fn list(
        &self,
        selection: &Filter,
        after: Option<Position>,
        most: u32,
        deadline: Deadline,
    ) -> BoxFuture<Result<Page>> {
        let (world, selection) = (Arc::clone(&self.world), selection.clone());
        self.send(deadline, move || world.records.list(&selection, after.clone(), most, deadline))
    }

    fn list_expired(&self, after: Option<String>, most: u32, deadline: Deadline) -> BoxFuture<Result<ExpiredPage>> {
        let world = Arc::clone(&self.world);
        self.send(deadline, move || world.records.list_expired(after.clone(), most, deadline))
    }

    fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (world, key) = (Arc::clone(&self.world), key.clone());
        self.send(deadline, move || world.records.delete_idle(&key, version, deadline))
    }

    fn watch(&self, handle: HandleId, since: HybridTime, tell: UnboundedSender<Notification>) -> BoxFuture<Result<()>> {
        let world = Arc::clone(&self.world);
        let (fate, breaks) = (world.below(8), millis(world.below(20_000)));
        let faulty = *world.faulty.lock().unwrap();
        if self.is_cut() || (faulty && fate == 0) {
            return Box::pin(async { Err(away()) });
        }
        let (first, mut told) = unbounded_channel();
        let watching = world.records.watch(handle, since, first);
        Box::pin(async move {
            let relaying = async {
                while let Some(what) = told.recv().await {
                    let is_lost = *world.faulty.lock().unwrap() && world.below(8) == 0;
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

    fn follow(&self, key: &Key, tell: Sender<RecordState>) -> BoxFuture<Result<()>> {
        self.world.records.follow(key, tell)
    }

    fn follow_prefix(&self, prefix: &str, known: Vec<Key>, tell: Sender<PrefixState>) -> BoxFuture<Result<()>> {
        self.world.records.follow_prefix(prefix, known, tell)
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.world.records.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.world.records.clock()
    }

    fn retention(&self) -> Duration {
        self.world.records.retention()
    }
}
