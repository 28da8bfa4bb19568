//! Requests of one key that are sent in one command.
//!
//! Purpose: concurrent writes of one record conflict at the server, and each writes the whole queue. A thousand waiters
//! that are sent one after another write a thousand entries a thousand times, and so do a thousand that leave the
//! queue.
//!
//! Mechanism: one command of each key is under way. The acquires and leaves of the key that come meanwhile wait in the
//! key's queue (`coalesce/queue.rs`). Acquires that share the key and do not wait are not queued. The next command
//! takes the requests of one operation from the head of the queue: its pipeline takes lists (see `operation.rs`). Each
//! other request is sent at once, as a command of its own.
//!
//! A bounded number of requests is under way (`admission.rs`). Refreshes do not count: the engine bounds them.
//!
//! Invariants: a request waits for the one before it at most half of that one's time, and an abandoned request is never
//! sent. The answer to each request comes from its own write.

pub(super) mod queue;

use std::{collections::HashSet, sync::Arc};

use tokio::time::timeout;

use self::queue::{Dispatch, Permit, QueuedRequest, SendBatch, as_acquire, is_shared};
use super::{
    command,
    context::MongoContext,
    limits::{ensure_remaining, half_remaining, min_remaining},
    operation::Operation,
    runtime_state::RuntimeState,
    task,
};
use crate::{
    Clock, Deadline, Error, Key, Result,
    record::{Outcome, Request},
    store::{Applied, BoxFuture},
};

/// Applies a request as a command of its own, or in one command with others of its key.
pub(super) async fn apply(
    context: Arc<MongoContext>,
    key: Key,
    request: Request,
    deadline: Deadline,
) -> Result<Applied> {
    let least = min_remaining(deadline);
    let is_wait = as_acquire(&request).is_some_and(|acquire| acquire.wait.is_some());
    let state = context.by_runtime.here();
    let permit = if is_wait || (Operation::of_several(&request).is_some() && !is_shared(&request)) {
        let send_batch = || batch_sender(&context, &state);
        match state.coalescer.enter(&key, &request, deadline, send_batch).await? {
            Dispatch::Alone(permit) => Some(permit),
            Dispatch::Beside => None,
            Dispatch::Batched(applied) => return applied,
        }
    } else {
        None
    };
    let guard = state.key_locks.lock_for_request(&key, deadline).await?;
    let is_refresh = matches!(request, Request::Refresh(_));
    let admitted = if is_refresh { None } else { Some(context.client.admission().admit(deadline).await?) };
    let sent = Clock::Boot.now();
    ensure_remaining(deadline, least)?;
    let sender = Arc::clone(&context);
    let applied = context.requests.track_future(async move {
        let _guard = guard;
        let applied = sender.apply(&key, &request, deadline);
        match admitted {
            Some(admitted) => admitted.run(deadline, applied).await,
            None => applied.await,
        }
    });
    let (applied, _permit) = wait_for_answer(permit, deadline, task::run(deadline, applied)).await;
    applied.map(|applied| Applied { sent: Some(sent), ..applied })
}

/// Waits for an answer. Returns it and the permit. After half of the time the permit goes to the next request: a
/// command that hangs must not delay the others until they run out of time, too.
async fn wait_for_answer<T>(
    permit: Option<Permit>,
    deadline: Deadline,
    mut answer: BoxFuture<T>,
) -> (T, Option<Permit>) {
    if permit.is_none() {
        return (answer.await, None);
    }
    if let Ok(answer) = timeout(half_remaining(deadline), &mut answer).await {
        return (answer, permit);
    }
    drop(permit);
    (answer.await, None)
}

/// Creates the function that sends the batches of a queue.
fn batch_sender(context: &Arc<MongoContext>, state: &Arc<RuntimeState>) -> SendBatch {
    let (context, state) = (Arc::clone(context), Arc::clone(state));
    Arc::new(move |permit, batch| task::spawn(send(Arc::clone(&context), Arc::clone(&state), permit, batch)))
}

/// Sends several requests of a key as one command, and answers each.
async fn send(context: Arc<MongoContext>, state: Arc<RuntimeState>, mut permit: Permit, requests: Vec<QueuedRequest>) {
    permit.begin_task();
    let mut requests = split_by_deadline(split_batchable(requests));
    let guard = match state.key_locks.lock_for_request(&permit.key, latest_deadline(&requests)).await {
        Ok(guard) => guard,
        Err(error) => return mark_unconfirmed(requests, error),
    };
    let admitted = match context.client.admission().admit(latest_deadline(&requests)).await {
        Ok(admitted) => admitted,
        Err(error) => return mark_unconfirmed(requests, error),
    };
    requests.retain(QueuedRequest::is_awaited);
    if requests.is_empty() {
        return;
    }
    let (sent, deadline) = (Clock::Boot.now(), latest_deadline(&requests));
    let batch: Vec<Request> = requests.iter().map(|queued| queued.request.clone()).collect();
    let (sender, key) = (Arc::clone(&context), permit.key.clone());
    let applied = context.requests.track_future(async move {
        let _guard = guard;
        admitted.run(deadline, sender.apply_several(&key, &batch, deadline)).await
    });
    let (applied, permit) = wait_for_answer(Some(permit), deadline, task::run(deadline, applied)).await;
    let one_by_one = match applied {
        Ok(applied) => {
            let mut others = Vec::new();
            for (queued, applied) in requests.into_iter().zip(applied) {
                if has_its_answer(&queued.request, &applied.outcome) {
                    queued.dispatch(Dispatch::Batched(Ok(Applied { sent: Some(sent), ..applied })));
                } else {
                    others.push(queued);
                }
            }
            others
        }
        Err(error @ Error::Unavailable { .. }) => return mark_unconfirmed(requests, error),
        // A definite error may concern one request of the batch. Each meets its own by its own command.
        Err(_definite) => requests,
    };
    match permit {
        Some(permit) => permit.put_back(one_by_one),
        None => one_by_one.into_iter().for_each(|queued| queued.dispatch(Dispatch::Beside)),
    }
}

/// Whether the outcome is the answer to the request. The server counts the free places before the grant, for all
/// requests of the command. If the grant has freed places, a request that found none is sent once more.
fn has_its_answer(request: &Request, outcome: &Outcome) -> bool {
    match (outcome, queue_limit(request)) {
        (Outcome::Full { length }, Some(limit)) => u32::try_from(*length).is_ok_and(|length| length >= limit),
        _ => true,
    }
}

/// Keeps the requests that one command can have: each of another lease, and, if they wait, with the same queue limit.
/// The callers of the others send them.
fn split_batchable(requests: Vec<QueuedRequest>) -> Vec<QueuedRequest> {
    let (mut leases, mut first_limit) = (HashSet::new(), None);
    let (batchable, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| {
        let limit = queue_limit(&queued.request);
        queued.request.lease().is_some_and(|lease| leases.insert(lease)) && *first_limit.get_or_insert(limit) == limit
    });
    for queued in others {
        queued.dispatch(Dispatch::Beside);
    }
    batchable
}

/// Keeps the requests with at least half of the longest time left. The callers of the others send them, with a limit of
/// their own at the server: a write that arrives after its caller has given up holds the key without a holder.
fn split_by_deadline(requests: Vec<QueuedRequest>) -> Vec<QueuedRequest> {
    let half = half_remaining(latest_deadline(&requests));
    let (kept, hurried): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|queued| queued.deadline.remaining() >= half);
    for queued in hurried {
        queued.dispatch(Dispatch::Beside);
    }
    kept
}

/// The latest of their deadlines. Without requests, a deadline that has passed.
fn latest_deadline(requests: &[QueuedRequest]) -> Deadline {
    let latest = requests.iter().map(|queued| queued.deadline.reading()).max();
    Deadline::at(Clock::Boot, latest.unwrap_or_default())
}

/// Answers each request with `Unavailable`: the outcome is not known.
fn mark_unconfirmed(requests: Vec<QueuedRequest>, error: Error) {
    let error = Arc::new(error);
    for queued in requests {
        let answer = Error::unavailable("MongoDB did not confirm a command with several requests for the key: retry");
        queued.dispatch(Dispatch::Batched(Err(answer.caused_by(Arc::clone(&error)))));
    }
}

fn queue_limit(request: &Request) -> Option<u32> {
    Some(as_acquire(request)?.wait?.queue_limit)
}

impl MongoContext {
    /// Applies requests of a key as one command. Returns the answer to each.
    async fn apply_several(&self, key: &Key, requests: &[Request], deadline: Deadline) -> Result<Vec<Applied>> {
        let command = command::encode_several(self.command_head(key, requests, deadline), requests)?;
        self.update(key, command, requests, deadline).await
    }
}
