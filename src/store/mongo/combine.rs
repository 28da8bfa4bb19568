//! Requests that come faster than they are answered go out together.
//!
//! What must be true: nobody waits who need not, and nothing is sent that nobody waits for. So a request
//! goes out by itself as long as few are under way; those that come meanwhile queue here, where otherwise
//! they would queue for one of the driver's connections; and if there are many by the time an answer
//! comes, all of them are the next command. An acquire is granted by what is read after that command, so
//! a lease id that is seen to hold was written by it; whoever is not seen to hold asks by itself, which
//! can be done twice.
//!
//! Who waits for a key for which another of this store is just asking queues in the same way, in a line of that
//! key's, and all who are in it are the next command: writes of one record that meet at the server
//! make each other start over, and each writes all who wait.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::{Inner, LEAST, MongoStore, line, many};
use crate::{
    Clock, Error, Key, LeaseId, Result,
    record::{Acquire, Release, Request},
    store::{Applied, BoxFuture},
};

/// How many requests or commands for many are under way at most. The driver has ten connections, of which
/// a change stream takes one.
const LANES: usize = 8;

/// The fewest requests that are worth a command for many, which is two where there are acquires.
const FEWEST: usize = 8;

/// The same of those who wait for one key, for whom it is one.
const FEWEST_OF_A_KEY: usize = 2;

/// How long it is remembered that a release was not confirmed. Whoever asks again does so sooner.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// The most requests of one command.
pub(super) const MOST: usize = 64;

/// The lanes of a store, and who queues for one.
#[derive(Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    busy: usize,
    /// Without a bound of its own: whoever is in it waits for it, has a time at which it goes, and takes more memory
    /// itself. To refuse it would only make it ask again.
    queue: VecDeque<Queued>,
    /// Those who queue for the lane of a key, which is taken.
    lines: HashMap<Key, VecDeque<Queued>>,
    /// The releases that travelled together and were not confirmed, which go by themselves when they are
    /// asked for again: they may be made already, and would spoil the count of others. With the time at which
    /// that was.
    spoilt: HashMap<LeaseId, Duration>,
}

pub(super) struct Queued {
    pub(super) key: Key,
    pub(super) request: Request,
    /// When, on the clock, nobody waits for it any more.
    pub(super) until: Duration,
    /// How much time it must have left to be sent.
    least: Duration,
    /// Whether it has to be sent by itself.
    alone: bool,
    turn: oneshot::Sender<Turn>,
}

impl Queued {
    /// Whether it can be sent with these.
    fn can_join(&self, others: &[Self]) -> bool {
        others.is_empty() || !(self.alone || others.iter().any(|other| other.alone))
    }
}

/// What becomes of a request that queued.
pub(super) enum Turn {
    /// It is sent by itself, on this lane.
    Alone(Lane),
    /// It is sent by itself, because it was not granted with others.
    Apart,
    /// It was sent with others.
    Together(Result<Applied>),
}

/// A lane that is taken. Dropping it gives it to who comes next.
pub(super) struct Lane {
    inner: Arc<Inner>,
    /// Whose lane it is.
    of: Of,
    /// Whether many were given it whose task has not begun: a runtime that shuts down drops such a one where it
    /// is spawned.
    waits_for_task: bool,
}

/// Which requests share a lane.
#[derive(Clone)]
enum Of {
    /// Those that do not wait, of any key.
    Any,
    /// Those who wait for this key.
    Waiters(Key),
}

impl Lanes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes releases that were not confirmed.
    pub(super) fn spoil(&self, leases: impl IntoIterator<Item = LeaseId>) {
        let now = Clock::Boot.now();
        let mut state = self.state();
        state.spoilt.retain(|_, since| since.saturating_add(ASKED_AGAIN) > now);
        state.spoilt.extend(leases.into_iter().map(|lease| (lease, now)));
    }
}

/// Applies a request by itself or with others.
pub(super) async fn apply(inner: Arc<Inner>, key: Key, request: Request, within: Duration) -> Result<Applied> {
    let until = Clock::Boot.now().saturating_add(within);
    let lane = match whose_lane(&key, &request) {
        None => None,
        Some(of) => match enter(&inner, of, &key, &request, until).await? {
            Turn::Alone(lane) => Some(lane),
            Turn::Apart => None,
            Turn::Together(applied) => return applied,
        },
    };
    let left = left(until);
    let applied = MongoStore::run(left, async move { inner.apply(&key, &request, left).await });
    let (applied, _lane) = answered(lane, left, applied).await;
    applied
}

/// Which lane it takes, if it can be told from the record afterwards what came of it.
fn whose_lane(key: &Key, request: &Request) -> Option<Of> {
    match request {
        Request::Acquire(Acquire { patience: Some(_), .. }) => Some(Of::Waiters(key.clone())),
        Request::Acquire(Acquire { patience: None, .. }) | Request::Release(Release { token: Some(_), .. }) => {
            Some(Of::Any)
        }
        _ => None,
    }
}

/// Waits for an answer; gives it and the lane. That of a key's waiters is left to the others after half of the time:
/// there is no other for them, and one that hangs must not hold them up until they, too, give up.
pub(super) async fn answered<T>(lane: Option<Lane>, within: Duration, mut answer: BoxFuture<T>) -> (T, Option<Lane>) {
    if !matches!(lane, Some(Lane { of: Of::Waiters(_), .. })) {
        return (answer.await, lane);
    }
    if let Ok(answer) = timeout(within.mul_f64(0.5), &mut answer).await {
        return (answer, lane);
    }
    drop(lane);
    (answer.await, None)
}

async fn enter(inner: &Arc<Inner>, of: Of, key: &Key, request: &Request, until: Duration) -> Result<Turn> {
    let turn = {
        let mut state = inner.lanes.state();
        let is_any = matches!(of, Of::Any);
        let spoilt = is_any && request.lease().is_some_and(|lease| state.spoilt.remove(&lease).is_some());
        if state.is_free(&of) || spoilt {
            state.take(&of);
            return Ok(Turn::Alone(Lane { inner: Arc::clone(inner), of, waits_for_task: false }));
        }
        let (turn, taken) = oneshot::channel();
        if let Some(queue) = state.queue_of(&of) {
            queue.push_back(queued(key.clone(), request.clone(), until, turn));
        }
        taken
    };
    if let Ok(Ok(turn)) = timeout(left(until), turn).await {
        return Ok(turn);
    }
    // It may have been sent with others, whose time is not over.
    if let Request::Release(release) = request {
        inner.lanes.spoil([release.lease]);
    }
    Err(Error::unavailable(
        "earlier requests of this handle were not answered: check that a primary can be reached and ask again",
    ))
}

fn queued(key: Key, request: Request, until: Duration, turn: oneshot::Sender<Turn>) -> Queued {
    // Who waits to share a key is queued by a write of its own: see `FencingToken::following`.
    let alone = matches!(&request, Request::Acquire(Acquire { terms, patience: Some(_) }) if terms.limit > 1);
    let least = LEAST.min(left(until).mul_f64(0.5));
    Queued { key, request, until, least, alone, turn }
}

impl Lane {
    /// Puts these back before those who queue for it, to be sent one by one.
    pub(super) fn put_back(&self, requests: Vec<Queued>) {
        let mut state = self.inner.lanes.state();
        let Some(queue) = state.queue_of(&self.of) else { return };
        for queued in requests.into_iter().rev() {
            queue.push_front(Queued { alone: true, ..queued });
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut next = self.inner.lanes.state().next(&self.of, self.waits_for_task);
        let Some(first) = next.pop() else { return };
        let lane = Self { inner: Arc::clone(&self.inner), of: self.of.clone(), waits_for_task: !next.is_empty() };
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
    fn next(&mut self, of: &Of, is_over: bool) -> Vec<Queued> {
        let fewest = if matches!(of, Of::Any) { FEWEST } else { FEWEST_OF_A_KEY };
        let mut next = Vec::new();
        let Some(queue) = self.queue_of(of) else { return next };
        if is_over {
            queue.clear();
        }
        let now = Clock::Boot.now();
        while next.len() < MOST
            && queue.front().is_some_and(|queued| queued.can_join(&next))
            && let Some(queued) = queue.pop_front()
        {
            if !queued.turn.is_closed() && queued.until.saturating_sub(now) > queued.least {
                next.push(queued);
            }
        }
        // Without a runtime there is no task for many.
        if next.len() < fewest || Handle::try_current().is_err() {
            while next.len() > 1
                && let Some(queued) = next.pop()
            {
                queue.push_front(queued);
            }
        }
        if queue.is_empty() {
            // A burst is not remembered.
            *queue = VecDeque::new();
        }
        if next.is_empty() {
            self.leave(of);
        }
        next
    }

    fn is_free(&self, of: &Of) -> bool {
        match of {
            Of::Any => self.busy < LANES,
            Of::Waiters(key) => !self.lines.contains_key(key),
        }
    }

    fn take(&mut self, of: &Of) {
        match of {
            Of::Any => self.busy = self.busy.saturating_add(1),
            Of::Waiters(key) => drop(self.lines.insert(key.clone(), VecDeque::new())),
        }
    }

    fn leave(&mut self, of: &Of) {
        match of {
            Of::Any => self.busy = self.busy.saturating_sub(1),
            Of::Waiters(key) => drop(self.lines.remove(key)),
        }
    }

    /// Those who queue for a lane that is taken.
    fn queue_of(&mut self, of: &Of) -> Option<&mut VecDeque<Queued>> {
        match of {
            Of::Any => Some(&mut self.queue),
            Of::Waiters(key) => self.lines.get_mut(key),
        }
    }
}

/// Sends many requests, and tells each what came of it.
async fn send(mut lane: Lane, requests: Vec<Queued>) {
    lane.waits_for_task = false;
    if let Of::Waiters(key) = &lane.of {
        let (inner, key) = (Arc::clone(&lane.inner), key.clone());
        return line::send(lane, inner, key, requests).await;
    }
    many::send(&lane.inner, requests).await;
}

/// Those who wait for about as long as the others; the rest go by themselves. Whoever gives up long before the
/// others must have a limit of its own at the server: what is written after that holds the key for nobody.
pub(super) fn in_step(requests: Vec<Queued>) -> Vec<Queued> {
    let half = longest(&requests).mul_f64(0.5);
    let (in_step, hurried): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| left(queued.until) >= half);
    for queued in hurried {
        tell(queued, Turn::Apart);
    }
    in_step
}

/// How long the last of them is waited for.
pub(super) fn longest(requests: &[Queued]) -> Duration {
    requests.iter().map(|queued| left(queued.until)).max().unwrap_or_default()
}

fn left(until: Duration) -> Duration {
    until.saturating_sub(Clock::Boot.now())
}

/// Tells all of them that it is not known what was done.
pub(super) fn tell_all(requests: Vec<Queued>, error: Error) {
    let error = Arc::new(error);
    for queued in requests {
        let told = Error::unavailable("MongoDB did not confirm several requests: ask again");
        tell(queued, Turn::Together(Err(told.caused_by(Arc::clone(&error)))));
    }
}

pub(super) fn tell(queued: Queued, turn: Turn) {
    // Whoever is gone asks again, or takes back what it asked for.
    drop(queued.turn.send(turn));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Caller, HandleId, Metadata,
        record::{Patience, Terms},
    };

    /// One who waits for a key, and what keeps it waiting.
    fn waiter(number: u8, limit: u32) -> (Queued, oneshot::Receiver<Turn>) {
        let terms = Terms {
            lease: LeaseId::from_bytes([number; 16]),
            caller: Caller { handle: HandleId::random(), number: number.into() },
            owner: "me".parse().unwrap(),
            limit,
            ttl: 1,
            grace: 0,
            group: None,
            metadata: Metadata::default(),
        };
        let request = Request::Acquire(Acquire { terms, patience: Some(Patience { lasts: 1, room: 9 }) });
        let (turn, taken) = oneshot::channel();
        (queued("k".parse().unwrap(), request, Duration::MAX, turn), taken)
    }

    #[tokio::test]
    async fn those_in_line_go_together_in_their_order_but_one_by_one_who_must_and_a_line_nobody_is_in_is_forgotten() {
        let key: Key = "k".parse().unwrap();
        let of = Of::Waiters(key.clone());
        let mut state = State::default();
        assert!(state.is_free(&of));
        state.take(&of);
        assert!(!state.is_free(&of) && state.is_free(&Of::Waiters("other".parse().unwrap())));
        let (mut waiting, mut kept) = (Vec::new(), Vec::new());
        for (number, limit) in [(1, 0), (2, 1), (3, 9), (4, 9), (5, 0), (6, 0), (7, 0)] {
            let (queued, taken) = waiter(number, limit);
            waiting.push(queued);
            // The sixth is gone.
            kept.extend(Some(taken).filter(|_| number != 6));
        }
        state.queue_of(&of).unwrap().extend(waiting);
        let mut next = || -> Vec<u8> {
            let next = state.next(&of, false);
            next.iter().map(|queued| queued.request.lease().unwrap().to_bytes()[0]).collect()
        };
        assert_eq!([next(), next(), next(), next()], [vec![1, 2], vec![3], vec![4], vec![5, 7]]);
        assert_eq!(next(), Vec::<u8>::new());
        assert!(state.is_free(&of) && state.lines.is_empty());
    }
}
