//! The keeper of a handle: the task that refreshes and ends its leases.
//!
//! Mechanism: the task runs while the handle has leases. It reads its messages, does what its [schedule](super::schedule)
//! finds, and sends the refreshes. A lease that has ended gets a task of its own, which acts on it at the store. If many end
//! together, one command releases them.
//!
//! Invariants:
//! - A lease is registered before its holder has it, and until its last request is answered. Until then its handle notifies it
//!   of a revocation, and makes acquires of its key wait for its release.
//! - Each lease ends in this process: if a runtime drops the task, it ends all its leases.
//! - The clock is read every two seconds, so the keeper notices that the machine was suspended.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
};
use tracing::Span;

use crate::{
    engine::{
        context::Context,
        end_action::{End, PendingOutcome},
        handle_inner::HandleInner,
        held_lease::Lease,
        lease_inner::LeaseInner,
        lease_state::LeaseState,
        mailbox::Message,
        notifier,
        refresh::{self, Confirmed, Refreshing},
        release::{self, is_joint},
        release_batch::ReleaseBatch,
        schedule::{Kept, Part, PartEnd, Single, Todo},
    },
    record::lease_refs,
    spans,
    store::{BoxFuture, pool::RefreshPermits},
    types::{
        error::{Error, Result},
        instant::Instant,
        lock::lock,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// How long a lease is held before its handle listens for a revocation of it: to listen for one that is held for a moment is
/// not worth it.
const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// How many messages the keeper reads before other tasks of its runtime get a turn.
const TURN: usize = 512;

/// How many leases the shutdown ends before other tasks of the keeper's runtime get a turn.
const SHUTDOWN_TURN: usize = 200;

/// Keeps a lease from now on, and returns the holder's side of it.
pub(crate) fn keep(handle: &Arc<HandleInner>, lease: &Arc<LeaseInner>, (ttl, refreshing): (Ttl, Refreshing)) -> Lease {
    let (context, number) = (&handle.context, lease.acquire_id.number);
    let held = Lease::new(Arc::clone(handle), Arc::clone(lease));
    handle.siblings().registry.add_holder(lease);
    let now = context.clock().now();
    // A waiter's granted request was sent a while ago, and the deadline counts from then. The deadline of a lease that is
    // resumed with a shorter ttl is further away.
    let sent = lease.deadline().before(context.settings.validity(ttl)).min(now);
    let kept = Kept::new(Arc::clone(lease), (ttl, refreshing), sent, now.after(LISTEN_AFTER));
    lock(&handle.schedule).add(number, kept);
    if handle.mailbox.open() {
        let keeper = Keeper { handle: Arc::clone(handle), is_done: false };
        context.spawn(keeper.run());
    }
    // It may have ended before it was on the schedule.
    if lease.recorded_state().is_over() {
        lease.tell_end();
    }
    held
}

/// Ends all leases when it is dropped by its runtime.
struct Keeper {
    handle: Arc<HandleInner>,
    is_done: bool,
}

/// A lease that ends and is acted on at the store. When this is dropped, the lease has ended, is registered no more, and calls
/// that wait for its end are answered.
struct Ending {
    handle: Arc<HandleInner>,
    lease: Arc<LeaseInner>,
    /// What was done. `None`: its runtime has ended before.
    end: Option<Result<End>>,
}

/// An answer to a request that the keeper has sent.
enum Answer {
    /// When the part was sent, its span, and whether all its leases are refreshed.
    Part(Part, (Instant, Span, Result<bool>)),
    /// `None`: the lease has ended before.
    Single(Single, Span, Result<Option<Confirmed>>),
}

impl Keeper {
    fn context(&self) -> &Arc<Context> {
        &self.handle.context
    }

    /// Keeps leases until there are none.
    async fn run(mut self) {
        let handle = Arc::clone(&self.handle);
        let HandleInner { context, schedule, mailbox, .. } = &*handle;
        let RefreshPermits { parts, singles, retries } = &*handle.siblings().refresh_permits;
        let clock = context.clock();
        // Permits bound how many there are. The answer to a late attempt still counts.
        let mut sent = FuturesUnordered::new();
        loop {
            if self.read_messages() {
                yield_now().await;
                continue;
            }
            if context.closing.is_cancelled() {
                let ended = lock(schedule).take(SHUTDOWN_TURN);
                let ended = self.ends(ended, |lease| {
                    lease.end_untold(None, &LeaseState::SHUT_DOWN);
                });
                if !ended.is_empty() {
                    self.handle.releases.record_ended(ended.len());
                    self.begin_ends(ended);
                    yield_now().await;
                    continue;
                }
            }
            let todo = {
                let mut schedule = lock(schedule);
                if schedule.is_empty() && mailbox.close_if_empty() {
                    // Attempts in flight keep permits, and this task returns without their answers.
                    drop(schedule.clear());
                    self.is_done = true;
                    return;
                }
                schedule.collect(clock.now())
            };
            let Todo { part, single, retry, next, .. } = todo;
            let has_probed = !todo.probes.is_empty();
            self.act(todo, &mut sent);
            if has_probed {
                // A probe that is late must wake the keeper.
                continue;
            }
            tokio::select! {
                biased;
                () = context.closing.cancelled(), if !context.closing.is_cancelled() => {}
                Some(answer) = sent.next() => match answer {
                    Answer::Part(part, answer) => self.handle_part(&part, answer),
                    Answer::Single(single, span, answer) => self.handle_single(&single, &span, answer),
                },
                permits = acquire([parts]), if part.is_some() => {
                    sent.extend(part.and_then(|ttl| self.send_part(ttl, permits)));
                }
                permits = acquire([singles]), if single.is_some() => {
                    sent.extend(single.and_then(|ttl| self.send_single(ttl, permits)));
                }
                permits = acquire([retries, singles]), if retry.is_some() => {
                    sent.extend(retry.and_then(|ttl| self.send_single(ttl, permits)));
                }
                () = mailbox.added() => {}
                () = clock.sleep_until(next) => {}
            }
        }
    }

    /// Reads messages. Returns whether there may be more.
    fn read_messages(&self) -> bool {
        let messages = self.handle.mailbox.take(TURN);
        let is_more = messages.len() == TURN;
        let now = self.context().clock().now();
        for message in messages {
            let mut schedule = lock(&self.handle.schedule);
            match message {
                Message::Refresh(number, command) => schedule.request(number, now, command),
                Message::Progress(number) => schedule.recheck(number),
                Message::End(numbers) => {
                    let ended: Vec<_> = numbers.into_iter().filter_map(|number| schedule.remove(number)).collect();
                    drop(schedule);
                    self.begin_ends(self.ends(ended, |_| {}));
                }
            }
        }
        is_more
    }

    /// Ends leases that are on the schedule no more, by this function, unless they have ended.
    fn ends(&self, kept: impl IntoIterator<Item = Kept>, end: impl Fn(&LeaseInner)) -> Vec<Ending> {
        // The refreshes for their holders are dropped after the leases have ended.
        let (ended, refreshes): (Vec<_>, Vec<_>) = kept
            .into_iter()
            .map(|kept| (Ending { handle: Arc::clone(&self.handle), lease: Arc::clone(&kept.lease), end: None }, kept))
            .unzip();
        for Ending { lease, .. } in &ended {
            end(lease);
        }
        drop(refreshes);
        ended
    }

    /// Starts a task for each of these leases, which acts on its end at the store, and a command that releases those of a set.
    fn begin_ends(&self, ended: Vec<Ending>) {
        let (joint, others): (Vec<_>, Vec<_>) = ended.into_iter().partition(|ending| is_joint(&ending.lease));
        let batch = (joint.len() > 1).then(|| {
            let (batch, pending) = ReleaseBatch::new();
            let leases = lease_refs(joint.iter().map(|Ending { lease, .. }| (lease.key.clone(), lease.token)));
            let context = Arc::clone(self.context());
            self.context().spawn(async move { batch.send(&context, leases, context.attempt_deadline()).await });
            pending
        });
        for ending in joint {
            self.context().spawn(ending.run(batch.clone()));
        }
        for ending in others {
            self.context().spawn(ending.run(None));
        }
    }

    /// Does what is due now.
    fn act(&self, todo: Todo, sent: &mut FuturesUnordered<BoxFuture<Answer>>) {
        for (kept, cause) in todo.lost {
            self.begin_ends(self.ends([kept], |lease| lease.lose(cause.clone())));
        }
        for lease in todo.silent {
            lease.record_at_risk(&refresh::unanswered_error());
        }
        for (reply, error) in todo.unconfirmed {
            drop(reply.send(Err(error.unwrap_or_else(refresh::unanswered_error))));
        }
        if let Some(hlc) = todo.listen_since {
            self.listen_since(hlc);
        }
        for ttl in todo.probes {
            sent.extend(self.send_single(ttl, Vec::new()));
        }
    }

    /// Starts a listener if there is none, for what happens after this hybrid time.
    fn listen_since(&self, hlc: HybridTime) {
        notifier::listen(self.context(), hlc);
    }

    /// Sends a part of a class, if there are leases for it.
    fn send_part(&self, ttl: Ttl, permits: Vec<OwnedSemaphorePermit>) -> Option<BoxFuture<Answer>> {
        let context = Arc::clone(self.context());
        let clock = context.clock();
        let is_listener_missing = self.handle.siblings().registry.is_listener_missing(clock.now());
        let part = lock(&self.handle.schedule).send_part(ttl, clock, permits, is_listener_missing)?;
        Some(Box::pin(async move {
            let leases = lease_refs(part.members.iter().map(|(_, lease)| (lease.key.clone(), lease.token)));
            let answer = refresh::attempt_part(&context, &leases, part.ttl, part.deadline).await;
            Answer::Part(part, answer)
        }))
    }

    /// Sends a refresh of the first lease of a class that waits to be refreshed alone.
    fn send_single(&self, class: Ttl, permits: Vec<OwnedSemaphorePermit>) -> Option<BoxFuture<Answer>> {
        let context = Arc::clone(self.context());
        let single = lock(&self.handle.schedule).send_single(class, context.clock(), permits)?;
        Some(Box::pin(async move {
            let Single { lease, ttl, metadata, deadline, .. } = &single;
            let span = spans::refresh(Some((&lease.key, lease.token)), 1);
            let attempt = refresh::attempt(span.clone(), &context, lease, *ttl, metadata.as_ref(), None, *deadline);
            let answer = tokio::select! {
                biased;
                () = lease.ended.cancelled() => Ok(None),
                answer = attempt => answer,
            };
            Answer::Single(single, span, answer)
        }))
    }

    /// Handles the answer to a part. Deadlines and states are changed before the lock is taken, because that wakes their
    /// followers.
    fn handle_part(&self, part: &Part, (sent, span, refreshed): (Instant, Span, Result<bool>)) {
        let now = self.context().clock().now();
        let until = sent.after(self.context().settings.validity(part.ttl));
        let mut confirmed = Vec::new();
        let end = match refreshed {
            Ok(true) => {
                confirmed.extend(part.members.iter().filter_map(|(number, lease)| {
                    lease.record_round_trip(now.since(sent));
                    (lease.extend_deadline(until) && lease.is_valid()).then_some(*number)
                }));
                PartEnd::Confirmed(sent)
            }
            Ok(false) if part.members.iter().any(|(_, lease)| lease.ended.is_cancelled()) => PartEnd::Overtaken,
            Ok(false) => PartEnd::Partial,
            Err(error) => {
                // If a later request was confirmed for a lease, this error changes nothing.
                refresh::record_error(&span, &error, || {
                    let leases = part.members.iter().map(|(_, lease)| lease);
                    let doubtful = leases.filter(|lease| lease.deadline() < until && lease.is_valid());
                    doubtful.filter(|lease| lease.record_at_risk(&error)).count() > 0
                });
                if matches!(error, Error::Unavailable { .. }) { PartEnd::Unanswered } else { PartEnd::Refused }
            }
        };
        lock(&self.handle.schedule).end_part(part, end, &confirmed, now);
    }

    /// Handles the answer to a refresh of one lease.
    fn handle_single(&self, single: &Single, span: &Span, answer: Result<Option<Confirmed>>) {
        let (now, validity) = (self.context().clock().now(), self.context().settings.validity(single.ttl));
        let mut hlc = None;
        let end = match answer {
            Ok(Some(confirmed)) if single.lease.extend_deadline(confirmed.sent.after(validity)) => {
                hlc = Some(confirmed.hlc);
                Ok(Some(confirmed.sent))
            }
            Err(error) => {
                let is_risk = lock(&self.handle.schedule).is_risk(single);
                refresh::record_error(span, &error, || is_risk && single.lease.record_at_risk(&error));
                Err(error)
            }
            // The state says that the lease is over.
            Ok(_) => Ok(None),
        };
        let (reply, is_listening) = lock(&self.handle.schedule).end_single(single, end, now);
        // Listens again if the listener has failed since.
        if let Some(hlc) = hlc.filter(|_| is_listening) {
            self.listen_since(hlc);
        }
        if let Some((reply, error)) = reply {
            drop(reply.send(error.map_or(Ok(()), Err)));
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        drop(self.handle.mailbox.close());
        let leases = lock(&self.handle.schedule).clear();
        drop(self.ends(leases, |lease| lease.end(&LeaseState::SHUT_DOWN)));
    }
}

impl Ending {
    async fn run(mut self, batch: Option<PendingOutcome>) {
        self.end = Some(release::run(&self.handle, &self.lease, batch).await);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Self { handle, lease, end } = self;
        // If what ended the others has panicked.
        lease.end(&LeaseState::SHUT_DOWN);
        // Before what a caller waits for.
        handle.siblings().registry.remove_holder(lease);
        let gone = "the runtime that kept the lease has ended: the lease ends with its ttl, or by a revocation if it has no expiry";
        let end = end.take().unwrap_or_else(|| Err(Error::unavailable(gone)));
        drop(lease.done.set(Mutex::new(Some(end))));
    }
}

/// Waits for the permits of a refresh: a single one of a lease that has failed before needs one of the retries, too.
async fn acquire<const MANY: usize>(semaphores: [&Arc<Semaphore>; MANY]) -> Vec<OwnedSemaphorePermit> {
    let mut permits = Vec::new();
    for semaphore in semaphores {
        permits.extend(Arc::clone(semaphore).acquire_owned().await);
    }
    permits
}
