//! Requests of one key that travel in one command.
//!
//! Purpose: writes of one record that meet at the server make each other start over, and each writes the whole queue.
//! A thousand waiters that ask one after another write a thousand entries a thousand times, and so do a thousand that leave
//! the queue.
//!
//! Mechanism: one command of each key is under way. The acquires and leaves of the key that come meanwhile wait in the
//! key's line. (Acquires that share the key and do not wait are not in it.) The
//! next command takes the requests of one verb from the head of the line: the pipeline takes lists (see `verb.rs`). Each
//! other request is sent at once, as a command of its own.
//!
//! A bounded number of requests of each runtime is under way, refreshes beside them: the driver serves those that wait for a connection
//! in their order, and a burst of acquires must not keep a refresh waiting until its lease is lost.
//!
//! Invariants: a refresh never waits for more than [`MAX_UNDER_WAY`] other requests. A request is never delayed by more than half of
//! the time of the one before it, and an abandoned request is never sent. Each answer is told from its own write.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use super::{Inner, LEAST, MongoStore, execute::worthwhile, template, traffic::Traffic, verb::Verb};
use crate::{
    Clock, Error, Key, Result,
    record::{Acquire, Outcome, Request},
    store::{Applied, BoxFuture},
};

/// The most requests of one command.
const MAX_BATCH: usize = 64;

/// The most commands that are under way at once, besides refreshes and reads: fewer than `connect` opens connections.
const MAX_UNDER_WAY: usize = 48;

/// The keys with a command under way, and the requests that wait for it in the order in which they came.
pub(super) struct Coalescer {
    lines: Mutex<Lines>,
    under_way: Semaphore,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self { lines: Mutex::default(), under_way: Semaphore::new(MAX_UNDER_WAY) }
    }
}

#[derive(Default)]
struct Lines(HashMap<Key, VecDeque<Queued>>);

/// A request that waits for the command before it.
struct Queued {
    request: Request,
    /// When, on the clock, its caller stops waiting for it.
    until: Duration,
    /// How much time it must have left to be sent.
    least: Duration,
    /// With which others it can be a command. `None`: with none.
    verb: Option<Verb>,
    dispatch: oneshot::Sender<Dispatch>,
}

impl Queued {
    fn new(request: Request, until: Duration, dispatch: oneshot::Sender<Dispatch>) -> Self {
        let verb = Verb::of_several(&request).filter(|_| !shares(&request));
        let least = LEAST.min(left(until).mul_f64(0.5));
        Self { request, until, least, verb, dispatch }
    }

    /// Whether it can be sent with these.
    fn can_join(&self, others: &[Self]) -> bool {
        others.first().is_none_or(|first| self.verb.is_some() && first.verb == self.verb)
    }

    /// Whether its caller waits for it, and long enough for an answer.
    fn is_awaited(&self) -> bool {
        !self.dispatch.is_closed() && left(self.until) > self.least
    }

    /// Tells its caller. One that is gone asks again, or takes back what it asked for.
    fn tell(self, dispatch: Dispatch) {
        drop(self.dispatch.send(dispatch));
    }
}

/// What becomes of a request that waited in line.
enum Dispatch {
    /// Its caller sends it, as the command of its key that is under way.
    Alone(Permit),
    /// Its caller sends it, beside whatever is under way.
    Apart,
    /// It was sent with others.
    Together(Result<Applied>),
}

/// The right to be the command of a key that is under way. Dropping it hands it to the next in line.
struct Permit {
    inner: Arc<Inner>,
    traffic: Arc<Traffic>,
    key: Key,
    /// Whether it was given to a task that has not begun. A runtime that shuts down drops such a task where it is
    /// spawned.
    waits_for_task: bool,
}

impl Coalescer {
    /// Waits until another command may be under way. A request whose caller gives up meanwhile is never sent.
    async fn admitted(&self, until: Duration) -> Result<SemaphorePermit<'_>> {
        let admitted = timeout(left(until), self.under_way.acquire()).await.ok().and_then(Result::ok);
        admitted.ok_or_else(|| {
            Error::unavailable(
                "earlier requests of this handle were not answered: check that a primary can be reached and retry",
            )
        })
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Applies a request by a command of its own, or by one with others of its key.
pub(super) async fn apply(inner: Arc<Inner>, key: Key, request: Request, within: Duration) -> Result<Applied> {
    let until = Clock::Boot.now().saturating_add(within);
    let waits = acquire(&request).is_some_and(|acquire| acquire.wait.is_some());
    let traffic = inner.traffic.here();
    let permit = if waits || (Verb::of_several(&request).is_some() && !shares(&request)) {
        match enter(&inner, &traffic, &key, &request, until).await? {
            Dispatch::Alone(permit) => Some(permit),
            Dispatch::Apart => None,
            Dispatch::Together(applied) => return applied,
        }
    } else {
        None
    };
    let passed = traffic.gates.pass(&key, left(until)).await?;
    let is_refresh = matches!(request, Request::Refresh(_));
    let _under_way = if is_refresh { None } else { Some(traffic.coalescer.admitted(until).await?) };
    let (sent, left) = (Clock::Boot.now(), worthwhile(until, within)?);
    let sender = Arc::clone(&inner);
    let applied = inner.requests.track_future(async move {
        let _passed = passed;
        sender.apply(&key, &request, left).await
    });
    let applied = MongoStore::run(left, applied);
    let (applied, _permit) = answered(permit, left, applied).await;
    applied.map(|applied| Applied { sent: Some(sent), ..applied })
}

/// Waits for an answer; gives it and the permit. After half of the time the permit goes to the next in line: a command
/// that hangs must not hold the others up until they, too, run out of time.
async fn answered<T>(permit: Option<Permit>, within: Duration, mut answer: BoxFuture<T>) -> (T, Option<Permit>) {
    if permit.is_none() {
        return (answer.await, None);
    }
    if let Ok(answer) = timeout(within.mul_f64(0.5), &mut answer).await {
        return (answer, permit);
    }
    drop(permit);
    (answer.await, None)
}

async fn enter(
    inner: &Arc<Inner>,
    traffic: &Arc<Traffic>,
    key: &Key,
    request: &Request,
    until: Duration,
) -> Result<Dispatch> {
    let dispatched = {
        let mut lines = traffic.coalescer.lines();
        let Some(line) = lines.0.get_mut(key) else {
            lines.0.insert(key.clone(), VecDeque::new());
            let (inner, traffic, key) = (Arc::clone(inner), Arc::clone(traffic), key.clone());
            return Ok(Dispatch::Alone(Permit { inner, traffic, key, waits_for_task: false }));
        };
        let (dispatch, dispatched) = oneshot::channel();
        line.push_back(Queued::new(request.clone(), until, dispatch));
        dispatched
    };
    timeout(left(until), dispatched).await.ok().and_then(Result::ok).ok_or_else(|| {
        Error::unavailable(
            "earlier requests of this handle for the key were not answered: check that a primary can be reached and retry",
        )
    })
}

impl Permit {
    /// Puts these first in line, to be sent one by one.
    fn put_back(&self, requests: Vec<Queued>) {
        let mut lines = self.traffic.coalescer.lines();
        let Some(line) = lines.0.get_mut(&self.key) else { return };
        for queued in requests.into_iter().rev() {
            line.push_front(Queued { verb: None, ..queued });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut next = self.traffic.coalescer.lines().next(&self.key, self.waits_for_task);
        let Some(first) = next.pop() else { return };
        let (inner, traffic, key) = (Arc::clone(&self.inner), Arc::clone(&self.traffic), self.key.clone());
        let permit = Self { inner, traffic, key, waits_for_task: !next.is_empty() };
        if next.is_empty() {
            // If its caller is gone, the permit comes back and goes to the next.
            first.tell(Dispatch::Alone(permit));
        } else {
            next.push(first);
            MongoStore::run_unwatched(send(permit, next));
        }
    }
}

impl Lines {
    /// The requests of the next command of a key. If there are none, no command of the key is under way any more.
    fn next(&mut self, key: &Key, is_over: bool) -> Vec<Queued> {
        let mut next = Vec::new();
        let Some(line) = self.0.get_mut(key) else { return next };
        if is_over {
            line.clear();
        }
        while next.len() < MAX_BATCH
            && line.front().is_some_and(|queued| queued.can_join(&next))
            && let Some(queued) = line.pop_front()
        {
            if queued.is_awaited() {
                next.push(queued);
            }
        }
        // Without a runtime there is no task that could send several.
        if Handle::try_current().is_err() {
            while next.len() > 1
                && let Some(queued) = next.pop()
            {
                line.push_front(queued);
            }
        }
        if line.is_empty() {
            // The memory of a burst is given back.
            *line = VecDeque::new();
        }
        if next.is_empty() {
            self.0.remove(key);
        }
        next
    }
}

/// Sends several requests of a key as one command, and tells each what came of it.
async fn send(mut permit: Permit, requests: Vec<Queued>) {
    permit.waits_for_task = false;
    let mut requests = split_by_deadline(split_batchable(requests));
    let (inner, traffic) = (Arc::clone(&permit.inner), Arc::clone(&permit.traffic));
    let passed = match traffic.gates.pass(&permit.key, longest(&requests)).await {
        Ok(passed) => passed,
        Err(error) => return tell_all(requests, error),
    };
    let _under_way = match traffic.coalescer.admitted(Clock::Boot.now().saturating_add(longest(&requests))).await {
        Ok(admitted) => admitted,
        Err(error) => return tell_all(requests, error),
    };
    requests.retain(Queued::is_awaited);
    if requests.is_empty() {
        return;
    }
    let (sent, within) = (Clock::Boot.now(), longest(&requests));
    let asked: Vec<Request> = requests.iter().map(|queued| queued.request.clone()).collect();
    let (sender, key) = (Arc::clone(&inner), permit.key.clone());
    let applied = inner.requests.track_future(async move {
        let _passed = passed;
        sender.apply_together(&key, &asked, within).await
    });
    let applied = MongoStore::run(within, applied);
    let (applied, permit) = answered(Some(permit), within, applied).await;
    let one_by_one = match applied {
        Ok(applied) => {
            let mut others = Vec::new();
            for (queued, applied) in requests.into_iter().zip(applied) {
                if has_its_answer(&queued.request, &applied.outcome) {
                    queued.tell(Dispatch::Together(Ok(Applied { sent: Some(sent), ..applied })));
                } else {
                    others.push(queued);
                }
            }
            others
        }
        Err(error @ Error::Unavailable { .. }) => return tell_all(requests, error),
        // An error that a retry does not mend is told to each by its own command.
        Err(_definite) => requests,
    };
    match permit {
        Some(permit) => permit.put_back(one_by_one),
        None => one_by_one.into_iter().for_each(|queued| queued.tell(Dispatch::Apart)),
    }
}

/// Whether this is what came of the request. The server counts the room before the grant, for all requests of the
/// command; if the grant has made room, those that found none ask once more.
fn has_its_answer(request: &Request, outcome: &Outcome) -> bool {
    match (outcome, room(request)) {
        (Outcome::Full { length }, Some(room)) => u32::try_from(*length).is_ok_and(|length| length >= room),
        _ => true,
    }
}

/// Keeps the requests that can be one command: each of another lease, and, if they wait, with the same limit of waiters.
/// The others are sent by their callers.
fn split_batchable(requests: Vec<Queued>) -> Vec<Queued> {
    let (mut leases, mut limit) = (HashSet::new(), None);
    let (batchable, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| {
        let room = room(&queued.request);
        queued.request.lease().is_some_and(|lease| leases.insert(lease)) && *limit.get_or_insert(room) == room
    });
    for queued in others {
        queued.tell(Dispatch::Apart);
    }
    batchable
}

/// Keeps the requests that have at least half of the longest time left. The others are sent by their callers, with a
/// limit of their own at the server: a write that comes after its caller has gone holds the key for nobody.
fn split_by_deadline(requests: Vec<Queued>) -> Vec<Queued> {
    let half = longest(&requests).mul_f64(0.5);
    let (kept, hurried): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| left(queued.until) >= half);
    for queued in hurried {
        queued.tell(Dispatch::Apart);
    }
    kept
}

/// The longest time that one of them has left.
fn longest(requests: &[Queued]) -> Duration {
    requests.iter().map(|queued| left(queued.until)).max().unwrap_or_default()
}

fn left(until: Duration) -> Duration {
    until.saturating_sub(Clock::Boot.now())
}

/// Tells all of them that it is not known what was done.
fn tell_all(requests: Vec<Queued>, error: Error) {
    let error = Arc::new(error);
    for queued in requests {
        let told = Error::unavailable("MongoDB did not confirm a command with several requests for the key: retry");
        queued.tell(Dispatch::Together(Err(told.caused_by(Arc::clone(&error)))));
    }
}

fn room(request: &Request) -> Option<u32> {
    Some(acquire(request)?.wait?.queue_limit)
}

/// Whether an acquire shares the key. Then it must be a command of its own: see `FencingToken::following`.
fn shares(request: &Request) -> bool {
    acquire(request).is_some_and(|acquire| acquire.terms.limit > 1)
}

fn acquire(request: &Request) -> Option<&Acquire> {
    match request {
        Request::Acquire(acquire) => Some(acquire),
        _ => None,
    }
}

impl Inner {
    /// Applies requests of a key as one command; gives what came of each.
    async fn apply_together(&self, key: &Key, asked: &[Request], within: Duration) -> Result<Vec<Applied>> {
        let command = template::command_of_several(self.head(key, within), asked)?;
        self.update(key, command, asked, within).await
    }
}

#[cfg(test)]
mod tests;
