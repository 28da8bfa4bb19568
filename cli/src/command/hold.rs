//! `mongoseal hold`: leases on any number of keys for the program at the other end of two pipes.
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
mod refusal;
mod request;
mod shared;

use std::{
    io::{self, BufRead, Read},
    sync::Arc,
    time::Duration,
};

use mongoseal::store::Clock;
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot,
    },
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

use self::{
    event::Event,
    keeper::Requests,
    notices::Notices,
    output::Output,
    refusal::Refusal,
    request::{Action, Begin, Id, Request, Verb},
    shared::{Shared, Task},
};
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
/// How many of these places are for requests that end the lease.
const FOR_ENDS: usize = 16;
/// How long the requests that were read before the end of the input have for their answers. The clients kill a program
/// that has not ended 5 s after the operation timeout.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// All leases and observations.
struct Session {
    shared: Arc<Shared>,
    running: JoinSet<()>,
    /// Each lease has a clone until all of its requests are answered and none can follow.
    answering: Option<Sender<()>>,
    answered: Receiver<()>,
}

pub(crate) async fn perform(connection: &Connection, options: Hold) -> Result<Status, Failure> {
    let started = Clock::Boot.now();
    let mut signals = Signals::terminating()?;
    let (output, mut closed) = Output::start();
    let notices = Arc::new(Notices::default());
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
    output.print(&Event::ready(seal.owner(), started));
    let shared = Arc::new(Shared::new(seal, output, notices));
    let (answering, answered) = mpsc::channel(1);
    let mut session =
        Session { shared: Arc::clone(&shared), running: JoinSet::new(), answering: Some(answering), answered };
    let end = tokio::select! {
        biased;
        number = signals.next_terminating() => Ok(Status::of_signal(number)),
        failed = closed.wait() => failed.map(|()| Status::DONE),
        () = session.serve(read_lines()) => Ok(Status::DONE),
        () = shared.notices.settle() => Ok(Status::DONE),
    };
    // Each task prints how its lease ended.
    signals.finish(session.end()).await.unwrap_or_default();
    let written = closed.finish(shared.output.clone()).await;
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

/// Reads a line, and of a line longer than `limit` bytes only the beginning, which is longer than `limit`, too. Returns
/// `None` at the end of the input, or if it cannot be read.
fn next_line(input: &mut impl BufRead, limit: usize) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let most = u64::try_from(limit).unwrap_or_default().saturating_add(2);
    input.by_ref().take(most).read_until(b'\n', &mut line).ok()?;
    if line.is_empty() {
        return None;
    }
    if line.len() > limit && !line.ends_with(b"\n") {
        input.skip_until(b'\n').ok()?;
    }
    Some(line)
}

impl Session {
    /// Passes the requests on, until the input ends. Then waits for their answers.
    async fn serve(&mut self, mut lines: Receiver<Vec<u8>>) {
        while let Some(line) = lines.recv().await {
            match Request::parse(&line, MAX_REQUEST) {
                Ok(request) => self.pass_on(request),
                Err((id, refusal)) => self.shared.output.print(&Event::refused(id, None, refusal)),
            }
        }
        self.shared.tasks().retain(|_, task| matches!(task, Task::Observation(_)));
        self.answering = None;
        timeout(LAST_ANSWERS, self.answered.recv()).await.ok();
    }

    /// Passes a request to the task of its lease, or starts that task.
    fn pass_on(&mut self, Request { id, action }: Request) {
        match action {
            Action::Begin(begin) => self.begin(id, *begin),
            Action::OfLease { lease, verb } => self.send(id, lease, *verb),
            Action::Unobserve { observation } => self.unobserve(id, &observation),
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.running.try_join_next().is_some() {}
        self.running.spawn(task);
    }

    /// Releases all leases, and waits for the tasks.
    async fn end(self) {
        self.shared.seal.shutdown().await;
        // An observation ends with its handle.
        self.running.join_all().await;
    }

    fn begin(&mut self, id: Id, begin: Begin) {
        let refusal = {
            let tasks = self.shared.tasks();
            match (tasks.contains_key(&id), tasks.len() >= MAX_LEASES) {
                (true, _) => {
                    Some(Refusal::new("duplicate", "a lease or an observation has this id: choose another one"))
                }
                (false, true) => Some(Refusal::new(
                    "too_many",
                    "there are 20,000 leases, waits and observations: release some first",
                )),
                (false, false) => None,
            }
        };
        if let Some(refusal) = refusal {
            return self.shared.output.print(&Event::refused(Some(id), None, refusal));
        }
        let shared = Arc::clone(&self.shared);
        match begin {
            Begin::Lease(begin) => {
                let (sender, requests) = mpsc::channel(ON_THE_WAY);
                shared.tasks().insert(id.clone(), Task::Lease(sender));
                self.spawn(keeper::serve(shared, id, begin, Requests { requests, answering: self.answering.clone() }));
            }
            Begin::Observe(name) => {
                let (sender, end) = oneshot::channel();
                shared.tasks().insert(id.clone(), Task::Observation(sender));
                self.spawn(observation::serve(shared, id, name, end));
            }
        }
    }

    fn send(&self, id: Id, lease: Id, verb: Verb) {
        let refusal = match self.shared.tasks().get(&lease) {
            Some(Task::Lease(requests)) if !matches!(verb, Verb::End(_)) && requests.capacity() <= FOR_ENDS => {
                (id, Refusal::busy())
            }
            Some(Task::Lease(requests)) => match requests.try_send((id, verb)) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full((id, _)) | mpsc::error::TrySendError::Closed((id, _))) => {
                    (id, Refusal::busy())
                }
            },
            _ => (id, Refusal::unknown_lease()),
        };
        self.shared.output.print(&Event::refused(Some(refusal.0), Some(lease), refusal.1));
    }

    fn unobserve(&self, id: Id, observation: &Id) {
        let mut tasks = self.shared.tasks();
        match tasks.remove(observation) {
            Some(Task::Observation(end)) => {
                // The task answers, unless it has just ended by itself.
                let Err(id) = end.send(id) else { return };
                drop(tasks);
                self.shared.output.print(&Event::refused(Some(id), None, Refusal::unknown_observation()));
            }
            other => {
                if let Some(task) = other {
                    tasks.insert(observation.clone(), task);
                }
                drop(tasks);
                self.shared.output.print(&Event::refused(Some(id), None, Refusal::unknown_observation()));
            }
        }
    }
}
