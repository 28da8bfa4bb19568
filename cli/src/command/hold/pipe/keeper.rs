//! The task of a lease: it acquires the lease, prints its events, and carries out its requests one after the other.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use mongoseal::{Error, FencingToken, Json, LeaseState, ReleaseOutcome};
use tokio::sync::mpsc::Receiver;

use super::{
    begin::{Begun, Held},
    event::Event,
    refusal::Refusal,
    request::{BeginLease, Complete, Id, NewValue, Verb},
    shared::Shared,
};
use crate::ui::json::{self, Until};

/// How many requests of a lease can be unanswered.
const MAX_UNANSWERED: usize = 16;

/// A deadline that moved by less has not moved: it is computed from two readings of the clock.
const MOVED: u64 = 5;

type Requests = Receiver<(Id, Verb)>;
type Answer<'a> = Pin<Box<dyn Future<Output = Event> + Send + 'a>>;

/// Begins a lease and keeps it until it is over.
pub(super) async fn serve(shared: Arc<Shared>, id: Id, begin: BeginLease, mut requests: Requests) {
    let key = begin.key().to_owned();
    shared.notices.begin_wait(&key, &id);
    let held = wait(&shared, &id, begin, &mut requests).await;
    shared.notices.end_wait(&key, &id);
    let mut left = VecDeque::new();
    let mut is_lost = false;
    if let Some(held) = held {
        shared.output.print(&Event::granted(&id, &held));
        let end = keep(&shared, &id, &held, &mut requests, &mut left).await;
        is_lost = over(&shared, &id, held, end).await;
    }
    shared.forget(&id);
    // Requests that came too late.
    let received = std::iter::from_fn(|| requests.try_recv().ok());
    for (request, _) in left.into_iter().chain(received) {
        let refusal = if is_lost { Refusal::lost() } else { Refusal::unknown_lease() };
        shared.output.print(&Event::refused(Some(request), Some(id.clone()), refusal));
    }
}

/// Waits for the grant, or for the request that ends the wait.
async fn wait(shared: &Shared, id: &Id, begin: BeginLease, requests: &mut Requests) -> Option<Held> {
    let mut grant = Box::pin(begin.begin(shared.seal.clone()));
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
            Some((request, verb)) = requests.recv() => match verb {
                Verb::Release(None) | Verb::Resign => {
                    // The library withdraws the waiter in the background.
                    drop(grant);
                    refuse(id.clone(), None, Refusal::new("cancelled", "a request ended the wait"));
                    shared.output.print(&Event::Released { id: request, lease: id.clone(), confirmed: false });
                    return None;
                }
                _ => refuse(request, Some(id.clone()), Refusal::not_granted()),
            },
        }
    }
}

/// How a lease ends.
enum End {
    ByRequest(Id, Verb),
    ByItself(LeaseState),
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
                Err((request, verb)) => return End::ByRequest(request, verb),
            }
        }
        tokio::select! {
            biased;
            state = states.changed() => match state.unwrap_or(lease.state()) {
                LeaseState::AtRisk => shared.output.print(&Event::AtRisk { lease: id.clone(), until: Until::of(lease) }),
                LeaseState::Held => {}
                over => {
                    // Of the request that is carried out, the answer comes, and says that the lease is lost.
                    if let Some(answer) = answer {
                        shared.output.print(&answer.await);
                    }
                    return End::ByItself(over);
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
            Some((request, verb)) = requests.recv() => {
                if matches!(verb, Verb::Progress) {
                    lease.progress();
                    shared.output.print(&Event::Progressed { id: request, lease: id.clone() });
                } else if left.len().saturating_add(answer.iter().len()) < MAX_UNANSWERED {
                    left.push_back((request, verb));
                } else {
                    shared.output.print(&Event::refused(Some(request), Some(id.clone()), Refusal::busy()));
                }
            }
        }
    }
}

/// Begins to carry out a request, unless it ends the lease. Then returns it.
fn carry_out<'a>(id: &'a Id, held: &'a Held, request: Id, verb: Verb) -> Result<Answer<'a>, (Id, Verb)> {
    let refusal = match (&verb, held) {
        (Verb::Release(None), _)
        | (Verb::Release(_), Held::Lease(_))
        | (Verb::Complete(_), Held::Tick(_))
        | (Verb::Resign, Held::Leader(_)) => None,
        (Verb::Release(_), _) => Some("a tick and a leadership are released without a value: put it before"),
        (Verb::Complete(_), _) => Some("the lease has no tick: send `release`"),
        (Verb::Resign, _) => Some("the lease is no leadership: send `release`"),
        (Verb::Proclaim(_), Held::Lease(_) | Held::Tick(_)) => Some("the lease is no leadership: put a value"),
        _ => return Ok(Box::pin(answer(id, held, request, verb))),
    };
    let content = if let Verb::Release(Some(value)) = &verb { Json::of(&value.content).err() } else { None };
    let refusal = refusal.map(|message| Refusal::new("invalid", message)).or(content.map(Refusal::from));
    match refusal {
        Some(refusal) => Ok(Box::pin(std::future::ready(Event::refused(Some(request), Some(id.clone()), refusal)))),
        None => Err((request, verb)),
    }
}

/// Carries out a request that does not end the lease.
async fn answer(id: &Id, held: &Held, request: Id, verb: Verb) -> Event {
    match try_to_answer(id, held, request.clone(), verb).await {
        Ok(event) => event,
        Err(error) => Event::refused(Some(request), Some(id.clone()), error.into()),
    }
}

async fn try_to_answer(id: &Id, held: &Held, request: Id, verb: Verb) -> mongoseal::Result<Event> {
    let (lease, id) = (held.lease(), id.clone());
    Ok(match verb {
        Verb::Refresh(ttl) => {
            match ttl {
                Some(ttl) => lease.extend(ttl).await?,
                None => lease.refresh().await?,
            }
            Event::Refreshed { id: request, lease: id, until: Until::of(lease) }
        }
        Verb::Verify => {
            lease.verify().await?;
            Event::Verified { id: request, lease: id, until: Until::of(lease) }
        }
        Verb::PutValue(NewValue { content, keep_for }) => {
            put(lease.put_value(&content), keep_for).await?;
            Event::ValuePut { id: request, lease: id }
        }
        Verb::ClearValue => {
            lease.clear_value().await?;
            Event::ValueCleared { id: request, lease: id }
        }
        Verb::Value => {
            let value = lease.value::<Json>().await?;
            Event::Value { id: request, lease: id, value: value.as_ref().map(json::value) }
        }
        Verb::Proclaim(value) => {
            if let Held::Leader(leader) = held {
                leader.proclaim(value).await?;
            }
            Event::Proclaimed { id: request, lease: id }
        }
        // The task does all others itself.
        Verb::Progress | Verb::Release(_) | Verb::Complete(_) | Verb::Resign => {
            Event::Progressed { id: request, lease: id }
        }
    })
}

async fn put(put: mongoseal::PutValue, keep_for: Option<Duration>) -> mongoseal::Result<()> {
    match keep_for {
        Some(time) => put.keep_for(time).await,
        None => put.await,
    }
}

/// Prints how a lease ends. Returns whether it is lost.
async fn over(shared: &Shared, id: &Id, held: Held, end: End) -> bool {
    let (key, token) = (held.lease().key().clone(), held.lease().token());
    let print = |event: &Event| shared.output.print(event);
    let (request, verb) = match end {
        End::ByRequest(request, verb) => (request, verb),
        End::ByItself(state) => {
            print(&lost(id, token, &state));
            return true;
        }
    };
    let states = held.lease().watch_state();
    let lease = id.clone();
    let ended = match (held, verb) {
        (Held::Tick(tick), Verb::Complete(Complete { failed, note })) => {
            tick.note(note);
            let completed = if failed { tick.complete_failed().await } else { tick.complete().await };
            completed.map(|()| Event::Completed { id: request.clone(), lease })
        }
        (Held::Lease(held), Verb::Release(Some(NewValue { content, keep_for }))) => {
            let released = put(held.release_with_value(&content), keep_for).await;
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
    match ended {
        Ok(event) => {
            print(&event);
            false
        }
        Err(error) => {
            let is_lost = matches!(error, Error::Lost { .. } | Error::Ended { .. });
            if is_lost {
                print(&lost(id, token, &states.get()));
            }
            print(&Event::refused(Some(request), Some(id.clone()), error.into()));
            is_lost
        }
    }
}

/// The event of a lease that its holder did not end.
fn lost(id: &Id, token: FencingToken, state: &LeaseState) -> Event {
    match state {
        LeaseState::Lost { cause } => Event::lost(id, token, cause),
        _ => Event::shut_down(id, token),
    }
}
