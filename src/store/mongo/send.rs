//! How the requests of a key are sent.
//!
//! Purpose: acquires and leaves of a key that come while a command of the key is under way are sent together, by
//! `store/coalesce.rs`.
//!
//! Mechanism: a command applies requests of one operation, whose pipeline takes lists (see `operation.rs`). Acquires that
//! share the key and wait are queued, and each is a command of its own. All other requests are sent at once.
//!
//! Invariants: the answer to each request comes from its own write. A refresh waits for no queue, and for no permit of
//! `state/admission.rs`.

use std::{slice, sync::Arc, time::Duration};

use super::{
    context::MongoContext,
    execute::has_no_room,
    operation::{Operation, queue_limit},
    state::admission::Class,
    task,
};
use crate::{
    record::Request,
    store::{
        Applied, BoxFuture,
        coalesce::{self, Coalescer, Join, Queued, SendTogether, Turn},
        runtime::Home,
    },
    types::{
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
    },
};

/// Sends a request, alone or in one command with others of its key. Returns its answer.
pub(super) async fn apply(
    context: Arc<MongoContext>,
    key: Key,
    request: Request,
    deadline: Deadline,
) -> Result<Applied> {
    if is_wait(&request) || operation(&request).is_some() {
        return coalesce::apply(&context, &key, request, deadline).await;
    }
    let class = class(&request);
    let send = |context: Arc<MongoContext>, deadline| async move {
        context.apply(&key, slice::from_ref(&request), deadline).await
    };
    let applied = context.run(class, deadline, send).await?.pop();
    applied.ok_or_else(|| Error::invalid("a command was sent without a request: report this bug of mongoseal"))
}

impl SendTogether for MongoContext {
    type Request = Request;

    /// An attempt of an acquire or a leave has five seconds.
    const PATIENCE: Duration = Duration::from_millis(500);

    fn coalescer(&self) -> &Coalescer<Request> {
        &self.coalescer
    }

    fn home(&self) -> &Home {
        &self.home
    }

    /// A command has requests of one operation, each of another lease, and if they wait, with one queue limit. No waiter is
    /// sent before one that came earlier.
    fn join(others: &[Queued<Request>], request: &Request) -> Join {
        let Some(Queued { request: first, .. }) = others.first() else { return Join::Together };
        let is_alike = operation(first).is_some()
            && operation(first) == operation(request)
            && queue_limit(first) == queue_limit(request);
        if is_alike && others.iter().all(|other| other.request.lease() != request.lease()) {
            Join::Together
        } else if is_wait(first) && is_wait(request) {
            Join::Stop
        } else {
            Join::Later
        }
    }

    fn send(self: Arc<Self>, turn: Turn<Self>, requests: Vec<Queued<Request>>) -> BoxFuture<Option<Turn<Self>>> {
        let key = turn.key().clone();
        Box::pin(send(self, key, Some(turn), requests))
    }
}

/// Sends these requests of a key as one command, and answers each. Returns the turn, unless it has passed on.
async fn send(
    context: Arc<MongoContext>,
    key: Key,
    mut turn: Option<Turn<MongoContext>>,
    mut requests: Vec<Queued<Request>>,
) -> Option<Turn<MongoContext>> {
    let Some(latest) = coalesce::latest_deadline(&requests) else { return turn };
    let class = requests.first().map_or(Class::Holder, |queued| class(&queued.request));
    let admitted = match context.client.limits.requests.admit(class, latest).await {
        Ok(admitted) => admitted,
        Err(error) => {
            coalesce::fail(requests, error);
            return turn;
        }
    };
    // Those with less than half of the longest time left are sent at once, each with a limit of its own at the server: a
    // write that arrives after its caller has given up holds the key without a holder.
    let half = latest.remaining().mul_f64(0.5);
    let hurried: Vec<_> = requests.extract_if(.., |queued| queued.deadline.remaining() < half).collect();
    for queued in hurried {
        task::spawn(context.runtime(), send_alone(&context, &key, queued));
    }
    let Some(deadline) = coalesce::prepare(&key, &mut requests) else { return turn };
    let batch: Vec<Request> = requests.iter().map(|queued| queued.request.clone()).collect();
    let (sender, of) = (Arc::clone(&context), key.clone());
    let applied = context
        .requests
        .track_future(async move { admitted.run(deadline, |limited| sender.apply(&of, &batch, limited)).await });
    let again = match coalesce::wait_for(&mut turn, task::run(context.runtime(), deadline, applied)).await {
        Ok(applied) => {
            let (is_single, mut others) = (requests.len() == 1, Vec::new());
            // A request that found no place is sent once more, if there is one now.
            for (queued, applied) in requests.into_iter().zip(applied) {
                if is_single || has_no_room(&queued.request, &applied.outcome) {
                    queued.answer(Ok(applied));
                } else {
                    others.push(queued);
                }
            }
            others
        }
        // A definite error may concern one request of several. Each meets its own by its own command.
        Err(error) if requests.len() > 1 && !matches!(error, Error::Unavailable { .. }) => requests,
        Err(error) => {
            coalesce::fail(requests, error);
            return turn;
        }
    };
    // In their order, and before the requests that came later.
    let sending = async {
        for queued in again {
            send_alone(&context, &key, queued).await;
        }
    };
    coalesce::wait_for(&mut turn, sending).await;
    turn
}

/// Sends a request as a command of its own.
fn send_alone(context: &Arc<MongoContext>, key: &Key, queued: Queued<Request>) -> BoxFuture<()> {
    let sending = send(Arc::clone(context), key.clone(), None, vec![queued]);
    Box::pin(async { drop(sending.await) })
}

/// The operation of a command that the request can share. An acquire that shares the key has none: see
/// [`FencingToken::following`](crate::FencingToken::following).
fn operation(request: &Request) -> Option<Operation> {
    let is_shared = matches!(request, Request::Acquire(acquire) if !acquire.terms.sharing.is_exclusive());
    Some(Operation::of(request)).filter(|operation| operation.is_of_several() && !is_shared)
}

fn class(request: &Request) -> Class {
    match request {
        Request::Acquire(_) => Class::Acquire,
        Request::Refresh(_) => Class::Keep,
        _ => Class::Holder,
    }
}

fn is_wait(request: &Request) -> bool {
    queue_limit(request).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Acquire, LeaseSpec, Leave, WaitSpec},
        types::{lease_id::LeaseId, sharing::Sharing},
    };

    fn leave(number: u8) -> Request {
        let lease = LeaseId::from_bytes([number; 16]);
        Request::Leave(Leave { lease, acquire_id: "0000000000000001/0".parse().unwrap() })
    }

    /// An acquire. It waits if it has a limit of the queue.
    fn acquire(number: u8, sharing: Sharing, queue_limit: Option<u32>) -> Request {
        let terms = LeaseSpec::of_number(number, sharing, 1_000);
        Request::Acquire(Acquire { terms, wait: queue_limit.map(|queue_limit| WaitSpec { ttl: 500, queue_limit }) })
    }

    #[test]
    fn a_command_has_requests_of_one_operation_and_one_queue_limit_each_of_another_lease() {
        let once = |number| acquire(number, Sharing::Exclusive, None);
        let waits = |number, limit| acquire(number, Sharing::Exclusive, Some(limit));
        let shares = |number| acquire(number, Sharing::Shared, Some(4));
        assert_eq!(MongoContext::join(&[], &shares(1)), Join::Together);
        for (first, then, expected) in [
            (leave(1), leave(2), Join::Together),
            (leave(1), leave(1), Join::Later),
            (leave(1), once(2), Join::Later),
            (once(1), leave(2), Join::Later),
            (once(1), once(2), Join::Together),
            (once(1), once(1), Join::Later),
            (once(1), waits(2, 4), Join::Later),
            (waits(1, 4), once(2), Join::Later),
            (waits(1, 4), waits(2, 4), Join::Together),
            (waits(1, 4), waits(2, 5), Join::Stop),
            (waits(1, 4), waits(1, 4), Join::Stop),
            (waits(1, 4), shares(2), Join::Stop),
            (shares(1), waits(2, 4), Join::Stop),
            (shares(1), shares(2), Join::Stop),
        ] {
            let said = format!("{first:?}, then {then:?}");
            assert_eq!(MongoContext::join(&[Queued::of(first)], &then), expected, "{said}");
        }
    }
}
