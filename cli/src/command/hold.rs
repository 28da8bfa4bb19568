//! `mongoseal hold`: acquires a key and keeps it for the program that reads its output. Without a key, see `pipe`.
//!
//! Invariants: the lease is refreshed and its loss noticed whether or not the client reads. The last event is `released`,
//! `lost`, or an `error` without an id.

mod client;
mod event;
mod lines;
mod pipe;

use std::{pin::Pin, time::Duration};

use futures_util::future::OptionFuture;
use mongoseal::{FencingToken, Key, Lease, LeaseState, LossCause, Mongoseal, ReleaseOutcome};
use serde_json::Value;
use tokio::time::sleep;

use self::{
    client::{Client, Request},
    event::Event,
};
use crate::{
    acquire::{self, Wait, with_labels},
    arguments::Hold,
    connection::Connection,
    exit_status::{Failure, Status},
    job,
    job::signals::Signals,
    leases::Leases,
    ui::json::Until,
    ui::message::print_warning,
    ui::output,
};

/// The wait after which the position is read first, and the interval at which it is read again.
const FIRST_POSITION: Duration = Duration::from_millis(200);
const POSITION_INTERVAL: Duration = Duration::from_secs(2);

/// How a wait or a lease ends by the client's wish or by a signal.
struct End {
    /// The id of the request for it.
    id: Option<Value>,
    status: Status,
}

impl End {
    const DONE: Self = Self { id: None, status: Status::DONE };
}

pub(crate) async fn perform(connection: &Connection, mut options: Hold) -> Result<Status, Failure> {
    let Some(key) = options.key.take() else { return pipe::perform(connection, &options).await };
    let mut signals = Signals::terminating()?;
    let mut client = Client::start(options.json, !options.no_stdin);
    let result = hold(connection, &key, &options, &mut signals, &mut client).await;
    if let Err(failure) = &result {
        // A loss has an event of its own, a signal has no message, and people read the standard error.
        if options.json && failure.status() != Status::LOST && !failure.message().is_empty() {
            client.print(&Event::failed(None, failure));
        }
    }
    let written = client.finish().await;
    let status = result.map_err(|failure| options.wait.status_of(failure))?;
    // A client that has left needs no message.
    written.map(|()| status).map_err(Failure::from)
}

async fn hold(
    connection: &Connection,
    key: &str,
    options: &Hold,
    signals: &mut Signals,
    client: &mut Client,
) -> Result<Status, Failure> {
    let seal = acquire::open(connection, options.owner.as_deref(), signals).await?;
    let lease = match wait(&seal, key, options, signals, client).await {
        Ok(Ok(lease)) => lease,
        Ok(Err(End { id, status })) => {
            // If the shutdown is cut short, the waiter expires by its ttl.
            let confirmed = signals.finish(seal.shutdown()).await.is_some();
            client.print(&Event::Released { id, confirmed });
            return Ok(status);
        }
        Err(failure) => {
            signals.finish(seal.shutdown()).await.unwrap_or_default();
            return Err(failure);
        }
    };
    client.print(&Event::granted(&lease));
    match keep(&lease, signals, client).await {
        Ok(end) => release(&seal, lease, end, signals, client).await,
        Err(cause) => {
            let reported = report_loss(client, lease.key(), lease.token(), &cause);
            signals.finish(seal.shutdown()).await.unwrap_or_default();
            reported
        }
    }
}

async fn acquire(seal: &Mongoseal, key: &str, options: &Hold) -> mongoseal::Result<Lease> {
    let Hold { ttl, shared, max_hold, wait, labels, .. } = options;
    let attempt = |wait| {
        let mut acquire = with_labels!(seal.acquire(key), labels).ttl(*ttl).wait(wait);
        if let Some(time) = max_hold {
            acquire = acquire.max_hold(*time);
        }
        match shared {
            Some(holders) => acquire.shared_up_to(*holders),
            None => acquire,
        }
        .into_future()
    };
    let keys = [key.to_owned()];
    let wait = Wait::new(seal, &keys, wait);
    let lease = wait.acquire(attempt).await?;
    wait.report_grant(&Leases::of([&lease], None));
    Ok(lease)
}

/// Waits for the key, and prints the position in its queue. Returns the end that comes first.
async fn wait(
    seal: &Mongoseal,
    key: &str,
    options: &Hold,
    signals: &mut Signals,
    client: &mut Client,
) -> Result<Result<Lease, End>, Failure> {
    let mut acquired = Box::pin(acquire(seal, key, options));
    let mut read = Box::pin(read_position(seal, key, FIRST_POSITION));
    let mut closed = Box::pin(output::closed(client.lines()));
    let mut printed = None;
    loop {
        tokio::select! {
            biased;
            lease = &mut acquired => return Ok(Ok(lease?)),
            number = signals.next_terminating() => {
                return Ok(Err(End { id: None, status: Status::of_signal(number) }));
            }
            () = &mut closed => return Ok(Err(End::DONE)),
            place = &mut read => {
                read.set(read_position(seal, key, POSITION_INTERVAL));
                if let Some(position) = place && printed != Some(position) {
                    printed = Some(position);
                    client.print(&Event::Waiting { position });
                }
            }
            request = client.next_request(true) => match request {
                Request::Release(id) => return Ok(Err(End { id: Some(id), status: Status::DONE })),
                Request::End => {
                    print_warning("the standard input ended before the grant: pass --no-stdin to ignore its end");
                    return Ok(Err(End::DONE));
                }
                Request::Verify(id) | Request::Refresh(id) => client.print(&Event::Error {
                    id: Some(id),
                    code: "not_held",
                    message: "the key is not granted yet: wait for the event granted".into(),
                }),
                Request::Malformed { id, message } => client.print(&malformed(id, message)),
            },
        }
    }
}

/// Reads, after a delay, the position of this program in the queue: the next in line has position 1. Returns `None` if
/// it is not in the queue or the record cannot be read, and `Some(None)` if other waiters have the same owner.
async fn read_position(seal: &Mongoseal, key: &str, delay: Duration) -> Option<Option<usize>> {
    sleep(delay).await;
    let record = seal.inspect(key).await.ok()??;
    let mut ours = record.queue.iter().filter(|waiter| waiter.owner == *seal.owner());
    let first = ours.next()?;
    Some(ours.next().is_none().then(|| first.position.saturating_add(1)))
}

fn malformed(id: Value, message: &str) -> Event {
    Event::Error { id: Some(id), code: "malformed", message: message.into() }
}

/// Keeps the lease and answers requests, one after the other. Returns how it ends, or why it was lost.
async fn keep(lease: &Lease, signals: &mut Signals, client: &mut Client) -> Result<End, LossCause> {
    let mut states = lease.watch_state();
    let mut is_at_risk = false;
    let mut closed = Box::pin(output::closed(client.lines()));
    let mut answer: Option<Pin<Box<dyn Future<Output = Event> + '_>>> = None;
    loop {
        let is_idle = answer.is_none();
        tokio::select! {
            biased;
            state = states.changed() => match state.unwrap_or(lease.state()) {
                LeaseState::Lost { cause } => return Err(cause),
                state => {
                    let is_at_risk_now = state == LeaseState::AtRisk;
                    if std::mem::replace(&mut is_at_risk, is_at_risk_now) != is_at_risk_now {
                        let until = Until::of(lease);
                        client.print(&if is_at_risk_now { Event::AtRisk { until } } else { Event::Held { until } });
                    }
                }
            },
            _number = signals.next_terminating() => return Ok(End::DONE),
            () = &mut closed => return Ok(End::DONE),
            Some(event) = OptionFuture::from(answer.as_mut()) => {
                answer = None;
                client.print(&event);
            }
            request = client.next_request(is_idle) => match request {
                Request::Verify(id) => answer = Some(Box::pin(verify(lease, id))),
                Request::Refresh(id) => answer = Some(Box::pin(refresh(lease, id))),
                Request::Release(id) => return Ok(End { id: Some(id), status: Status::DONE }),
                Request::Malformed { id, message } => client.print(&malformed(id, message)),
                Request::End => return Ok(End::DONE),
            },
        }
    }
}

async fn verify(lease: &Lease, id: Value) -> Event {
    match lease.verify().await {
        Ok(()) => Event::Verified { id, until: Until::of(lease) },
        Err(error) => Event::failed(Some(id), &error.into()),
    }
}

async fn refresh(lease: &Lease, id: Value) -> Event {
    match lease.refresh().await {
        Ok(()) => Event::Refreshed { id, until: Until::of(lease) },
        Err(error) => Event::failed(Some(id), &error.into()),
    }
}

/// Prints the event of a loss. Returns the failure whose message is for people, if the event is not.
fn report_loss(client: &mut Client, key: &Key, token: FencingToken, cause: &LossCause) -> Result<Status, Failure> {
    client.print(&Event::lost(token, cause));
    if client.is_json {
        Err(Failure::new(Status::LOST, format!("the lease on {key:?} with token {token} was lost: {cause}")))
    } else {
        Ok(Status::LOST)
    }
}

/// Releases the lease, and prints that, or that it had been lost before.
async fn release(
    seal: &Mongoseal,
    lease: Lease,
    End { id, status }: End,
    signals: &mut Signals,
    client: &mut Client,
) -> Result<Status, Failure> {
    let (key, token, remaining) = (lease.key().clone(), lease.token(), lease.remaining());
    match job::release_in_time(seal, signals, remaining, lease.release()).await {
        Some(Ok(ReleaseOutcome::Released)) => {
            client.print(&Event::Released { id, confirmed: true });
            return Ok(status);
        }
        Some(Ok(ReleaseOutcome::AlreadyLost { cause })) => {
            return report_loss(client, &key, token, &cause);
        }
        doubtful => job::report_doubt(doubtful),
    }
    client.print(&Event::Released { id, confirmed: false });
    Ok(status)
}
