//! Requests of one key that are sent together.
//!
//! Purpose: concurrent writes of one record conflict, and each writes the whole queue. A thousand waiters that are sent
//! one after another write a thousand entries a thousand times, and so do a thousand that leave the queue.
//!
//! Mechanism: each key has a queue and one [`Turn`]. A request waits in the queue. The turn takes from it the requests that
//! the [`SendTogether`] can send together, and a task of its own sends them: as one command, or by one load and swap. Requests
//! that come meanwhile wait for the next turn, which begins when the command is answered. If an answer is late, it may be
//! lost. Then the turn passes on without it.
//!
//! Invariants: the turn always takes the request that has waited longest. An abandoned request is never sent. A request
//! without an answer delays no other request of its key for long.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use super::{
    BoxFuture,
    answers::Applied,
    runtime::{self, Home},
};
use crate::types::{
    deadline::Deadline,
    duration::format_duration,
    error::{Error, Result},
    key::Key,
    lock::lock,
};

/// The most requests of one command. A thousand waiters need sixteen commands: larger ones would save little, and hold up
/// the requests after them.
const MAX_REQUESTS: usize = 64;

/// How much time a request must have left to be sent, if it had twice as much when it came. A write that arrives after its
/// caller has given up holds the key without a holder.
const MIN_REMAINING: Duration = Duration::from_millis(20);

/// How much sooner than its callers a command is given up, at most a tenth of its time: so they get the error of the store,
/// which says what failed.
const ERROR_MARGIN: Duration = Duration::from_millis(5);

/// A store that sends requests together.
pub(super) trait SendTogether: Send + Sync + Sized + 'static {
    /// A request to one key.
    type Request: Send + 'static;

    /// How long the turn waits for an answer before it passes on: a tenth of the time of the shortest attempt among the
    /// requests, so that a lost answer costs none of them its attempt. Each turn that begins while an answer is late waits
    /// twice as long as the one before. So on a slow network few commands of a key are under way at once.
    const PATIENCE: Duration;

    /// The queues of the store.
    fn coalescer(&self) -> &Coalescer<Self::Request>;

    /// The runtime of the tasks that send.
    fn home(&self) -> &Home;

    /// Whether a request can be sent together with these, of which there is at least one.
    fn join(others: &[Queued<Self::Request>], request: &Self::Request) -> Join;

    /// Sends the requests that the turn has taken, and answers each. Returns the turn, unless it has passed on.
    fn send(self: Arc<Self>, turn: Turn<Self>, requests: Vec<Queued<Self::Request>>) -> BoxFuture<Option<Turn<Self>>>;
}

/// Whether a request can be sent together with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// The request can.
    Together,
    /// The request cannot, and later requests may be sent before it.
    #[cfg_attr(not(feature = "mongodb"), allow(dead_code, reason = "for the store on MongoDB"))]
    Later,
    /// The request cannot, and no later request may be sent before it.
    Stop,
}

/// The queues of the keys that have a turn.
pub(super) type Coalescer<R> = Mutex<Queues<R>>;

type Queues<R> = HashMap<Key, VecDeque<Queued<R>>>;

/// A request in a queue, or that a turn has taken.
#[derive(Debug)]
pub(super) struct Queued<R> {
    pub(super) request: R,
    /// When its caller stops waiting for it.
    pub(super) deadline: Deadline,
    /// How much time it must have left to be sent.
    min_remaining: Duration,
    answer: oneshot::Sender<Result<Applied>>,
}

/// The right to send the next command of a key. If it is dropped with its runtime, all requests of its queue have ended.
pub(super) struct Turn<S: SendTogether> {
    sender: Arc<S>,
    key: Key,
    /// How long it waits for an answer.
    patience: Duration,
    /// Whether the key has no queue any more.
    is_over: bool,
}

/// Sends a request, alone or with others of its key. Returns its answer.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. If the request was not sent, it never is.
pub(super) async fn apply<S: SendTogether>(
    sender: &Arc<S>,
    key: &Key,
    request: S::Request,
    deadline: Deadline,
) -> Result<Applied> {
    runtime::current()?;
    let (answer, answered) = oneshot::channel();
    let queued = Queued { request, deadline, min_remaining: min_remaining(deadline), answer };
    if let Some(turn) = Turn::first(sender, key, queued) {
        turn.pass_on();
    }
    let Some(answered) = deadline.wait_for(answered).await else { return Err(late_error(key, deadline)) };
    answered.unwrap_or_else(|ended| Err(runtime::ended(ended)))
}

/// The least time that a request with this deadline must have left to be sent. A request of a lease with a short ttl has
/// little time from the start, so half of its time is enough.
pub(super) fn min_remaining(deadline: Deadline) -> Duration {
    MIN_REMAINING.min(deadline.remaining().mul_f64(0.5))
}

/// The error of a request whose time is over.
fn late_error(key: &Key, deadline: Deadline) -> Error {
    Error::unavailable(format!(
        "the request for {key:?} was not confirmed within {}: check that the store can be reached, and whether many callers or processes use the key, and retry",
        format_duration(deadline.whole())
    ))
}

/// Prepares requests to be sent: removes those that are abandoned or have too little time left. Returns the deadline of a
/// command of the others. `None`: there are no others.
pub(super) fn prepare<R>(key: &Key, requests: &mut Vec<Queued<R>>) -> Option<Deadline> {
    let all = mem::take(requests);
    requests.extend(all.into_iter().filter_map(|queued| queued.if_awaited(key)));
    let latest = latest_deadline(requests)?;
    Some(latest.sooner_by(ERROR_MARGIN.min(latest.remaining().mul_f64(0.1))))
}

/// The latest deadline of these requests.
pub(super) fn latest_deadline<R>(requests: &[Queued<R>]) -> Option<Deadline> {
    requests.iter().map(|queued| queued.deadline).max_by_key(|deadline| deadline.instant())
}

/// Waits for the answer to a command. If it is late, the turn passes on meanwhile.
pub(super) async fn wait_for<S: SendTogether, T>(turn: &mut Option<Turn<S>>, answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    if let Some(held) = turn {
        if let Ok(answer) = timeout(held.patience, &mut answer).await {
            held.patience = S::PATIENCE;
            return answer;
        }
        held.patience = held.patience.saturating_mul(2);
    }
    if let Some(late) = turn.take() {
        late.pass_on();
    }
    answer.await
}

/// Answers requests that were sent together with the error of their command.
pub(super) fn fail<R>(mut requests: Vec<Queued<R>>, error: Error) {
    let Some(last) = requests.pop() else { return };
    if requests.is_empty() {
        return last.answer(Err(error));
    }
    let error = Arc::new(error);
    for queued in requests.into_iter().chain([last]) {
        let answer = match &*error {
            Error::Corrupt { key, message } => Error::Corrupt { key: key.clone(), message: message.clone() },
            Error::Invalid { message, .. } => Error::invalid(message).caused_by(Arc::clone(&error)),
            _ => Error::unavailable("a command with several requests for the key was not confirmed: retry")
                .caused_by(Arc::clone(&error)),
        };
        queued.answer(Err(answer));
    }
}

impl<R> Queued<R> {
    /// Returns it if its caller still waits, and long enough for an answer. Otherwise answers it.
    fn if_awaited(self, key: &Key) -> Option<Self> {
        let is_abandoned = self.answer.is_closed();
        if !is_abandoned && self.deadline.remaining() > self.min_remaining {
            return Some(self);
        }
        if !is_abandoned {
            let error = late_error(key, self.deadline);
            self.answer(Err(error));
        }
        None
    }

    /// Answers its caller. If the caller is gone, it retries or takes the request back.
    pub(super) fn answer(self, answer: Result<Applied>) {
        drop(self.answer.send(answer));
    }
}

/// Takes the requests that can be sent together with these, in their order.
fn take_more<S: SendTogether>(
    queue: &mut VecDeque<Queued<S::Request>>,
    key: &Key,
    taken: &mut Vec<Queued<S::Request>>,
) {
    let mut kept = VecDeque::new();
    while let Some(next) = queue.pop_front() {
        let Some(next) = next.if_awaited(key) else { continue };
        let join = match taken.len() {
            0 => Join::Together,
            MAX_REQUESTS.. => Join::Stop,
            _ => S::join(taken, &next.request),
        };
        match join {
            Join::Together => taken.push(next),
            Join::Later => kept.push_back(next),
            Join::Stop => {
                kept.push_back(next);
                break;
            }
        }
    }
    kept.append(queue);
    *queue = kept;
}

impl<S: SendTogether> Turn<S> {
    /// Queues a request. Returns the turn if the key has none.
    fn first(sender: &Arc<S>, key: &Key, queued: Queued<S::Request>) -> Option<Self> {
        let mut all = lock(sender.coalescer());
        let has_turn = all.contains_key(key);
        all.entry(key.clone()).or_default().push_back(queued);
        drop(all);
        (!has_turn).then(|| Self {
            sender: Arc::clone(sender),
            key: key.clone(),
            patience: S::PATIENCE,
            is_over: false,
        })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Takes the requests that have come since and can be sent together with these.
    #[cfg_attr(not(feature = "compare-and-swap"), allow(dead_code, reason = "for stores that compare and swap"))]
    pub(super) fn take_more(&self, requests: &mut Vec<Queued<S::Request>>) {
        if let Some(queue) = lock(self.sender.coalescer()).get_mut(&self.key) {
            take_more::<S>(queue, &self.key, requests);
        }
    }

    /// Sends the next requests on a task, or ends if there are none.
    fn pass_on(mut self) {
        let mut requests = Vec::new();
        {
            let mut queues = lock(self.sender.coalescer());
            if let Some(queue) = queues.get_mut(&self.key) {
                take_more::<S>(queue, &self.key, &mut requests);
            }
            if requests.is_empty() {
                queues.remove(&self.key);
                self.is_over = true;
                return;
            }
        }
        let sender = Arc::clone(&self.sender);
        let runtime = sender.home().runtime().clone();
        #[allow(clippy::disallowed_methods, reason = "owned by the callers that wait for its answers, or by the store")]
        let _task = runtime.spawn(async move {
            if let Some(turn) = sender.send(self, requests).await {
                turn.pass_on();
            }
        });
    }
}

impl<S: SendTogether> Drop for Turn<S> {
    fn drop(&mut self) {
        if !self.is_over {
            let left = lock(self.sender.coalescer()).remove(&self.key);
            // Not under the lock: it wakes the callers that wait.
            drop(left);
        }
    }
}

#[cfg(all(test, feature = "mongodb"))]
impl<R> Queued<R> {
    /// A request whose caller has left.
    pub(super) fn of(request: R) -> Self {
        let deadline = Deadline::after(crate::types::clock::Clock::Boot, Duration::ZERO);
        Self { request, deadline, min_remaining: Duration::ZERO, answer: oneshot::channel().0 }
    }
}

#[cfg(test)]
mod tests;
