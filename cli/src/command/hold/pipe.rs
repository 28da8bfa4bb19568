//! `mongoseal hold` without a key: leases on any number of keys for the program at the other end of two pipes.
//! `protocol/pipe.md` is the contract.
//!
//! Mechanism: this file reads the lines and passes each request to the task of its lease. All tasks print to one output.
//!
//! Invariants: no lease waits for another, nor for the reader of the output. Each request has one answer. When the input or
//! the output ends, all leases are released.

mod begin;
mod event;
mod keeper;
mod notices;
mod observation;
mod output;
mod request;

use std::{
    collections::{HashMap, hash_map},
    io::{self, BufRead},
    sync::{Arc, Mutex, PoisonError},
};

use mongoseal::Mongoseal;
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot,
    },
    task::{JoinSet, spawn_blocking},
};

use self::{
    event::{Event, Refusal},
    notices::Notices,
    output::Output,
    request::{Action, Begin, Id, Request, Verb},
};
use super::lines::next_line;
use crate::{
    acquire,
    arguments::Hold,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
};

/// The longest request, in bytes: a value of 64 KiB with each byte escaped, and its members.
const MAX_REQUEST: usize = 512 * 1024;
/// How many lines wait to be read by the tasks.
const READ_AHEAD: usize = 16;
/// How many leases, waits and observations there can be.
const MAX_LEASES: usize = 20_000;
/// How many requests of a lease can be on their way to its task, which takes them at once.
const ON_THE_WAY: usize = 64;

/// What the tasks share.
struct Session {
    seal: Mongoseal,
    output: Output,
    notices: Arc<Notices>,
    tasks: Mutex<HashMap<Id, Task>>,
    running: Mutex<JoinSet<()>>,
}

/// How to reach the task of a lease or an observation.
enum Task {
    Lease(Sender<(Id, Verb)>),
    /// It ends with the id of the request that ends it.
    Observation(oneshot::Sender<Id>),
}

pub(super) async fn perform(connection: &Connection, options: &Hold) -> Result<Status, Failure> {
    if let Some(option) = options.of_one_key() {
        return Err(Failure::invalid(format!(
            "without a key, `hold` takes no {option}: send it with each request, or pass a key"
        )));
    }
    let mut signals = Signals::terminating()?;
    let (output, mut closed) = Output::start();
    let notices = Arc::new(Notices::new(output.clone()));
    let builder = connection.builder().observer(Arc::clone(&notices) as Arc<_>);
    let seal = match acquire::open_with(connection, builder, options.owner.as_deref(), &mut signals).await {
        Ok(seal) => seal,
        Err(failure) => {
            if !failure.message().is_empty() {
                output.print(&Event::failed(&failure));
            }
            closed.finish(output).await.ok();
            return Err(failure);
        }
    };
    output.print(&Event::ready(seal.owner()));
    let session = Arc::new(Session { seal, output, notices, tasks: Mutex::default(), running: Mutex::default() });
    let end = tokio::select! {
        biased;
        number = signals.next_terminating() => Ok(Status::of_signal(number)),
        failed = closed.wait() => failed.map(|()| Status::DONE),
        () = serve(&session, read_lines()) => Ok(Status::DONE),
        () = session.notices.settle() => Ok(Status::DONE),
    };
    // Each task prints how its lease ended.
    signals.finish(session.end()).await.unwrap_or_default();
    let written = closed.finish(session.output.clone()).await;
    let status = end.map_err(Failure::from)?;
    written.map(|()| status).map_err(Failure::from)
}

/// Reads the lines of the input in a thread, because a read can block for as long as the writer wants.
fn read_lines() -> Receiver<Vec<u8>> {
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    drop(spawn_blocking(move || send_lines(io::stdin().lock(), &sender)));
    lines
}

fn send_lines(mut input: impl BufRead, lines: &Sender<Vec<u8>>) {
    while let Some(line) = next_line(&mut input, MAX_REQUEST) {
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Passes the requests on, until the input ends.
async fn serve(session: &Arc<Session>, mut lines: Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        match Request::parse(&line, MAX_REQUEST) {
            Ok(request) => session.pass_on(request),
            Err((id, refusal)) => session.output.print(&Event::refused(id, None, refusal)),
        }
    }
}

impl Session {
    /// Passes a request to the task of its lease, or starts that task.
    fn pass_on(self: &Arc<Self>, Request { id, action }: Request) {
        match action {
            Action::Begin(begin) => self.begin(id, *begin),
            Action::OfLease { lease, verb } => self.send(id, lease, *verb),
            Action::Unobserve { observation } => self.unobserve(id, &observation),
        }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<Id, Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.try_join_next().is_some() {}
        running.spawn(task);
    }

    /// Releases all leases, and waits for the tasks.
    async fn end(&self) {
        self.seal.shutdown().await;
        let running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        // An observation ends with its handle.
        running.join_all().await;
    }

    fn begin(self: &Arc<Self>, id: Id, begin: Begin) {
        let mut tasks = self.tasks();
        let is_full = tasks.len() >= MAX_LEASES;
        let refusal = match tasks.entry(id.clone()) {
            hash_map::Entry::Occupied(_) => {
                Refusal::new("duplicate", "a lease or an observation has this id: choose another one")
            }
            hash_map::Entry::Vacant(_) if is_full => {
                Refusal::new("too_many", "there are 20,000 leases, waits and observations: release some first")
            }
            hash_map::Entry::Vacant(entry) => {
                let session = Arc::clone(self);
                match begin {
                    Begin::Lease(begin) => {
                        let (sender, requests) = mpsc::channel(ON_THE_WAY);
                        entry.insert(Task::Lease(sender));
                        self.spawn(keeper::serve(session, id, begin, requests));
                    }
                    Begin::Observe(name) => {
                        let (sender, end) = oneshot::channel();
                        entry.insert(Task::Observation(sender));
                        self.spawn(observation::serve(session, id, name, end));
                    }
                }
                return;
            }
        };
        drop(tasks);
        self.output.print(&Event::refused(Some(id), None, refusal));
    }

    fn send(&self, id: Id, lease: Id, verb: Verb) {
        let refusal = match self.tasks().get(&lease) {
            Some(Task::Lease(requests)) => match requests.try_send((id, verb)) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full((id, _)) | mpsc::error::TrySendError::Closed((id, _))) => {
                    (id, Refusal::busy())
                }
            },
            _ => (id, Refusal::unknown_lease()),
        };
        self.output.print(&Event::refused(Some(refusal.0), Some(lease), refusal.1));
    }

    fn unobserve(&self, id: Id, observation: &Id) {
        let mut tasks = self.tasks();
        match tasks.remove(observation) {
            Some(Task::Observation(end)) => {
                // The task answers, unless it has just ended by itself.
                let Err(id) = end.send(id) else { return };
                drop(tasks);
                self.output.print(&Event::refused(Some(id), None, Refusal::unknown_observation()));
            }
            other => {
                if let Some(task) = other {
                    tasks.insert(observation.clone(), task);
                }
                drop(tasks);
                self.output.print(&Event::refused(Some(id), None, Refusal::unknown_observation()));
            }
        }
    }

    /// Forgets a task that has ended. No request reaches it from then on.
    fn forget(&self, id: &Id) {
        self.tasks().remove(id);
    }
}
