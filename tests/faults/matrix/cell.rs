//! One verb against one ambiguous result: the outcomes that are allowed, and the state that it may leave.

mod tick;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::{
    Collection,
    bson::{Binary, Bson, Document, doc, spec::BinarySubtype},
};
use mongoseal::{Error, Lease, LossCause, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::{ReplicaSet, by_length, is_long};
use tick::Running;
use tokio::task::JoinHandle;

use crate::{millis, secs};

/// How long the one asks who meets the fault.
pub(super) fn operation() -> Duration {
    by_length(secs(3), secs(1))
}

/// How much later than promised a call may return, which the night judges.
const LATE: Duration = Duration::from_secs(1);

/// Of the leases that meet the fault: longer than a tick's lease goes without a refresh while the fault is in force.
fn ttl() -> Duration {
    3 * operation() + by_length(secs(0), secs(1))
}

/// How long one waits who is queued when the fault comes. One who comes to be waits as long as an operation takes.
fn queued() -> Duration {
    operation() + secs(1)
}

/// What meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// With an id of the caller's, who asks again with it.
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

/// A key, and who is there.
pub(super) struct Cell {
    verb: Verb,
    key: String,
    set: Arc<ReplicaSet>,
    /// Who meets the fault; somebody else; and the one of before as it asks again in another process.
    one: Mongoseal,
    other: Mongoseal,
    again: Mongoseal,
}

/// A cell before the fault: who holds the key, and who waits for it.
pub(super) struct Ready {
    cell: Cell,
    holding: Option<Lease>,
    waiting: Option<(JoinHandle<Result<Lease, Error>>, Instant)>,
    running: Option<Running>,
}

/// A cell after the fault.
pub(super) struct Acted {
    cell: Cell,
    came_to: Result<Got, Error>,
    since: Instant,
    took: Duration,
    /// Who was queued behind.
    next: Option<JoinHandle<Result<Lease, Error>>>,
    /// What was held before and still is.
    kept: Option<Lease>,
}

/// What a verb gave.
enum Got {
    Lease(Lease),
    Refreshed,
    Released(ReleaseOutcome),
    Ran,
}

impl Cell {
    pub(super) fn new(verb: Verb, key: String, set: &Arc<ReplicaSet>, [one, other, again]: [&Mongoseal; 3]) -> Self {
        let (one, other, again) = (one.clone(), other.clone(), again.clone());
        Self { verb, key, set: Arc::clone(set), one, other, again }
    }

    /// Brings about what the verb needs.
    pub(super) async fn prepare(self) -> Ready {
        // So that there is a token before.
        self.other.acquire(&self.key).await.unwrap().release().await.unwrap();
        let mine = || self.one.acquire(&self.key).ttl(ttl()).without_refresh();
        let theirs = || self.other.acquire(&self.key).ttl(secs(60));
        let (mut holding, mut waiting, mut running) = (None, None, None);
        match self.verb {
            Verb::Acquire => {}
            Verb::Complete => running = Some(Running::start(&self.one, &self.key).await),
            // Outlasts the others' turns.
            Verb::Refresh => holding = Some(mine().ttl(secs(30)).await.unwrap()),
            Verb::Release => {
                holding = Some(mine().await.unwrap());
                waiting = Some((tokio::spawn(theirs().wait(secs(30)).into_future()), Instant::now()));
                self.until_queued().await;
            }
            Verb::Queue => holding = Some(theirs().await.unwrap()),
            Verb::HandOver => {
                holding = Some(theirs().await.unwrap());
                waiting = Some((tokio::spawn(mine().wait(queued()).into_future()), Instant::now()));
                self.until_queued().await;
                // Shortly before it asks again to keep its place.
                tokio::time::sleep((ttl() / 3).saturating_sub(millis(300))).await;
            }
        }
        Ready { cell: self, holding, waiting, running }
    }

    async fn records(&self) -> Collection<Document> {
        self.set.client().await.database("mongoseal").collection("mongoseal")
    }

    async fn record(&self) -> Document {
        let found = self.records().await.find_one(doc! { "_id": &self.key }).await.unwrap();
        found.expect("the record is there")
    }

    async fn until_queued(&self) {
        let began = Instant::now();
        while self.record().await.get_array("queue").unwrap().is_empty() {
            assert!(began.elapsed() < secs(60), "{}: nobody is queued", self.key);
            tokio::time::sleep(millis(10)).await;
        }
    }

    /// The tokens that each lease id ever had, as the oplog tells.
    async fn granted(&self) -> BTreeMap<Vec<u8>, Vec<i64>> {
        let mut granted = BTreeMap::new();
        for entry in self.set.oplog_entries("mongoseal.mongoseal", &Bson::from(self.key.as_str())).await {
            leases(&Bson::Document(entry), &mut |lease, version| {
                let tokens: &mut Vec<i64> = granted.entry(lease.to_vec()).or_default();
                if !tokens.contains(&version) {
                    tokens.push(version);
                }
            });
        }
        granted
    }
}

/// Tells of each holder that is somewhere in a value.
fn leases(value: &Bson, tell: &mut impl FnMut(&[u8], i64)) {
    match value {
        Bson::Array(elements) => elements.iter().for_each(|element| leases(element, tell)),
        Bson::Document(document) => {
            if let (Some(Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes })), Ok(version @ 1..)) =
                (document.get("lease"), document.get_i64("version"))
            {
                tell(bytes, version);
            }
            document.values().for_each(|value| leases(value, tell));
        }
        _ => {}
    }
}

impl Ready {
    /// Lets the verb meet the fault.
    pub(super) async fn act(self) -> Acted {
        let Self { cell, holding, waiting, running } = self;
        let (mut began, mut next, mut kept) = (Instant::now(), None, None);
        let acquire = cell.one.acquire(&cell.key).ttl(ttl()).without_refresh();
        let (came_to, limit) = match cell.verb {
            Verb::Acquire => (acquire.await.map(Got::Lease), operation()),
            Verb::Refresh => {
                let lease = kept.insert(holding.expect("it holds"));
                (lease.refresh().await.map(|()| Got::Refreshed), operation())
            }
            Verb::Release => {
                next = waiting.map(|(waiting, _)| waiting);
                (holding.expect("it holds").release().await.map(Got::Released), operation())
            }
            Verb::Complete => (running.expect("it runs").complete().await.map(|()| Got::Ran), operation()),
            Verb::Queue => {
                let acquire = acquire.wait(operation()).into_future();
                let ((), came_to) = tokio::join!(give_back(holding), acquire);
                (came_to.map(Got::Lease), 2 * operation())
            }
            Verb::HandOver => {
                let (waiting, since) = waiting.expect("it waits");
                began = since;
                let ((), came_to) = tokio::join!(give_back(holding), waiting);
                (came_to.unwrap().map(Got::Lease), queued() + operation())
            }
        };
        let took = began.elapsed();
        assert!(took <= limit + LATE || !is_long(), "{}: {took:?} of {limit:?}", cell.key);
        Acted { cell, came_to, since: began, took, next, kept }
    }
}

/// The other gives the key back, a moment later. Where nobody confirms that, it is done all the same.
async fn give_back(lease: Option<Lease>) {
    tokio::time::sleep(millis(500)).await;
    drop(tokio::spawn(lease.expect("the other holds").release()));
}

impl Acted {
    pub(super) fn verb(&self) -> Verb {
        self.cell.verb
    }

    /// What it came to: a success, or an error that says that it is not known.
    pub(super) fn outcome(&self, slow: bool, lasts: bool) -> String {
        let (key, verb) = (&self.cell.key, self.cell.verb);
        let word = match &self.came_to {
            // Somebody else was granted the key before this was asked again: it is over, by whatever.
            Ok(Got::Released(released @ (ReleaseOutcome::Released | ReleaseOutcome::Unknown))) => {
                if *released == ReleaseOutcome::Released { "ok" } else { "over" }
            }
            Ok(Got::Released(other)) => panic!("{key}: {other:?}"),
            Ok(_) => "ok",
            Err(Error::Unavailable { .. }) => "unknown",
            // Where the other could not give the key back in time.
            Err(Error::Held { .. }) if matches!(verb, Verb::Queue | Verb::HandOver) => "held",
            Err(error) => panic!("{key}: {error:?}"),
        };
        // One that is in the queue may hear of its turn without asking.
        let expected = match (lasts, slow) {
            (true, _) if verb == Verb::HandOver => None,
            (true, _) => Some("unknown"),
            (false, true) => None,
            (false, false) if word == "over" || self.took > operation().mul_f64(0.9) => None,
            (false, false) => Some("ok"),
        };
        let text = self.came_to.as_ref().err().map(|error| all_of(error));
        assert!(expected.is_none_or(|expected| expected == word), "{key}: {word}, {text:?}");
        format!("{word} {:.2} s", self.took.as_secs_f64())
    }

    /// Checks what is left: one token of the lease, a larger one for the next holder, and no lease without a holder.
    pub(super) async fn settle(self, late: Option<Duration>) {
        let Self { cell, came_to, next, kept, since, .. } = self;
        let key = &cell.key;
        let left = ttl() + late.unwrap_or_default() + secs(1);
        let patience = left + by_length(secs(60), secs(0));
        let unavailable = came_to.as_ref().err().filter(|error| matches!(error, Error::Unavailable { .. }));
        let unavailable = unavailable.map(|error| all_of(error));
        if let Some(lease) = kept {
            // On a busy machine the first one after the fault may take longer than a second, too.
            let began = Instant::now();
            while let Err(error) = lease.refresh().await {
                assert!(matches!(error, Error::Unavailable { .. }), "{key}: {error}");
                assert!(began.elapsed() < secs(60), "{key}: {error}");
            }
            cell.shows(&lease, since).await;
            released(lease).await;
        } else if let Ok(Got::Lease(lease)) = came_to {
            cell.shows(&lease, since).await;
            released(lease).await;
        } else if let Some(next) = next {
            let lease = tokio::time::timeout(patience, next).await.expect("it is handed over").unwrap().unwrap();
            // What arrives late of the release touches nobody else.
            tokio::time::sleep(late.unwrap_or_default()).await;
            lease.verify().await.unwrap();
            lease.release().await.unwrap();
        } else if cell.verb == Verb::Complete {
            tick::is_done(&cell.again, key, came_to.is_ok(), patience).await;
        }
        let last = cell.other.acquire(key).ttl(secs(60)).wait(patience).await;
        let last = last.unwrap_or_else(|error| panic!("{key}: held by nobody for longer than {patience:?}: {error}"));
        let granted = cell.granted().await;
        // A lease id may have had several: a request that arrives after its lease was released is granted, without a holder.
        for token in granted.values().flatten() {
            assert!(*token <= i64::from(last.token()), "{key}: the last one has the largest token");
            let is_in_error = unavailable.as_ref().is_some_and(|error| error.contains(&token.to_string()));
            assert!(!is_in_error, "{key}: a token in {unavailable:?}");
        }
        assert!(granted.len() >= 2, "{key}: {granted:?}");
        assert_eq!(last.release().await.unwrap(), ReleaseOutcome::Released, "{key}");
        // Nor is what comes later still held by nobody for longer than that.
        let began = Instant::now();
        loop {
            let record = cell.record().await;
            let now = record.get_datetime("last_seen").unwrap();
            let lives = |entry: &Bson| {
                let until = entry.as_document().and_then(|entry| entry.get_datetime("expires_at").ok());
                until.is_none_or(|until| *until > *now)
            };
            if !["holders", "queue"].iter().any(|all| record.get_array(all).unwrap().iter().any(lives)) {
                return;
            }
            if began.elapsed() > left {
                // Whoever is over stays in the record until its next change.
                let next = cell.other.acquire(key).await;
                assert!(next.is_ok(), "{key}: {record}");
                return;
            }
            tokio::time::sleep(millis(50)).await;
        }
    }
}

impl Cell {
    /// That the record has this lease as its only one, and that its id never had another token, unless it was
    /// over meanwhile.
    async fn shows(&self, lease: &Lease, since: Instant) {
        if let (true, Some(tokens)) = (since.elapsed() < ttl(), self.granted().await.get(&lease.id().to_bytes()[..])) {
            assert_eq!(*tokens, [i64::from(lease.token())], "{}: tokens of one lease id", self.key);
        }
        let record = self.record().await;
        if !lease.is_valid() {
            return;
        }
        let mut held = Vec::new();
        leases(&Bson::Document(record.clone()), &mut |lease, token| held.push((lease.to_vec(), token)));
        let token = i64::from(lease.token());
        assert_eq!(held, [(lease.id().to_bytes().to_vec(), token)], "{}: {record}", self.key);
        assert_eq!(record.get_i64("version").unwrap(), token, "{}", self.key);
    }
}

/// Gives it back. Where the time for that is too short, on a busy machine, the ttl does it.
async fn released(lease: Lease) {
    let released = lease.release().await;
    let expired = ReleaseOutcome::AlreadyLost { cause: LossCause::Expired };
    let fine = released.as_ref().map_or_else(
        |error| matches!(error, Error::Unavailable { .. }),
        |released| *released == ReleaseOutcome::Released || *released == expired,
    );
    assert!(fine, "{released:?}");
}

/// All that an error says, with whatever lies behind it.
fn all_of(error: &dyn std::error::Error) -> String {
    let mut said = format!("{error} {error:?} ");
    if let Some(source) = error.source() {
        said += &all_of(source);
    }
    said
}
