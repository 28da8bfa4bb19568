//! Requests that come faster than they are answered go out together.
//!
//! What must be true: nobody waits who need not, and nothing is sent that nobody waits for. So a request
//! goes out by itself as long as few are under way; those that come meanwhile queue here, where otherwise
//! they would queue for one of the driver's connections; and if there are many by the time an answer
//! comes, all of them are the next command. An acquire is granted by what is read after that command, so
//! a lease id that is seen to hold was written by it; whoever is not seen to hold asks by itself, which
//! can be done twice.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::{
    bson::{Bson, doc},
    options::{ReadPreference, SelectionCriteria},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::{
    Inner, LEAST, MongoStore, document,
    fault::{self, needs},
    server_limit, template,
    verb::Verb,
};
use crate::{
    Clock, Error, Key, LeaseId, Result, Tick,
    record::{Acquire, Joint, Moment, Outcome, Release, Request, named},
    store::Applied,
};

/// How many requests or commands for many are under way at most. The driver has ten connections, of which
/// a change stream takes one.
const LANES: usize = 8;

/// The fewest requests that are worth a command for many, which is two where there are acquires.
const FEWEST: usize = 8;

/// How long it is remembered that a release was not confirmed. Whoever asks again does so sooner.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// The most requests of one command.
const MOST: usize = 64;

/// The lanes of a store, and who queues for one.
#[derive(Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    busy: usize,
    /// Without a bound of its own: whoever is in it waits for it, has a time at which it goes, and takes more memory
    /// itself. To refuse it would only make it ask again.
    queue: VecDeque<Queued>,
    /// The releases that travelled together and were not confirmed, which go by themselves when they are
    /// asked for again: they may be made already, and would spoil the count of others. With the time at which
    /// that was.
    spoilt: HashMap<LeaseId, Duration>,
}

struct Queued {
    key: Key,
    request: Request,
    /// When, on the clock, nobody waits for it any more.
    until: Duration,
    turn: oneshot::Sender<Turn>,
}

/// What becomes of a request that queued.
enum Turn {
    /// It is sent by itself, on this lane.
    Alone(Lane),
    /// It is sent by itself, because it was not granted with others.
    Apart,
    /// It was sent with others.
    Together(Result<Applied>),
}

/// A lane that is taken. Dropping it gives it to who comes next.
struct Lane {
    inner: Arc<Inner>,
    /// Whether many were given it whose task has not begun: a runtime that shuts down drops such a one where it
    /// is spawned.
    waits_for_task: bool,
}

impl Lanes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Applies a request by itself or with others.
pub(super) async fn apply(inner: Arc<Inner>, key: Key, request: Request, within: Duration) -> Result<Applied> {
    let until = Clock::Boot.now().saturating_add(within);
    let lane = if can_travel(&request) {
        match enter(&inner, &key, &request, until).await? {
            Turn::Alone(lane) => Some(lane),
            Turn::Apart => None,
            Turn::Together(applied) => return applied,
        }
    } else {
        None
    };
    let left = left(until);
    let applied = MongoStore::run(left, async move { inner.apply(&key, &request, left).await }).await;
    drop(lane);
    applied
}

/// Whether it can be told from the record afterwards what came of it.
fn can_travel(request: &Request) -> bool {
    matches!(
        request,
        Request::Acquire(Acquire { patience: None, .. }) | Request::Release(Release { token: Some(_), .. })
    )
}

async fn enter(inner: &Arc<Inner>, key: &Key, request: &Request, until: Duration) -> Result<Turn> {
    let turn = {
        let mut state = inner.lanes.state();
        let spoilt = request.lease().is_some_and(|lease| state.spoilt.remove(&lease).is_some());
        if state.busy < LANES || spoilt {
            state.busy = state.busy.saturating_add(1);
            return Ok(Turn::Alone(Lane { inner: Arc::clone(inner), waits_for_task: false }));
        }
        let (turn, taken) = oneshot::channel();
        state.queue.push_back(Queued { key: key.clone(), request: request.clone(), until, turn });
        taken
    };
    if let Ok(Ok(turn)) = timeout(left(until), turn).await {
        return Ok(turn);
    }
    // It may have been sent with others, whose time is not over.
    if let Request::Release(release) = request {
        inner.lanes.state().spoil([release.lease].into_iter());
    }
    Err(Error::unavailable(
        "earlier requests of this handle were not answered: check that a primary can be reached and ask again",
    ))
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut next = self.inner.lanes.state().next(self.waits_for_task);
        let Some(first) = next.pop() else { return };
        let lane = Self { inner: Arc::clone(&self.inner), waits_for_task: !next.is_empty() };
        if next.is_empty() {
            // Where nobody waits any more the lane comes back, and goes to the next one.
            drop(first.turn.send(Turn::Alone(lane)));
        } else {
            next.push(first);
            MongoStore::run_unwatched(send(lane, next));
        }
    }
}

impl State {
    /// Those who go next on a lane that was left: one, or many. Where there are none the lane is free.
    fn next(&mut self, is_over: bool) -> Vec<Queued> {
        if is_over {
            self.queue.clear();
        }
        let now = Clock::Boot.now();
        let mut next = Vec::new();
        while next.len() < MOST
            && let Some(queued) = self.queue.pop_front()
        {
            if !queued.turn.is_closed() && queued.until.saturating_sub(now) > LEAST {
                next.push(queued);
            }
        }
        // Without a runtime there is no task for many.
        if next.len() < FEWEST || Handle::try_current().is_err() {
            while next.len() > 1
                && let Some(queued) = next.pop()
            {
                self.queue.push_front(queued);
            }
        }
        if self.queue.is_empty() {
            // A burst is not remembered.
            self.queue = VecDeque::new();
        }
        if next.is_empty() {
            self.busy = self.busy.saturating_sub(1);
        }
        next
    }

    /// Notes releases that were not confirmed.
    fn spoil(&mut self, leases: impl Iterator<Item = LeaseId>) {
        let now = Clock::Boot.now();
        self.spoilt.retain(|_, since| since.saturating_add(ASKED_AGAIN) > now);
        self.spoilt.extend(leases.map(|lease| (lease, now)));
    }
}

/// Sends many requests, and tells each what came of it.
async fn send(mut lane: Lane, requests: Vec<Queued>) {
    lane.waits_for_task = false;
    let (releases, acquires): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|queued| matches!(queued.request, Request::Release(_)));
    // Each kind by itself: a release is given less time at first than an acquire.
    let (releases, acquires) = (in_step(releases), in_step(acquires));
    tokio::join!(acquire(&lane.inner, acquires), release(&lane.inner, releases));
}

/// Those who wait for about as long as the others; the rest go by themselves. Whoever gives up long before the
/// others must have a limit of its own at the server: what is written after that holds the key for nobody.
fn in_step(requests: Vec<Queued>) -> Vec<Queued> {
    let half = longest(&requests).mul_f64(0.5);
    let (in_step, hurried): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| left(queued.until) >= half);
    for queued in hurried {
        tell(queued, Turn::Apart);
    }
    in_step
}

/// How long the last of them is waited for.
fn longest(requests: &[Queued]) -> Duration {
    requests.iter().map(|queued| left(queued.until)).max().unwrap_or_default()
}

fn left(until: Duration) -> Duration {
    until.saturating_sub(Clock::Boot.now())
}

async fn acquire(inner: &Arc<Inner>, requests: Vec<Queued>) {
    if requests.is_empty() {
        return;
    }
    let within = longest(&requests);
    let asked: Vec<(Key, Request)> =
        requests.iter().map(|queued| (queued.key.clone(), queued.request.clone())).collect();
    let inner = Arc::clone(inner);
    let granted = MongoStore::run(within, async move { inner.acquire_many(&asked, within).await }).await;
    match granted {
        Ok(granted) => {
            for (queued, granted) in requests.into_iter().zip(granted) {
                tell(queued, granted.map_or(Turn::Apart, |applied| Turn::Together(Ok(applied))));
            }
        }
        Err(error @ Error::Unavailable { .. }) => tell_all(requests, error),
        // What asking again does not mend each hears by itself.
        Err(_definite) => requests.into_iter().for_each(|queued| tell(queued, Turn::Apart)),
    }
}

async fn release(inner: &Arc<Inner>, requests: Vec<Queued>) {
    if requests.is_empty() {
        return;
    }
    let within = longest(&requests);
    let leases = named(requests.iter().filter_map(|queued| match &queued.request {
        Request::Release(Release { token: Some(token), .. }) => Some((queued.key.clone(), *token)),
        _ => None,
    }));
    let released = {
        let inner = Arc::clone(inner);
        MongoStore::run(within, async move { inner.apply_jointly(&leases, &Joint::Release, within).await }).await
    };
    let error = match released {
        Ok(true) => {
            for queued in requests {
                tell(queued, Turn::Together(Ok(Applied { outcome: Outcome::Released, at: None })));
            }
            return;
        }
        // Some were made, and which cannot be told: as after a lost answer.
        Ok(false) => Error::unavailable("one of several leases was not held: ask again"),
        Err(error) => error,
    };
    inner.lanes.state().spoil(requests.iter().filter_map(|queued| queued.request.lease()));
    tell_all(requests, error);
}

/// Tells all of them that it is not known what was done.
fn tell_all(requests: Vec<Queued>, error: Error) {
    let error = Arc::new(error);
    for queued in requests {
        let told = Error::unavailable("MongoDB did not confirm several requests: ask again");
        tell(queued, Turn::Together(Err(told.caused_by(Arc::clone(&error)))));
    }
}

fn tell(queued: Queued, turn: Turn) {
    // Whoever is gone asks again, or takes back what it asked for.
    drop(queued.turn.send(turn));
}

impl Inner {
    /// Sends many acquires that do not wait; gives what came of them, as far as it can be told.
    async fn acquire_many(&self, asked: &[(Key, Request)], within: Duration) -> Result<Vec<Option<Applied>>> {
        let _no_transaction = self.no_transaction(within).await?;
        let head = doc! {
            "update": &self.collection,
            "ordered": false,
            "writeConcern": { "w": "majority", "wtimeout": server_limit(within) },
            "maxTimeMS": server_limit(within),
        };
        let written = self.database.run_raw_command(template::acquires(&head, asked)?);
        let written = written.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary)).await;
        let written = written.map_err(|error| self.meaning(error, needs::HOLD))?;
        if let Some(error) = written.get("writeConcernError") {
            return Err(fault::unconfirmed(error));
        }
        let keys: Bson = asked.iter().map(|(key, _)| key.as_str()).collect();
        let after = written.get_timestamp("operationTime").map_err(fault::unreadable)?;
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": { "$in": keys } },
            "projection": document::view(Verb::Acquire),
            "batchSize": i64::try_from(MOST).unwrap_or(i64::MAX),
            "singleBatch": true,
            "readConcern": { "level": "majority", "afterClusterTime": after },
            "maxTimeMS": server_limit(within),
        };
        let found = self.command(find, needs::READ).await?;
        let found = found
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .map_err(fault::unreadable)?;
        // A statement that failed has written nothing, though the lease may hold by an earlier request.
        let failed: Vec<usize> = written
            .get_array("writeErrors")
            .into_iter()
            .flatten()
            .filter_map(|error| usize::try_from(error.as_document()?.get_i32("index").ok()?).ok())
            .collect();
        // Of the update, which is before whatever became of the leases since.
        let tick = Tick { seconds: after.time.into(), ordinal: after.increment.into() };
        let came_to = |(number, (key, request)): (usize, &(Key, Request))| {
            let mut found = found.iter().filter_map(Bson::as_document);
            let record = found.find(|record| record.get_str("_id").is_ok_and(|id| id == key.as_str()))?;
            let (view, at, _written) = document::decode_view(key, record).ok()?;
            let outcome = request.outcome(Some(&view), at.now);
            let lasts = match &outcome {
                Outcome::Granted { token } => {
                    view.holders.iter().any(|holder| holder.version == *token && holder.expires_at > at.now)
                }
                // A hint, as that of an update which changed nothing.
                Outcome::Refused { holder } => holder.expires_at > at.now,
                _ => false,
            };
            (lasts && !failed.contains(&number)).then_some(Applied { outcome, at: Some(Moment { tick, ..at }) })
        };
        Ok(asked.iter().enumerate().map(came_to).collect())
    }
}
