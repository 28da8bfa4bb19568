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

use super::{context::MongoContext, limits::ensure_remaining, operation::Operation, state::admission::Admitted, task};
use crate::{
    record::{Acquire, Outcome, Request},
    store::{
        Applied, BoxFuture,
        coalesce::{self, Coalescer, Join, Queued, SendTogether, Turn, min_remaining},
        runtime::Home,
    },
    types::{
        clock::Clock,
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
    let least = min_remaining(deadline);
    let is_acquire = as_acquire(&request).is_some();
    let is_refresh = matches!(request, Request::Refresh(_));
    let (admitting, sender) = (Arc::clone(&context), Arc::clone(&context));
    let admit = async move {
        let (requests, until) = (admitting.client.requests(), task::permit_deadline(deadline));
        Ok(match (is_refresh, is_acquire) {
            (true, _) => None,
            (_, true) => Some(requests.admit_acquire(until).await?),
            _ => Some(requests.admit_holder(until).await?),
        })
    };
    let work = move |admitted: Option<Admitted>| async move {
        let sent = Clock::Boot.now();
        ensure_remaining(deadline, least)?;
        let Some(admitted) = admitted else {
            return Ok((sent, sender.apply(&key, slice::from_ref(&request), deadline).await?));
        };
        let limited = if is_acquire { admitted.for_acquire(deadline) } else { deadline };
        let applied = sender.apply(&key, slice::from_ref(&request), limited);
        Ok((sent, admitted.run(deadline, applied).await?))
    };
    let on = (context.runtime(), &context.requests);
    let (sent, mut applied) = task::run_admitted(on, deadline, admit, work).await?;
    let applied = applied.pop();
    if is_acquire && applied.as_ref().is_some_and(|applied| applied.changed) {
        context.client.requests().note_acquire(Clock::Boot.now().since(sent));
    }
    let applied =
        applied.ok_or_else(|| Error::invalid("a command was sent without a request: report this bug of mongoseal"))?;
    Ok(Applied { sent: Some(sent), ..applied })
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
    let are_acquires = requests.iter().any(|queued| as_acquire(&queued.request).is_some());
    let admission = context.client.requests();
    let until = task::permit_deadline(latest);
    let admitted =
        if are_acquires { admission.admit_acquire(until).await } else { admission.admit_holder(until).await };
    let admitted = match admitted {
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
    let limited = if are_acquires { admitted.for_acquire(deadline) } else { deadline };
    let sent = Clock::Boot.now();
    let batch: Vec<Request> = requests.iter().map(|queued| queued.request.clone()).collect();
    let (sender, of) = (Arc::clone(&context), key.clone());
    let applied =
        context.requests.track_future(async move { admitted.run(deadline, sender.apply(&of, &batch, limited)).await });
    let again = match coalesce::wait_for(&mut turn, task::run(context.runtime(), deadline, applied)).await {
        Ok(applied) => {
            if are_acquires && applied.iter().all(|applied| applied.changed) {
                admission.note_acquire(Clock::Boot.now().since(sent));
            }
            let (is_single, mut others) = (requests.len() == 1, Vec::new());
            for (queued, applied) in requests.into_iter().zip(applied) {
                if is_single || has_its_answer(&queued.request, &applied.outcome) {
                    queued.answer(Ok(Applied { sent: Some(sent), ..applied }));
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

/// Whether the outcome is the answer to the request. The server counts the free places before the grant, for all
/// requests of the command. If the grant has freed places, a request that found none is sent once more.
fn has_its_answer(request: &Request, outcome: &Outcome) -> bool {
    match (outcome, queue_limit(request)) {
        (Outcome::Full { length }, Some(limit)) => u32::try_from(*length).is_ok_and(|length| length >= limit),
        _ => true,
    }
}

/// The operation of a command that the request can share. An acquire that shares the key has none: see
/// [`FencingToken::following`](crate::FencingToken::following).
fn operation(request: &Request) -> Option<Operation> {
    let is_shared = as_acquire(request).is_some_and(|acquire| !acquire.terms.sharing.is_exclusive());
    Some(Operation::of(request)).filter(|operation| operation.is_of_several() && !is_shared)
}

fn is_wait(request: &Request) -> bool {
    queue_limit(request).is_some()
}

fn queue_limit(request: &Request) -> Option<u32> {
    Some(as_acquire(request)?.wait?.queue_limit)
}

fn as_acquire(request: &Request) -> Option<&Acquire> {
    match request {
        Request::Acquire(acquire) => Some(acquire),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{LeaseSpec, Leave, WaitSpec},
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
