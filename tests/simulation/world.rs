//! What all processes of a simulation share: the records, chance, what was seen, and the checks of each change.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
};
use mongoseal::{
    Builder, FencingToken, Key, LeaseId, Mongoseal, Result,
    inspect::StoreTime,
    record::{self, BatchRequest, Holder, LeaseRefs, Outcome, Record, Request, StoreClock},
    store::{Applied, BoxFuture, Clock, Deadline, HybridTime, MemoryStore, Snapshot, Store},
};

use crate::{
    choices::Choice,
    millis,
    run::{Place, Weather, message},
    table::Table,
};

/// Where the records are.
pub(crate) enum Records {
    Memory(MemoryStore),
    Table(Table),
    Server(Server),
}

/// Opens a handle with a client of its own.
type Connect = dyn Fn(Choice, Builder) -> BoxFuture<Result<Mongoseal>> + Send + Sync;

/// The collection of a program on a real server, in real time.
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

/// How long the calm rules are lenient after a server or this machine was slow.
const LENIENT: Duration = millis(10_000);
/// An answer that takes longer is slow. On paused time none does.
const SLOW: Duration = millis(150);

pub(crate) struct World {
    pub(crate) records: Records,
    pub(crate) weather: Weather,
    clock: Clock,
    pub(crate) rng: Mutex<Rng>,
    /// Whether things still go wrong.
    pub(crate) faulty: Mutex<bool>,
    trace: Mutex<Vec<String>>,
    pub(crate) seen: Mutex<BTreeMap<&'static str, usize>>,
    /// The first check that failed in a task whose panic no test receives.
    broken: Mutex<Option<String>>,
    /// The grants of each key, as the store made them.
    grants: Mutex<HashMap<Key, Grants>>,
    /// How records were some time ago, as a deposed primary has them.
    past: Mutex<HashMap<Key, (Record, StoreClock)>>,
    /// Up to which token an operator has ended the leases of a key on a server, and when.
    revoked: Mutex<HashMap<Key, (FencingToken, Duration)>>,
    /// The acknowledged writes of each key's document, by their tokens.
    written: Mutex<HashMap<Key, BTreeMap<i64, usize>>>,
    /// When a server last answered slowly, and when this machine last did not run.
    answered_slowly: Mutex<Option<Duration>>,
    stalled: Mutex<Option<Duration>>,
}

/// The grants of a key.
#[derive(Default)]
struct Grants {
    tokens: HashMap<FencingToken, LeaseId>,
    newest: Option<FencingToken>,
    /// The leases that an operator ended, and when.
    excused: HashMap<FencingToken, Duration>,
    /// How many may hold the key beside each token, it included.
    limits: HashMap<FencingToken, u32>,
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather, records: Records) -> Arc<Self> {
        let clock = match &records {
            Records::Memory(store) => store.clock(),
            Records::Table(table) => table.clock(),
            Records::Server(server) => server.judge.clock(),
        };
        Arc::new(Self {
            records,
            weather,
            clock,
            rng: Mutex::new(Rng::with_seed(seed)),
            faulty: Mutex::new(weather == Weather::Faulty),
            trace: Mutex::default(),
            seen: Mutex::default(),
            broken: Mutex::default(),
            grants: Mutex::default(),
            past: Mutex::default(),
            revoked: Mutex::default(),
            written: Mutex::default(),
            answered_slowly: Mutex::default(),
            stalled: Mutex::default(),
        })
    }

    pub(crate) fn place(&self) -> Place {
        match &self.records {
            Records::Memory(_) => Place::Memory,
            Records::Table(_) => Place::Table,
            Records::Server(server) => server.place,
        }
    }

    fn server(&self) -> &Server {
        let Records::Server(server) = &self.records else { unreachable!("only a program on servers chooses it") };
        server
    }

    /// Opens a handle with a client of its own.
    pub(crate) async fn connect(&self, which: Choice, builder: Builder) -> Result<Mongoseal> {
        (self.server().connect)(which, builder).await
    }

    /// What is written under leases.
    pub(crate) fn documents(&self) -> &Collection<Document> {
        let [documents, _] = self.server().documents.as_ref().expect("only a program on MongoDB writes");
        documents
    }

    /// Notes an acknowledged write to the document of a key.
    pub(crate) fn note_written(&self, key: &Key, token: FencingToken) {
        self.count("a document is written");
        *self.written.lock().unwrap().entry(key.clone()).or_default().entry(i64::from(token)).or_default() += 1;
    }

    /// The document of a key has each acknowledged write, and no write of an earlier token after one of a later token.
    pub(crate) async fn check_document(&self, key: &Key) -> mongodb::error::Result<()> {
        let Records::Server(Server { documents: Some([_, documents]), .. }) = &self.records else { return Ok(()) };
        let found = documents.find_one(doc! { "_id": key.as_str() }).await?.unwrap_or_default();
        let tokens = found.get_array("tokens").map(Vec::as_slice).unwrap_or_default();
        let tokens: Vec<i64> = tokens.iter().filter_map(Bson::as_i64).collect();
        assert!(tokens.is_sorted(), "fence: the document of {key:?} was written in the order {tokens:?}");
        let written = self.written.lock().unwrap().remove(key).unwrap_or_default();
        for (token, times) in written {
            let there = tokens.iter().filter(|there| **there == token).count();
            assert!(there >= times, "fence: {times} writes under {token} of {key:?} are not all there: {tokens:?}");
        }
        Ok(())
    }

    pub(crate) fn is_on_server(&self) -> bool {
        matches!(self.records, Records::Server(_))
    }

    /// Notes how long an answer of a server took.
    pub(crate) fn note_answer(&self, took: Duration) {
        if took > SLOW {
            self.count("a server answers slowly");
            *self.answered_slowly.lock().unwrap() = Some(self.now());
        }
    }

    /// Notes for how long this machine did not run.
    pub(crate) fn note_stall(&self, took: Duration) {
        if took > SLOW {
            self.count("a stall");
            *self.stalled.lock().unwrap() = Some(self.now());
        }
    }

    fn is_recent(&self, at: &Mutex<Option<Duration>>) -> bool {
        at.lock().unwrap().is_some_and(|at| self.now().saturating_sub(at) < LENIENT)
    }

    /// Whether this machine did not run a moment ago.
    pub(crate) fn has_stalled(&self) -> bool {
        self.is_recent(&self.stalled)
    }

    /// Whether it, or a server, was slow a moment ago.
    pub(crate) fn is_slow(&self) -> bool {
        self.has_stalled() || self.is_recent(&self.answered_slowly)
    }

    /// Whether nothing goes wrong, all the time, and nothing was slow a moment ago.
    pub(crate) fn is_calm(&self) -> bool {
        self.weather == Weather::Calm && !self.is_slow()
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now().since_origin()
    }

    pub(crate) fn is_faulty(&self) -> bool {
        *self.faulty.lock().unwrap()
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

    /// What was noted, also if a check has failed.
    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies a request to the memory store, and checks the change. All in one poll, so at once.
    pub(crate) async fn apply(
        &self,
        store: &dyn Store,
        key: &Key,
        request: Request,
        deadline: Deadline,
    ) -> Result<Applied> {
        let before = self.record(key).await;
        let applied = store.apply(key, request.clone(), deadline).await?;
        let at = applied.at.expect("the memory store tells the time");
        let after = self.record(key).await;
        if let Request::Revoke(revoke) = &request {
            let held = before.iter().flat_map(|before| &before.holders).map(|held| held.version);
            self.excuse(key, held.filter(|token| *token <= revoke.upto));
        }
        self.check_holders(before.as_ref(), after.as_ref(), at.now, |held| may_end(&request, held));
        if let Some(after) = after {
            self.check_grants(key, before.as_ref(), &after);
        }
        Ok(applied)
    }

    /// The same of a batch.
    pub(crate) async fn apply_batch(
        &self,
        store: &dyn Store,
        leases: &LeaseRefs,
        batch: &BatchRequest,
        deadline: Deadline,
    ) -> Result<bool> {
        let mut before = Vec::new();
        for (key, tokens) in leases {
            if let BatchRequest::Revoke { .. } = batch {
                self.excuse(key, tokens.iter().copied());
            }
            before.push(self.record(key).await);
        }
        let applied = store.apply_batch(leases, batch, deadline).await;
        for ((key, _), before) in leases.iter().zip(before) {
            if let Some(after) = self.record(key).await {
                self.check_grants(key, before.as_ref(), &after);
            }
        }
        applied
    }

    pub(crate) async fn record(&self, key: &Key) -> Option<Record> {
        self.snapshot(key).await.and_then(|(record, _)| record)
    }

    /// I9: a change touches no live holder, except those that its request may end.
    pub(crate) fn check_holders(
        &self,
        before: Option<&Record>,
        after: Option<&Record>,
        now: StoreTime,
        may_end: impl Fn(&Holder) -> bool,
    ) {
        for held in before.into_iter().flat_map(|before| &before.holders).filter(|held| held.expires_at > now) {
            let mut kept = after.into_iter().flat_map(|after| &after.holders);
            let kept = kept.any(|kept| {
                (kept.terms.lease, kept.version) == (held.terms.lease, held.version)
                    && kept.expires_at >= held.expires_at
            });
            assert!(kept || may_end(held), "I9: a request touched {held:?} at {:?}", self.now());
        }
    }

    /// Runs checks in a task whose panic no test receives. [`ensure_unbroken`](Self::ensure_unbroken) reports it.
    pub(crate) fn checked<T>(&self, check: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
            self.broken.lock().unwrap().get_or_insert_with(|| message(&*panic));
            resume_unwind(panic)
        })
    }

    pub(crate) fn ensure_unbroken(&self) {
        let broken = self.broken.lock().unwrap().clone();
        assert!(broken.is_none(), "{}", broken.unwrap_or_default());
    }

    /// I11: a change brings no lease whose caller does not wait. So an abandoned request is never sent.
    pub(crate) fn check_comers(
        &self,
        before: Option<&Record>,
        after: Option<&Record>,
        may_come: impl Fn(LeaseId) -> bool,
    ) {
        let leases = |record: Option<&Record>| -> Vec<LeaseId> {
            let Some(Record { holders, queue, .. }) = record else { return Vec::new() };
            let holders = holders.iter().filter(|holder| holder.released_at.is_none()).map(|holder| holder.terms.lease);
            holders.chain(queue.iter().map(|waiter| waiter.terms.lease)).collect()
        };
        let known = leases(before);
        for lease in leases(after).into_iter().filter(|lease| !known.contains(lease)) {
            assert!(may_come(lease), "I11: the abandoned acquire of {lease:?} was sent at {:?}", self.now());
        }
    }

    /// I12: the answer to a request is its own.
    pub(crate) fn check_answer(&self, key: &Key, request: &Request, outcome: &Outcome) {
        let (Some(lease), Outcome::Granted { token, .. } | Outcome::Refreshed { token }) = (request.lease(), outcome)
        else {
            return;
        };
        let granted = self.grants.lock().unwrap().get(key).and_then(|grants| grants.tokens.get(token)).copied();
        assert!(granted == Some(lease), "I12: the answer to {request:?} has the token of another lease");
    }

    /// I1, I2: tokens grow and never repeat.
    pub(crate) fn check_grants(&self, key: &Key, before: Option<&Record>, after: &Record) {
        let mut all = self.grants.lock().unwrap();
        let grants = all.entry(key.clone()).or_default();
        if before.is_none() && grants.newest.is_some() {
            self.count("a collected record is made again");
        }
        // A lease that was released before its minimum hold was over stays as an entry of no lease.
        for held in after.holders.iter().filter(|held| held.released_at.is_none()) {
            grants.limits.insert(held.version, held.terms.sharing.limit().max(1));
            let known = before.into_iter().flat_map(|before| &before.holders);
            if known.into_iter().any(|known| (known.terms.lease, known.version) == (held.terms.lease, held.version)) {
                continue;
            }
            let token = held.version;
            self.note(format_args!("{key:?} is granted with {token}"));
            assert!(
                grants.tokens.insert(token, held.terms.lease).is_none(),
                "I1: {key:?} is granted twice with {token}"
            );
            assert!(grants.newest < Some(token), "I2: {key:?} is granted with {token} after {:?}", grants.newest);
            grants.newest = Some(token);
        }
    }

    /// Notes that an operator has deleted this record. Its holders are excused: they learn of it with their next refresh.
    pub(crate) fn forget_record(&self, key: &Key, record: Option<&Record>, now: StoreTime) {
        let holders = record.into_iter().flat_map(|record| &record.holders);
        let held: Vec<_> = holders.filter(|held| held.expires_at > now).map(|held| held.version).collect();
        self.note(format_args!("an operator deletes the record of {key:?}"));
        self.count("an operator deletes a record");
        if !held.is_empty() {
            self.count("an operator deletes a held key");
        }
        self.excuse(key, held);
    }

    /// Notes that an operator has ended the leases with these tokens now.
    pub(crate) fn excuse(&self, key: &Key, tokens: impl IntoIterator<Item = FencingToken>) {
        let mut all = self.grants.lock().unwrap();
        let excused = &mut all.entry(key.clone()).or_default().excused;
        for token in tokens {
            excused.entry(token).or_insert_with(|| self.now());
        }
    }

    /// Whether an operator has ended no lease.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.grants.lock().unwrap().values().all(|grants| grants.excused.is_empty())
    }

    /// Notes that an operator ends all leases of a key up to this token, now.
    pub(crate) fn revoke(&self, key: &Key, upto: FencingToken) {
        let mut revoked = self.revoked.lock().unwrap();
        let (last, at) = revoked.entry(key.clone()).or_insert((upto, self.now()));
        if *last < upto {
            (*last, *at) = (upto, self.now());
        }
    }

    /// When an operator ended the lease with this token, if one has.
    pub(crate) fn excused(&self, key: &Key, token: FencingToken) -> Option<Duration> {
        let by_token = self.grants.lock().unwrap().get(key).and_then(|grants| grants.excused.get(&token)).copied();
        let revoked = self.revoked.lock().unwrap().get(key).copied();
        by_token.or_else(|| revoked.filter(|(upto, _)| token <= *upto).map(|(_, at)| at))
    }

    /// How many may hold the key beside this token, it included.
    pub(crate) fn limit(&self, key: &Key, token: FencingToken) -> u32 {
        let unknown = if self.is_on_server() { u32::MAX } else { 1 };
        self.grants.lock().unwrap().get(key).and_then(|grants| grants.limits.get(&token)).copied().unwrap_or(unknown)
    }

    /// I1, on a server, whose grants are known by those who believe in them: no token repeats.
    pub(crate) fn note_believed(&self, key: &Key, lease: LeaseId, token: FencingToken, limit: u32) {
        if self.is_on_server() {
            let mut all = self.grants.lock().unwrap();
            let grants = all.entry(key.clone()).or_default();
            grants.limits.insert(token, limit);
            assert!(grants.tokens.insert(token, lease).is_none(), "I1: {key:?} is granted twice with {token}");
        }
    }

    /// The tokens of a key, in the order of their grants.
    pub(crate) fn tokens(&self, key: &Key) -> BTreeSet<FencingToken> {
        self.grants.lock().unwrap().get(key).into_iter().flat_map(|grants| grants.tokens.keys().copied()).collect()
    }

    /// The record of a key and the store's clock. `None`: a server does not answer.
    pub(crate) async fn snapshot(&self, key: &Key) -> Option<(Option<Record>, StoreClock)> {
        let read = match &self.records {
            Records::Memory(store) => store.read(key, Deadline::after(self.clock, millis(1))).await.unwrap(),
            Records::Table(table) => return Some(table.snapshot(self, key)),
            Records::Server(server) => server.judge.read(key, Deadline::after(self.clock, millis(2_000))).await.ok()?,
        };
        let (record, at) = read.map(|Snapshot { record, at }| (*record, at)).unzip();
        let unknown = StoreClock { now: StoreTime::default(), hlc: HybridTime { seconds: 0, ordinal: 0 } };
        Some((record, at.unwrap_or(unknown)))
    }

    /// Keeps how a record is, for later.
    pub(crate) async fn remember(&self, key: &Key) {
        if let Some((Some(record), at)) = self.snapshot(key).await {
            self.past.lock().unwrap().insert(key.clone(), (record, at));
        }
    }

    /// What a deposed primary answers: only what it need not write.
    pub(crate) fn stale(&self, key: &Key, request: &Request) -> Option<Applied> {
        let (record, at) = self.past.lock().unwrap().get(key).cloned()?;
        let (after, outcome) = record::apply(Some(&record), at, request);
        (after.as_ref() == Some(&record)).then_some(Applied { outcome, at: Some(at), changed: false, sent: None })
    }
}

/// Whether a request may end this holder.
pub(crate) fn may_end(request: &Request, held: &Holder) -> bool {
    let theirs = request.lease() == Some(held.terms.lease);
    match request {
        Request::Release(release) => theirs && release.token == held.version,
        Request::Leave(leave) => theirs && leave.acquire_id == held.terms.acquire_id,
        Request::Transfer(transfer) | Request::Upgrade(transfer) => theirs && transfer.token == held.version,
        Request::Complete(complete) => theirs && complete.token == held.version,
        Request::Revoke(revoke) => held.version <= revoke.upto,
        _ => false,
    }
}
