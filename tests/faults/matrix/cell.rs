//! One verb against one ambiguous result: the outcomes that are allowed, and the state that it may leave.

use std::{
    future::IntoFuture,
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use mongoseal::{
    BeginOutcome, Error, Lease, LossCause, Mongoseal, OnceOutcome, ReleaseOutcome, Result, Skipped, Tick,
    action::Acquire,
};
use mongoseal_test_support::{ReplicaSet, by_length, is_long};
use tokio::{
    sync::Barrier,
    time::{sleep, timeout},
};

use crate::{millis, secs};

/// How long the one asks who meets the fault.
pub(super) fn operation() -> Duration {
    by_length(secs(3), secs(1))
}

/// How much later than promised a call may return, which the night judges.
const LATE: Duration = secs(1);
const TICK: Tick = Tick::number(1);

/// Of the leases that meet the fault: longer than a tick's lease goes without a refresh while the fault is in force.
fn ttl() -> Duration {
    3 * operation() + by_length(secs(0), secs(1))
}

/// What meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Refresh,
    /// While somebody waits for the key.
    Release,
    /// The acquire that should be queued.
    Queue,
    /// The one that keeps a place in the queue, just when the key is released.
    HandOver,
    /// The completion of a tick whose work has ended.
    Complete,
}

pub(super) const VERBS: [Verb; 6] =
    [Verb::Acquire, Verb::Refresh, Verb::Release, Verb::Queue, Verb::HandOver, Verb::Complete];

/// A key, and who is there: who meets the fault, and somebody else.
pub(super) struct Cell {
    pub(super) verb: Verb,
    pub(super) key: String,
    pub(super) set: Arc<ReplicaSet>,
    pub(super) one: Mongoseal,
    pub(super) other: Mongoseal,
    /// How long after its end the fault lets a request arrive.
    pub(super) late: Duration,
    /// Whether the fault goes on for longer than anybody asks again, or passes.
    pub(super) lasts: bool,
    pub(super) is_slow: bool,
}

impl Cell {
    /// Prepares what the verb needs, lets the verb meet the fault, and checks what it came to and what is left. The fault is
    /// in force between the second stage and the third, and is over at the fourth.
    pub(super) async fn run(self, stages: Arc<Barrier>) {
        // So that there is a token before.
        self.other.acquire(&self.key).await.unwrap().release().await.unwrap();
        match self.verb {
            Verb::Acquire => {
                let began = armed(&stages).await;
                let came_to = self.mine().await;
                self.leaves(self.judge(&stages, began, operation(), came_to).await, began).await;
            }
            Verb::Refresh => {
                // Outlasts the others' turns.
                let lease = self.mine().ttl(secs(30)).await.unwrap();
                let began = armed(&stages).await;
                let came_to = lease.refresh().await;
                self.judge(&stages, began, operation(), came_to).await;
                // On a busy machine the first one after the fault may take longer than a second, too.
                while let Err(error) = lease.refresh().await {
                    let may_fail = matches!(error, Error::Unavailable { .. }) && began.elapsed() < secs(60);
                    assert!(may_fail, "{}: {error}", self.key);
                }
                self.leaves(Some(lease), began).await;
            }
            Verb::Release => {
                let lease = self.mine().await.unwrap();
                let next = tokio::spawn(self.theirs().wait(secs(30)).into_future());
                self.until_queued().await;
                let began = armed(&stages).await;
                let came_to = lease.release().await;
                let released = self.judge(&stages, began, operation(), came_to).await;
                // If somebody else was granted the key before this was asked again, it is over, by whatever.
                let is_over = matches!(released, None | Some(ReleaseOutcome::Released | ReleaseOutcome::Unknown));
                assert!(is_over, "{}: {released:?}", self.key);
                let lease = timeout(self.patience(), next).await.expect("it is handed over").unwrap().unwrap();
                // What arrives late of the release touches nobody else.
                sleep(self.late).await;
                lease.verify().await.unwrap();
                lease.release().await.unwrap();
            }
            Verb::Queue => {
                let holding = self.theirs().await.unwrap();
                let began = armed(&stages).await;
                let acquire = self.mine().wait(operation()).into_future();
                let ((), came_to) = tokio::join!(give_back(holding), acquire);
                self.leaves(self.judge(&stages, began, 2 * operation(), came_to).await, began).await;
            }
            Verb::HandOver => {
                let holding = self.theirs().await.unwrap();
                let (wait, began) = (operation() + secs(1), Instant::now());
                let waiting = tokio::spawn(self.mine().wait(wait).into_future());
                self.until_queued().await;
                // Shortly before it asks again to keep its place.
                sleep((ttl() / 3).saturating_sub(millis(300))).await;
                armed(&stages).await;
                let ((), came_to) = tokio::join!(give_back(holding), waiting);
                self.leaves(self.judge(&stages, began, wait + operation(), came_to.unwrap()).await, began).await;
            }
            Verb::Complete => {
                let ticked = self.one.once(&self.key, TICK).ttl(ttl()).begin().await.unwrap();
                let BeginOutcome::Started(tick) = ticked else { panic!("{}: {ticked:?}", self.key) };
                let began = armed(&stages).await;
                let came_to = tick.complete().await;
                let is_completed = self.judge(&stages, began, operation(), came_to).await.is_some();
                self.tick_runs_again(!is_completed).await;
            }
        }
        self.can_be_had().await;
    }

    fn mine(&self) -> Acquire {
        self.one.acquire(&self.key).ttl(ttl()).without_refresh()
    }

    fn theirs(&self) -> Acquire {
        self.other.acquire(&self.key).ttl(secs(60))
    }

    /// How long the key may be held by nobody.
    fn patience(&self) -> Duration {
        ttl() + self.late + secs(1) + by_length(secs(60), secs(0))
    }

    async fn record(&self) -> Document {
        let records = self.set.client().await.database("mongoseal").collection::<Document>("mongoseal");
        records.find_one(doc! { "_id": &self.key }).await.unwrap().expect("the record is there")
    }

    async fn until_queued(&self) {
        let began = Instant::now();
        while self.record().await.get_array("queue").unwrap().is_empty() {
            assert!(began.elapsed() < secs(60), "{}: nobody is queued", self.key);
            sleep(millis(10)).await;
        }
    }

    /// Each lease id that ever held the key, with its token, as the oplog tells.
    async fn granted(&self) -> Vec<(Vec<u8>, i64)> {
        let entries = self.set.oplog_entries("mongoseal.mongoseal", &Bson::from(self.key.as_str())).await;
        let mut granted = leases(&Bson::from(entries));
        granted.sort_unstable();
        granted.dedup();
        granted
    }

    /// Waits until the fault is over, and returns what the verb gave: a success, or an error that says that it is not known.
    async fn judge<T>(&self, stages: &Barrier, began: Instant, limit: Duration, came_to: Result<T>) -> Option<T> {
        let took = began.elapsed();
        stages.wait().await;
        stages.wait().await;
        let may_fail = self.lasts || self.is_slow || took > operation().mul_f64(0.9);
        let is_allowed = match &came_to {
            // One that is in the queue may hear of its turn without asking.
            Ok(_) => !self.lasts || self.verb == Verb::HandOver,
            Err(Error::Unavailable { .. }) => may_fail,
            // Where the other could not give the key back in time.
            Err(Error::Held { .. }) => {
                may_fail && (self.verb == Verb::HandOver || self.verb == Verb::Queue && !self.lasts)
            }
            Err(_) => false,
        };
        println!("{}: {} after {took:?}", self.key, if came_to.is_ok() { "ok" } else { "not known" });
        let error = came_to.as_ref().err();
        assert!(is_allowed, "{}: {error:?} after {took:?}", self.key);
        assert!(took <= limit + LATE || !is_long(), "{}: {took:?} of {limit:?}", self.key);
        came_to.ok()
    }

    /// If the verb gave a lease, the record has it as its only one, and its id never had another token, unless it was over
    /// meanwhile.
    async fn leaves(&self, lease: Option<Lease>, since: Instant) {
        let Some(lease) = lease else { return };
        let (id, token) = (lease.id().to_bytes().to_vec(), i64::from(lease.token()));
        let granted = self.granted().await;
        if since.elapsed() < ttl() {
            assert!(granted.iter().all(|(other, its)| *other != id || *its == token), "{}: {granted:?}", self.key);
        }
        let record = self.record().await;
        if lease.is_valid() {
            let held = leases(&Bson::from(record.clone()));
            assert_eq!((held, record.get_i64("version")), (vec![(id, token)], Ok(token)), "{}: {record}", self.key);
        }
        // Where the time for that is too short, on a busy machine, the ttl does it.
        let released = lease.release().await;
        let expired = ReleaseOutcome::AlreadyLost { cause: LossCause::Expired };
        let is_over = match &released {
            Ok(released) => *released == ReleaseOutcome::Released || *released == expired,
            Err(error) => matches!(error, Error::Unavailable { .. }),
        };
        assert!(is_over, "{}: {released:?}", self.key);
    }

    /// A tick that was confirmed as completed is not run again. If that is not known, it is completed now.
    async fn tick_runs_again(&self, may_run: bool) {
        for (wait, may_run) in [(self.patience(), may_run), (Duration::ZERO, false)] {
            let again = self.other.once(&self.key, TICK).wait(wait).run(async |_| -> Result<()> { Ok(()) }).await;
            let again = again.unwrap_or_else(|error| panic!("{}: {error}", self.key));
            let is_done = matches!(again, OnceOutcome::Skipped(Skipped::AlreadyDone { .. }));
            assert!(is_done || may_run && again == OnceOutcome::Ran(()), "{}: {again:?}", self.key);
        }
    }

    /// The key can be had with the largest token, also after what arrives late.
    async fn can_be_had(&self) {
        for late in [Duration::ZERO, self.late] {
            sleep(late).await;
            let last = self.theirs().wait(self.patience()).await;
            let last = last.unwrap_or_else(|error| panic!("{}: held by nobody: {error}", self.key));
            let (granted, token) = (self.granted().await, i64::from(last.token()));
            // This one, and the one before the fault.
            assert!(granted.len() >= 2, "{}: {granted:?}", self.key);
            assert!(granted.iter().all(|(_, other)| *other <= token), "{}: {granted:?}, {token}", self.key);
            assert_eq!(last.release().await.unwrap(), ReleaseOutcome::Released, "{}", self.key);
        }
    }
}

/// Waits until the fault is in force.
async fn armed(stages: &Barrier) -> Instant {
    stages.wait().await;
    stages.wait().await;
    Instant::now()
}

/// The other gives the key back, a moment later. Where nobody confirms that, it is done all the same.
async fn give_back(lease: Lease) {
    sleep(millis(500)).await;
    drop(tokio::spawn(lease.release()));
}

/// Each holder that is somewhere in a value: its lease id and its token.
fn leases(value: &Bson) -> Vec<(Vec<u8>, i64)> {
    match value {
        Bson::Array(elements) => elements.iter().flat_map(leases).collect(),
        Bson::Document(document) => {
            let mut found: Vec<_> = document.values().flat_map(leases).collect();
            if let (Some(Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes })), Ok(version @ 1..)) =
                (document.get("lease"), document.get_i64("version"))
            {
                found.push((bytes.clone(), version));
            }
            found
        }
        _ => Vec::new(),
    }
}
