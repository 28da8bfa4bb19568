//! The task of a lease: it acquires the lease, prints its events, and carries out its requests one after the other.

use std::{
    collections::VecDeque,
    future::{pending, ready},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::OptionFuture;
use mongoseal::{Error, FencingToken, Json, LeaseState, ReleaseOutcome};
use tokio::sync::mpsc::{Receiver, Sender};

use super::{
    begin::{Begun, Held},
    event::Event,
    refusal::Refusal,
    request::{Ask, BeginLease, Complete, Ending, Id, NewValue, Verb},
    shared::Shared,
};
use crate::ui::json::{self, Until};

/// How many requests of a lease can be unanswered.
const MAX_UNANSWERED: usize = 16;

/// A deadline that moved by less has not moved: it is computed from two readings of the clock.
const MOVED: u64 = 5;

type Answer<'a> = Pin<Box<dyn Future<Output = Event> + Send + 'a>>;

/// The requests of a lease.
pub(super) struct Requests {
    pub(super) requests: Receiver<(Id, Verb)>,
    /// Dropped when all requests are answered and none can follow.
    pub(super) answering: Option<Sender<()>>,
}

impl Requests {
    /// Returns the next request. If none can follow, waits for ever. `is_idle`: whether all earlier ones are answered.
    async fn next(&mut self, is_idle: bool) -> (Id, Verb) {
        if let Some(request) = self.requests.recv().await {
            return request;
        }
        if is_idle {
            self.answering = None;
        }
        pending().await
    }
}

/// Begins a lease and keeps it until it is over.
pub(super) async fn serve(shared: Arc<Shared>, id: Id, begin: BeginLease, mut requests: Requests) {
    let held = wait(&shared, &id, begin, &mut requests).await;
    let mut left = VecDeque::new();
    let mut is_lost = false;
    if let Some(held) = held {
        shared.output.print(&Event::granted(&id, &held));
        is_lost = hold(&shared, &id, held, &mut requests, &mut left).await;
    }
    shared.forget(&id);
    // Requests that came too late.
    let received = std::iter::from_fn(|| requests.requests.try_recv().ok());
    for (request, _) in left.into_iter().chain(received) {
        let refusal = if is_lost { Refusal::lost() } else { Refusal::unknown_lease() };
        shared.output.print(&Event::refused(Some(request), Some(id.clone()), refusal));
    }
}

/// Waits for the grant, or for the request that ends the wait.
async fn wait(shared: &Shared, id: &Id, begin: BeginLease, requests: &mut Requests) -> Option<Held> {
    // A place that comes late is not printed behind the end of the wait.
    let is_waiting = Arc::new(Mutex::new(true));
    let (output, lease, waits) = (shared.output.clone(), id.clone(), Arc::clone(&is_waiting));
    let on_queued = move |ahead: usize| {
        let waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
        if *waits {
            output.print(&Event::Waiting { lease: lease.clone(), position: ahead.saturating_add(1) });
        }
    };
    let mut grant = Box::pin(begin.begin(shared.seal.clone(), on_queued));
    let refuse = |request: Id, lease, refusal| shared.output.print(&Event::refused(Some(request), lease, refusal));
    loop {
        tokio::select! {
            biased;
            granted = &mut grant => match granted {
                Ok(Begun::Held(held)) => return Some(*held),
                Ok(Begun::Done { outcome, tick, by, at }) => {
                    shared.output.print(&Event::done(id, outcome, tick, by, at));
                    return None;
                }
                Err(refusal) => {
                    refuse(id.clone(), None, refusal);
                    return None;
                }
            },
            (request, verb) = requests.next(true) => match verb {
                Verb::End(Ending::Release(None) | Ending::Resign) => {
                    // The library withdraws the waiter in the background.
                    drop(grant);
                    *is_waiting.lock().unwrap_or_else(PoisonError::into_inner) = false;
                    refuse(id.clone(), None, Refusal::new("cancelled", "a request ended the wait"));
                    shared.output.print(&Event::Released { id: request, lease: id.clone(), confirmed: false });
                    return None;
                }
                _ => refuse(request, Some(id.clone()), Refusal::not_granted()),
            },
        }
    }
}

/// Keeps a lease until it is over. Returns whether it is lost.
async fn hold(
    shared: &Shared,
    id: &Id,
    mut held: Held,
    requests: &mut Requests,
    left: &mut VecDeque<(Id, Verb)>,
) -> bool {
    loop {
        let End::ByRequest(request, ending) = keep(shared, id, &held, requests, left).await else { return true };
        held = match end(shared, id, held, request, ending).await {
            Ok(is_lost) => return is_lost,
            Err(still_held) => still_held,
        };
    }
}

/// How a lease ends.
enum End {
    ByRequest(Id, Ending),
    /// The event that it is lost was printed.
    Lost,
}

/// Prints the events of a lease and carries out its requests, until it ends. The requests that are `left` have no answer.
async fn keep(shared: &Shared, id: &Id, held: &Held, requests: &mut Requests, left: &mut VecDeque<(Id, Verb)>) -> End {
    let lease = held.lease();
    let mut states = lease.watch_state();
    let mut refreshed = shared.notices.refreshed();
    let mut deadline = Until::of(lease).deadline_ms;
    let mut answer: Option<Answer<'_>> = None;
    loop {
        while answer.is_none()
            && let Some((request, verb)) = left.pop_front()
        {
            match carry_out(id, held, request, verb) {
                Ok(begun) => answer = Some(begun),
                Err((request, ending)) => return End::ByRequest(request, ending),
            }
        }
        let is_idle = answer.is_none();
        tokio::select! {
            biased;
            state = states.changed() => match state.unwrap_or(lease.state()) {
                LeaseState::AtRisk => shared.output.print(&Event::AtRisk { lease: id.clone(), until: Until::of(lease) }),
                LeaseState::Held => {}
                over => {
                    shared.output.print(&lost(id, lease.token(), &over));
                    // A server that does not answer delays the answer, and not the event.
                    if let Some(answer) = answer {
                        shared.output.print(&answer.await);
                    }
                    return End::Lost;
                }
            },
            Some(event) = OptionFuture::from(answer.as_mut()) => {
                answer = None;
                shared.output.print(&event);
            }
            Ok(()) = refreshed.changed() => {
                let until = Until::of(lease);
                if until.deadline_ms > deadline.saturating_add(MOVED) {
                    deadline = until.deadline_ms;
                    shared.output.print(&Event::Held { lease: id.clone(), until });
                }
            }
            (request, verb) = requests.next(is_idle) => {
                if matches!(verb, Verb::Progress) {
                    shared.output.print(&progress(id, held, request));
                } else if left.len().saturating_add(answer.iter().len()) < most_unanswered(&verb) {
                    left.push_back((request, verb));
                } else {
                    shared.output.print(&Event::refused(Some(request), Some(id.clone()), Refusal::busy()));
                }
            }
        }
    }
}

/// How many requests can be unanswered when this one comes. One that ends the lease is not refused for the others: a client
/// that has given the lease up sends it once.
fn most_unanswered(verb: &Verb) -> usize {
    if matches!(verb, Verb::End(_)) { MAX_UNANSWERED * 2 } else { MAX_UNANSWERED }
}

fn progress(id: &Id, held: &Held, request: Id) -> Event {
    held.lease().progress();
    Event::Progressed { id: request, lease: id.clone() }
}

/// Begins to carry out a request, unless it ends the lease. Then returns it.
fn carry_out<'a>(id: &'a Id, held: &'a Held, request: Id, verb: Verb) -> Result<Answer<'a>, (Id, Ending)> {
    match verb {
        Verb::Progress => Ok(Box::pin(ready(progress(id, held, request)))),
        Verb::Ask(ask) => Ok(Box::pin(answer(id, held, request, ask))),
        Verb::End(ending) => match refusal(held, &ending) {
            Some(refusal) => Ok(Box::pin(ready(Event::refused(Some(request), Some(id.clone()), refusal)))),
            None => Err((request, ending)),
        },
    }
}

/// Returns why a request cannot end what is held.
fn refusal(held: &Held, ending: &Ending) -> Option<Refusal> {
    let message = match (ending, held) {
        (Ending::Release(None), _) | (Ending::Complete(_), Held::Tick(_)) | (Ending::Resign, Held::Leader(_)) => {
            return None;
        }
        (Ending::Release(Some(value)), Held::Lease(_)) => return Json::of(&value.content).err().map(Refusal::from),
        (Ending::Release(Some(_)), _) => "a tick and a leadership are released without a value: put it before",
        (Ending::Complete(_), _) => "the lease has no tick: send `release`",
        (Ending::Resign, _) => "the lease is no leadership: send `release`",
    };
    Some(Refusal::new("invalid", message))
}

/// Carries out a request that leaves the lease as it is.
async fn answer(id: &Id, held: &Held, request: Id, ask: Ask) -> Event {
    let answered = try_to_answer(id, held, request.clone(), ask).await;
    answered.unwrap_or_else(|refusal| Event::refused(Some(request), Some(id.clone()), refusal))
}

async fn try_to_answer(id: &Id, held: &Held, request: Id, ask: Ask) -> Result<Event, Refusal> {
    let (lease, id) = (held.lease(), id.clone());
    Ok(match ask {
        Ask::Refresh(ttl) => {
            match ttl {
                Some(ttl) => lease.extend(ttl).await?,
                None => lease.refresh().await?,
            }
            Event::Refreshed { id: request, lease: id, until: Until::of(lease) }
        }
        Ask::Verify => {
            lease.verify().await?;
            Event::Verified { id: request, lease: id, until: Until::of(lease) }
        }
        Ask::PutValue(NewValue { content, keep_for }) => {
            put(lease.put_value(&content), keep_for).await?;
            Event::ValuePut { id: request, lease: id }
        }
        Ask::ClearValue => {
            lease.clear_value().await?;
            Event::ValueCleared { id: request, lease: id }
        }
        Ask::Value => {
            let value = lease.value::<Json>().await?;
            Event::Value { id: request, lease: id, value: value.as_ref().map(json::value) }
        }
        Ask::Proclaim(value) => {
            let Held::Leader(leader) = held else {
                return Err(Refusal::new("invalid", "the lease is no leadership: put a value"));
            };
            leader.proclaim(value).await?;
            Event::Proclaimed { id: request, lease: id }
        }
    })
}

async fn put(put: mongoseal::action::PutValue, keep_for: Option<Duration>) -> mongoseal::Result<()> {
    match keep_for {
        Some(time) => put.keep_for(time).await,
        None => put.await,
    }
}

/// Ends a lease by a request, and prints how it ended. Returns whether it is lost, or what is still held.
async fn end(shared: &Shared, id: &Id, held: Held, request: Id, ending: Ending) -> Result<bool, Held> {
    let (key, token) = (held.lease().key().clone(), held.lease().token());
    let print = |event: &Event| shared.output.print(event);
    let refuse = |refusal| print(&Event::refused(Some(request.clone()), Some(id.clone()), refusal));
    let lease = id.clone();
    let ended = match (held, ending) {
        (Held::Tick(tick), Ending::Complete(Complete { failed, note })) => {
            tick.note(note);
            let completed = if failed { tick.complete_failed().await } else { tick.complete().await };
            completed.map(|()| Event::Completed { id: request.clone(), lease })
        }
        (Held::Lease(held), Ending::Release(Some(NewValue { content, keep_for }))) => {
            let released = put(held.release_with_value(&content), keep_for).await;
            if let (Err(error), LeaseState::Held | LeaseState::AtRisk) = (&released, held.state()) {
                refuse(error.into());
                return Err(Held::Lease(held));
            }
            released.map(|()| Event::Released { id: request.clone(), lease, confirmed: true })
        }
        (held, _) => match held.release().await {
            Ok(ReleaseOutcome::AlreadyLost { cause }) => Err(Error::Lost { key, token, cause }),
            released => {
                let confirmed = matches!(released, Ok(ReleaseOutcome::Released));
                Ok(Event::Released { id: request.clone(), lease, confirmed })
            }
        },
    };
    Ok(match ended {
        Ok(event) => {
            print(&event);
            false
        }
        Err(error) => {
            let is_lost = match &error {
                Error::Lost { cause, .. } => {
                    print(&Event::lost(id, token, cause));
                    true
                }
                Error::Ended { .. } => {
                    print(&Event::shut_down(id, token));
                    true
                }
                _ => false,
            };
            refuse(Refusal::of_ended(&error));
            is_lost
        }
    })
}

/// The event of a lease that its holder did not end.
fn lost(id: &Id, token: FencingToken, state: &LeaseState) -> Event {
    match state {
        LeaseState::Lost { cause } => Event::lost(id, token, cause),
        _ => Event::shut_down(id, token),
    }
}
