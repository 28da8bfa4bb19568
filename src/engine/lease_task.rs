//! The background task of a lease: it refreshes, ends and releases the lease.
//!
//! The schedule (`refresh_schedule.rs`) ends the lease when it has expired, and refreshes most leases in parts. If a lease
//! is refreshed alone, the schedule permits each attempt, and this task sends it. A refresh for the holder waits
//! for such a permit, too. An attempt waits for its answer until the deadline, also if another was sent since. The first
//! confirmation counts: the new deadline is the ttl after that attempt was sent.

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tracing::Span;

use crate::{
    engine::{
        command_queue::{Command, RefreshCommand, SingleAttempt},
        context::Context,
        end_action::End,
        handle_inner::HandleInner,
        held_lease::Lease,
        in_flight,
        lease_inner::LeaseInner,
        lease_state::LeaseState,
        refresh::{self, Confirmed, Refreshing},
        refresh_schedule::{ScheduleSpec, Slot},
        release,
    },
    spans,
    store::BoxFuture,
    types::{
        acquire_id::AcquireId,
        error::{Error, LossCause, Result},
        lock::lock,
        metadata::Metadata,
        reading::Reading,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// How long a lease is held before its handle listens for a revocation of it, and schedules its refreshes.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct LeaseTask {
    /// Before what a caller waits for, so that a task that is dropped ends the lease first.
    registration: Registration,
    lease: Arc<LeaseInner>,
    ttl: Ttl,
    refreshing: Refreshing,
    /// The metadata that was confirmed last. Boxed, because few leases have any.
    metadata: Option<Box<Metadata>>,
    /// The place on the schedule.
    slot: Option<Slot>,
    /// When to take a place and to listen for a revocation. `None`: the task has done both.
    settle_at: Option<Reading>,
    /// When the request was sent that granted the lease.
    sent_at: Reading,
    /// How many attempts are in flight. A confirmed attempt of an earlier round still extends the deadline.
    attempts: u8,
    /// The requests in flight.
    sent: Vec<BoxFuture<AttemptResult>>,
    /// The attempt that the schedule has permitted and that was not sent.
    permitted: Option<Box<dyn SingleAttempt>>,
    /// The refresh for the holder that is under way, and how many there were.
    round: Option<Box<RefreshRound>>,
    rounds: u32,
    shared: Arc<HandleInner>,
    released: oneshot::Sender<Result<End>>,
}

/// A lease whose task has not ended: its handle notifies it of a revocation, and makes acquires of its key wait for its
/// release. Ends the lease when a runtime that shuts down drops the task.
struct Registration {
    shared: Arc<HandleInner>,
    lease: Arc<LeaseInner>,
    acquire_id: AcquireId,
}

impl Registration {
    fn begin(shared: &Arc<HandleInner>, lease: &Arc<LeaseInner>, acquire_id: AcquireId) -> Self {
        shared.siblings().notifier.add_holder(acquire_id.number, lease);
        shared.own_leases.add(lease);
        Self { shared: Arc::clone(shared), lease: Arc::clone(lease), acquire_id }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Self { shared, lease, acquire_id } = self;
        lease.end(&LeaseState::SHUT_DOWN);
        lease.commands.end();
        shared.siblings().notifier.remove_holder(&shared.context, acquire_id.number);
        shared.own_leases.remove(lease);
    }
}

/// What wakes the task.
enum Wakeup {
    Command(Command),
    Answered(AttemptResult),
    Time,
}

impl LeaseTask {
    /// Creates the holder's side of a lease and the task. `acquire_id`: the acquire by which the store knows the holder.
    pub(crate) fn start(
        shared: Arc<HandleInner>,
        lease: Arc<LeaseInner>,
        (ttl, refreshing): (Ttl, Refreshing),
        acquire_id: AcquireId,
    ) -> (Lease, Box<Self>) {
        let (released, done) = oneshot::channel();
        *lock(&lease.released) = Some(done);
        let held = Lease::new(Arc::clone(&shared), Arc::clone(&lease));
        let now = shared.context.clock().now();
        // A waiter's granted request was sent a while ago, and the deadline counts from then. The deadline of a lease that
        // is resumed with a shorter ttl is further away.
        let sent_at = lease.deadline().before(shared.context.settings.validity(ttl)).min(now);
        // A lease that is held for a moment is not worth a place and a listener.
        let settle_at = now.after(SETTLE_AFTER).min(refreshing.due_after(ttl, sent_at)).min(lease.deadline());
        let registration = Registration::begin(&shared, &lease, acquire_id);
        let task = Self {
            lease,
            ttl,
            refreshing,
            metadata: None,
            slot: None,
            settle_at: Some(settle_at),
            sent_at,
            attempts: 0,
            sent: Vec::new(),
            permitted: None,
            round: None,
            rounds: 0,
            registration,
            shared,
            released,
        };
        (held, Box::new(task))
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    fn now(&self) -> Reading {
        self.context().clock().now()
    }

    /// Starts a listener if there is none, for what happens after `tick`, the tick of the last answer.
    fn listen_since(&self, tick: HybridTime) {
        self.shared.siblings().notifier.listen(self.context(), tick);
    }

    /// Takes a place on the schedule. The last confirmed request was sent at `sent`.
    fn place(&mut self, sent: Reading) {
        let spec = ScheduleSpec {
            ttl: self.ttl,
            interval: self.refreshing.interval(self.ttl),
            is_single: self.is_single(),
            sent,
            due_at: self.refreshing.due_after(self.ttl, sent),
        };
        self.slot = Some(Slot::take(&self.shared.schedules, &self.lease, spec));
    }

    /// Takes a place on the schedule, if the task has none.
    fn ensure_placed(&mut self) {
        if self.slot.is_none() {
            self.place(self.sent_at);
        }
    }

    /// Whether the lease is refreshed alone, as one with metadata is.
    fn is_single(&self) -> bool {
        self.metadata.is_some() || self.lease.has_no_expiry()
    }

    /// Refreshes the lease until it has ended, and then ends it at the store.
    ///
    /// A future is as large as the largest that it ever awaits. So short-lived futures are boxed, here and in `AcquireTask`.
    pub(crate) async fn run(mut self: Box<Self>) {
        self.keep().await;
        Box::pin(self.end()).await;
    }

    /// Refreshes the lease until it has ended. Ends it when its time is over or its handle is shut down.
    async fn keep(&mut self) {
        loop {
            let sleep = self.wake_at().map(|at| Box::pin(self.context().clock().sleep_until(at)));
            let takes_refresh = self.round.is_none();
            let Self { lease, sent, shared, .. } = self;
            let event = tokio::select! {
                biased;
                () = lease.ended.cancelled() => return,
                () = shared.context.closing.cancelled() => {
                    lease.end(&LeaseState::SHUT_DOWN);
                    continue;
                }
                answer = in_flight::next_answer(sent), if !sent.is_empty() => Wakeup::Answered(answer),
                command = lease.commands.next(takes_refresh) => Wakeup::Command(command),
                () = slept(sleep) => Wakeup::Time,
            };
            match event {
                Wakeup::Answered(result) => self.handle_attempt(result),
                Wakeup::Command(Command::Refresh(command)) => self.begin(*command),
                Wakeup::Command(Command::RefreshSingle(attempt)) => self.permitted = Some(attempt),
                Wakeup::Time => {}
            }
            self.run_due();
        }
    }

    /// When this task has something to do. The schedule does the rest.
    fn wake_at(&self) -> Option<Reading> {
        let ends_at = self.round.as_ref().map(|round| round.until.min(self.lease.deadline()));
        [self.settle_at, ends_at, self.lease.stalls_at()].into_iter().flatten().min()
    }

    /// Does what is due. If the lease's time is over, ends it.
    fn run_due(&mut self) {
        let now = self.now();
        if self.lease.remaining().is_zero() {
            self.lease.lose(LossCause::Expired);
            return;
        }
        if self.lease.stalls_at().is_some_and(|at| at <= now) {
            // The store keeps the key until the ttl is over: the stalled work may still write.
            self.lease.lose(LossCause::Stalled);
            return;
        }
        if self.settle_at.take_if(|at| *at <= now).is_some() {
            self.ensure_placed();
            // With a short ttl, a lease that is held for a moment takes a place earlier.
            let listen_at = self.sent_at.after(SETTLE_AFTER);
            if listen_at <= now {
                self.listen_since(self.lease.tick);
            } else {
                self.settle_at = Some(listen_at);
            }
        }
        self.end_unconfirmed(now);
        self.send_permitted();
    }

    /// Acts at the store on the end of the lease, and replies.
    async fn end(self: Box<Self>) {
        let Self { lease, slot, registration, shared, released, .. } = *self;
        drop(slot);
        lease.commands.end();
        let end = release::run(&shared, &lease, registration.acquire_id).await;
        drop(registration);
        drop(released.send(end));
    }
}

/// Waits for the end of a sleep. Without one it waits for ever.
async fn slept(sleep: Option<Pin<Box<impl Future<Output = ()>>>>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => pending().await,
    }
}

/// A refresh that the holder requests: sent until one of its attempts is confirmed.
struct RefreshRound {
    number: u32,
    command: RefreshCommand,
    ttl: Ttl,
    metadata: Option<Metadata>,
    /// When it gives up, if the lease has not ended before.
    until: Reading,
    is_sent: bool,
    last_error: Option<Error>,
}

/// The result of an attempt to refresh.
struct AttemptResult {
    attempt: Box<dyn SingleAttempt>,
    /// The round for which it was sent. `None`: the schedule requested it.
    round: Option<u32>,
    ttl: Ttl,
    /// The deadline of the lease when the attempt was sent.
    deadline: Reading,
    /// `None`: the lease is lost.
    confirmed: Result<Option<Confirmed>>,
    /// The span of the attempt, for the error.
    span: Span,
}

impl LeaseTask {
    /// Begins a refresh for the holder: the schedule permits its attempts.
    fn begin(&mut self, command: RefreshCommand) {
        self.ensure_placed();
        // Confirmed metadata is sent again: otherwise older metadata that arrives late would stay.
        let metadata = command.metadata.clone().or_else(|| self.metadata.as_deref().cloned());
        let until = self.context().operation_deadline().reading();
        self.rounds = self.rounds.wrapping_add(1);
        let (number, ttl) = (self.rounds, command.ttl.unwrap_or(self.ttl));
        let round = RefreshRound { number, command, ttl, metadata, until, is_sent: false, last_error: None };
        self.round = Some(Box::new(round));
        if let Some(slot) = &self.slot {
            slot.request(self.now());
        }
    }

    /// Ends a refresh that was not confirmed in time, and returns the last error to the holder.
    fn end_unconfirmed(&mut self, now: Reading) {
        if let Some(round) = self.round.take_if(|round| round.until <= now) {
            self.permitted = None;
            if let Some(slot) = &self.slot {
                slot.withdraw(now);
            }
            drop(round.command.reply.send(Err(round.last_error.unwrap_or_else(refresh::unanswered_error))));
        }
    }

    /// Sends the attempt that the schedule has permitted. A change of the metadata waits for earlier attempts, which could
    /// undo it.
    fn send_permitted(&mut self) {
        let changes_metadata = |round: &RefreshRound| !round.is_sent && round.command.metadata.is_some();
        if self.attempts > 0 && self.round.as_deref().is_some_and(changes_metadata) {
            return;
        }
        let Some(attempt) = self.permitted.take() else { return };
        let (context, lease) = (Arc::clone(self.context()), Arc::clone(&self.lease));
        let deadline = lease.deadline();
        let (round, ttl, metadata, until) = match &mut self.round {
            Some(round) => {
                round.is_sent = true;
                (Some(round.number), round.ttl, round.metadata.clone(), round.until.min(deadline))
            }
            None => (None, self.ttl, self.metadata.as_deref().cloned(), deadline),
        };
        let attempt_deadline = attempt.deadline(until);
        self.attempts = self.attempts.saturating_add(1);
        self.sent.push(Box::pin(async move {
            let span = spans::refresh(Some((&lease.key, lease.token)), 1);
            let sent = refresh::attempt(span.clone(), &context, &lease, ttl, metadata.as_ref(), None, attempt_deadline);
            let confirmed = sent.await;
            AttemptResult { attempt, round, ttl, deadline, confirmed, span }
        }));
    }

    /// Handles the result of an attempt.
    fn handle_attempt(&mut self, result: AttemptResult) {
        let AttemptResult { attempt, round, ttl, deadline, confirmed, span } = result;
        self.attempts = self.attempts.saturating_sub(1);
        let (now, current) = (self.now(), self.round.as_ref().map(|round| round.number));
        match confirmed {
            // The lease is lost. The state says so.
            Ok(None) => {}
            Ok(Some(Confirmed { sent, tick })) => {
                let until = sent.after(self.context().settings.validity(ttl));
                if self.lease.extend_deadline(until) {
                    let done = self.round.take_if(|current| Some(current.number) == round);
                    attempt.end(now, Ok(sent), self.round.is_none());
                    self.record_confirmed(done, sent, tick);
                }
            }
            Err(error) => {
                // If another attempt was confirmed meanwhile, this one only had too little time. An error of an earlier
                // refresh for the holder changes nothing.
                let is_risk = (round.is_none() || round == current) && self.lease.deadline() <= deadline;
                refresh::record_error(&span, &error, || is_risk && self.lease.record_at_risk(&error));
                if matches!(error, Error::Unavailable { .. }) {
                    attempt.end(now, Err(&error), false);
                    if let Some(round) = self.round.as_mut().filter(|current| Some(current.number) == round) {
                        round.last_error = Some(error);
                    }
                    return;
                }
                // The cause may pass before the deadline.
                let done = self.round.take_if(|current| Some(current.number) == round);
                attempt.end(now, Err(&error), self.round.is_none());
                if let Some(round) = done {
                    drop(round.command.reply.send(Err(error)));
                }
            }
        }
    }

    /// Notes a confirmed refresh. `done`: the refresh for the holder that it ends.
    fn record_confirmed(&mut self, done: Option<Box<RefreshRound>>, sent: Reading, tick: HybridTime) {
        let before = (self.ttl, self.is_single());
        let command = done.map(|done| {
            let RefreshRound { ttl, metadata, command, .. } = *done;
            (self.ttl, self.metadata) = (ttl, metadata.map(Box::new));
            command
        });
        if before != (self.ttl, self.is_single()) {
            self.place(sent);
        }
        // Listens again if the listener has failed since.
        if self.settle_at.is_none() {
            self.listen_since(tick);
        }
        if let Some(command) = command {
            drop(command.reply.send(Ok(())));
        }
    }
}
