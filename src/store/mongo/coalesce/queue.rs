//! The queue of a key: the requests that wait for the command of the key that is under way.
//!
//! Purpose: the data of `coalesce.rs`, which decides what a request does and sends the batches.
//!
//! Mechanism: a request that finds no command of its key under way gets the [`Permit`]; later requests wait in the
//! queue. When the permit is dropped, it goes to the first request, or with the first requests of one operation to
//! [`SendBatch`].
//!
//! Invariants: each key has at most one permit. An abandoned request is never sent.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::super::{limits::min_remaining, operation::Operation};
use crate::{
    Deadline, Error, Key, Result,
    record::{Acquire, Request},
    store::Applied,
};

/// The most requests of one command.
const MAX_REQUESTS_PER_COMMAND: usize = 64;

/// Sends several requests of a key as one command, on a task of its own.
pub(super) type SendBatch = Arc<dyn Fn(Permit, Vec<QueuedRequest>) + Send + Sync>;

/// The keys with a command under way, and their queues.
#[derive(Default)]
pub(in crate::store::mongo) struct Coalescer {
    queues: Mutex<Queues>,
}

/// The requests of each key that wait, in the order in which they came.
#[derive(Default)]
struct Queues(HashMap<Key, VecDeque<QueuedRequest>>);

/// A request that waits for the command before it.
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    /// When its caller stops waiting for it.
    pub(super) deadline: Deadline,
    /// How much time it must have left to be sent.
    min_remaining: Duration,
    /// The operation of a command that it can share. `None`: it needs a command of its own.
    operation: Option<Operation>,
    dispatch: oneshot::Sender<Dispatch>,
}

impl QueuedRequest {
    fn new(request: Request, deadline: Deadline, dispatch: oneshot::Sender<Dispatch>) -> Self {
        let operation = Operation::of_several(&request).filter(|_| !is_shared(&request));
        Self { request, deadline, min_remaining: min_remaining(deadline), operation, dispatch }
    }

    /// Whether it can be sent with these.
    fn can_join(&self, others: &[Self]) -> bool {
        others.first().is_none_or(|first| self.operation.is_some() && first.operation == self.operation)
    }

    /// Whether its caller still waits, and long enough for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        !self.dispatch.is_closed() && self.deadline.remaining() > self.min_remaining
    }

    /// Answers its caller. If the caller is gone, it retries or takes the request back.
    pub(super) fn dispatch(self, dispatch: Dispatch) {
        drop(self.dispatch.send(dispatch));
    }
}

/// What happens to a queued request.
pub(super) enum Dispatch {
    /// Its caller sends it as the next command of its key.
    Alone(Permit),
    /// Its caller sends it beside the command that is under way.
    Beside,
    /// It was sent with others.
    Batched(Result<Applied>),
}

/// The right to be the command of a key that is under way. Dropping it passes it on to the next request.
pub(super) struct Permit {
    coalescer: Arc<Coalescer>,
    pub(super) key: Key,
    send_batch: SendBatch,
    /// Whether it was given to a task that has not begun. A runtime that shuts down drops such a task when it is
    /// spawned.
    waits_for_task: bool,
}

impl Coalescer {
    /// Waits until the request may be sent, or was sent with others.
    pub(super) async fn enter(
        self: &Arc<Self>,
        key: &Key,
        request: &Request,
        deadline: Deadline,
        send_batch: impl FnOnce() -> SendBatch,
    ) -> Result<Dispatch> {
        let dispatched = {
            let mut queues = self.queues();
            let Some(queue) = queues.0.get_mut(key) else {
                queues.0.insert(key.clone(), VecDeque::new());
                let (coalescer, key) = (Arc::clone(self), key.clone());
                return Ok(Dispatch::Alone(Permit { coalescer, key, send_batch: send_batch(), waits_for_task: false }));
            };
            let (dispatch, dispatched) = oneshot::channel();
            queue.push_back(QueuedRequest::new(request.clone(), deadline, dispatch));
            dispatched
        };
        timeout(deadline.remaining(), dispatched).await.ok().and_then(Result::ok).ok_or_else(|| {
            Error::unavailable(
                "earlier requests of this handle for the key have no answer yet: check that a primary can be reached and retry",
            )
        })
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Notes that the task to which this was given has begun.
    pub(super) fn begin_task(&mut self) {
        self.waits_for_task = false;
    }

    /// Puts these requests at the head of the queue. Each is then a command of its own.
    pub(super) fn put_back(&self, requests: Vec<QueuedRequest>) {
        let mut queues = self.coalescer.queues();
        let Some(queue) = queues.0.get_mut(&self.key) else { return };
        for queued in requests.into_iter().rev() {
            queue.push_front(QueuedRequest { operation: None, ..queued });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut batch = self.coalescer.queues().take_batch(&self.key, self.waits_for_task);
        let Some(first) = batch.pop() else { return };
        let (coalescer, key, send_batch) =
            (Arc::clone(&self.coalescer), self.key.clone(), Arc::clone(&self.send_batch));
        let permit = Self { coalescer, key, send_batch, waits_for_task: !batch.is_empty() };
        if batch.is_empty() {
            // If its caller is gone, the permit comes back and goes to the next.
            first.dispatch(Dispatch::Alone(permit));
        } else {
            batch.push(first);
            (self.send_batch)(permit, batch);
        }
    }
}

impl Queues {
    /// Takes the requests of the next command of a key. Without requests, no command of the key is under way any more.
    fn take_batch(&mut self, key: &Key, has_ended: bool) -> Vec<QueuedRequest> {
        let mut batch = Vec::new();
        let Some(queue) = self.0.get_mut(key) else { return batch };
        if has_ended {
            queue.clear();
        }
        while batch.len() < MAX_REQUESTS_PER_COMMAND
            && queue.front().is_some_and(|queued| queued.can_join(&batch))
            && let Some(queued) = queue.pop_front()
        {
            if queued.is_awaited() {
                batch.push(queued);
            }
        }
        // Several requests are sent by a task, and without a runtime there is none.
        if Handle::try_current().is_err() {
            while batch.len() > 1
                && let Some(queued) = batch.pop()
            {
                queue.push_front(queued);
            }
        }
        if queue.is_empty() {
            // Returns the memory of a burst.
            *queue = VecDeque::new();
        }
        if batch.is_empty() {
            self.0.remove(key);
        }
        batch
    }
}

/// Whether an acquire shares the key. Then it needs a command of its own: see `FencingToken::following`.
pub(super) fn is_shared(request: &Request) -> bool {
    as_acquire(request).is_some_and(|acquire| acquire.terms.limit > 1)
}

pub(super) fn as_acquire(request: &Request) -> Option<&Acquire> {
    match request {
        Request::Acquire(acquire) => Some(acquire),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
