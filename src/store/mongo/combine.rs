//! Requests that come faster than they are answered go out together.
//!
//! What must be true: nobody waits who need not, and nothing is sent that nobody waits for. So a request
//! goes out by itself as long as few are under way; those that come meanwhile queue here, where otherwise
//! they would queue for one of the driver's connections; and if there are many by the time an answer
//! comes, all of them are the next command. An acquire is granted by what is read after that command, so
//! a lease id that is seen to hold was written by it; whoever is not seen to hold asks by itself, which
//! can be done twice.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::{
    bson::{Bson, doc},
    options::{ReadPreference, SelectionCriteria},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::{
    Inner, MongoStore, document,
    fault::{self, needs},
    server_limit, template,
    verb::Verb,
};
use crate::{
    Clock, Error, Key, Result,
    record::{Acquire, Joint, Outcome, Release, Request, named},
    store::Applied,
};

/// How many requests or commands for many are under way at most. The driver has ten connections, of which
/// a change stream takes one.
const LANES: usize = 8;

/// The fewest requests that are worth a command for many, which is two where there are acquires.
const FEWEST: usize = 8;

/// How much time a request must have left to be sent: what arrives when its caller has just given up would
/// hold a key for nobody.
const LEAST: Duration = Duration::from_millis(20);

/// The most requests of one command.
const MOST: usize = 64;

/// The lanes of a store, and who queues for one.
#[derive(Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    busy: usize,
    queue: VecDeque<Queued>,
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
struct Lane(Arc<Inner>);

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
        if state.busy < LANES {
            state.busy = state.busy.saturating_add(1);
            return Ok(Turn::Alone(Lane(Arc::clone(inner))));
        }
        let (turn, taken) = oneshot::channel();
        state.queue.push_back(Queued { key: key.clone(), request: request.clone(), until, turn });
        taken
    };
    match timeout(left(until), turn).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) | Err(_) => Err(Error::unavailable(
            "earlier requests of this handle were not answered: check that a primary can be reached and ask again",
        )),
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let next: Vec<Queued> = {
            let mut state = self.0.lanes.state();
            state.queue.retain(|queued| !queued.turn.is_closed() && left(queued.until) > LEAST);
            let count = match state.queue.len() {
                count if count >= FEWEST => count.min(MOST),
                count => count.min(1),
            };
            // Without a runtime nobody waits any more.
            if count == 0 || Handle::try_current().is_err() {
                state.busy = state.busy.saturating_sub(1);
                return;
            }
            state.queue.drain(..count).collect()
        };
        let lane = Self(Arc::clone(&self.0));
        match <[Queued; 1]>::try_from(next) {
            // Where nobody waits any more the lane comes back, and goes to the next one.
            Ok([one]) => drop(one.turn.send(Turn::Alone(lane))),
            Err(many) => MongoStore::run_unwatched(send(lane, many)),
        }
    }
}

/// Sends many requests, and tells each what came of it.
async fn send(lane: Lane, requests: Vec<Queued>) {
    let (releases, acquires): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|queued| matches!(queued.request, Request::Release(_)));
    tokio::join!(acquire(&lane.0, acquires), release(&lane.0, releases));
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
        Err(error) => tell_all(requests, error),
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
    let inner = Arc::clone(inner);
    let released =
        MongoStore::run(within, async move { inner.apply_jointly(&leases, &Joint::Release, within).await }).await;
    match released {
        Ok(true) => {
            for queued in requests {
                tell(queued, Turn::Together(Ok(Applied { outcome: Outcome::Released, at: None })));
            }
        }
        // Some were, and which cannot be told: as after a lost answer.
        Ok(false) => tell_all(requests, Error::unavailable("one of several leases was not held: ask again")),
        Err(error) => tell_all(requests, error),
    }
}

/// Tells all of them the same. What asking again does not mend each hears by itself.
fn tell_all(requests: Vec<Queued>, error: Error) {
    let unavailable = matches!(error, Error::Unavailable { .. });
    let error = Arc::new(error);
    for queued in requests {
        let told = || Error::unavailable("MongoDB did not confirm several requests: ask again");
        let turn = if unavailable { Turn::Together(Err(told().caused_by(Arc::clone(&error)))) } else { Turn::Apart };
        tell(queued, turn);
    }
}

fn tell(queued: Queued, turn: Turn) {
    // Whoever is gone asks again, or takes back what it asked for.
    drop(queued.turn.send(turn));
}

impl Inner {
    /// Sends many acquires that do not wait; gives what came of those that were granted.
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
        let granted = |(key, request): &(Key, Request)| {
            let mut found = found.iter().filter_map(Bson::as_document);
            let record = found.find(|record| record.get_str("_id").is_ok_and(|id| id == key.as_str()))?;
            let (view, at, _written) = document::decode_view(key, record).ok()?;
            let outcome = request.outcome(Some(&view), at.now);
            matches!(outcome, Outcome::Granted { .. }).then_some(Applied { outcome, at: Some(at) })
        };
        Ok(asked.iter().map(granted).collect())
    }
}
