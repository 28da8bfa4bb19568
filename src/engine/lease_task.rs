//! The background task of a lease: it refreshes, ends and releases the lease.
//!
//! The schedule (`refresh_schedule.rs`) tells this task when the lease has expired, and refreshes most leases in
//! batches. This task refreshes the lease alone if the schedule or the holder requests it. Up to four attempts are in
//! flight at once, and each waits for its answer until the deadline. The first confirmation counts: the new deadline is
//! the ttl after that attempt was sent.

mod attempt;
mod end;
mod round;

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use self::{attempt::Reply, round::RefreshRound};
use crate::{
    HybridTime, LossCause, Metadata, Result, Ttl,
    engine::{
        command_queue::{Command, RefreshCommand},
        context::Context,
        end_action::End,
        held_lease::HeldLease,
        in_flight::{InFlight, MAX_ATTEMPTS},
        lease_ids::InUse,
        lease_shared::LeaseShared,
        notifier::HolderGuard,
        refresh::Refreshing,
        refresh_schedule::{ScheduleSpec, Slot},
        release,
        shared::Shared,
    },
};

/// How long a lease is held before its handle listens for a revocation of it.
const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct LeaseTask {
    lease: Arc<LeaseShared>,
    ttl: Ttl,
    refreshing: Refreshing,
    /// When, on the clock, to listen for a revocation.
    listen_at: Option<Duration>,
    /// The metadata that was confirmed last. Boxed, because few leases have any.
    metadata: Option<Box<Metadata>>,
    /// The place on the schedule, or when, on the clock, to take one.
    slot: Placed,
    /// How many attempts are in flight. A confirmed attempt of an earlier round still extends the deadline.
    attempts: u8,
    /// The requests in flight.
    sent: InFlight<Reply>,
    /// The refresh under way, and how many there were.
    round: Option<Box<RefreshRound>>,
    rounds: u32,
    holder: HolderGuard,
    shared: Arc<Shared>,
    in_use: InUse,
    released: oneshot::Sender<Result<End>>,
}

/// The place of a lease on the schedule.
enum Placed {
    At(Slot),
    /// The lease takes a place at `time`: a lease that is held for a moment needs none. The last confirmed request was
    /// sent at `sent`. The next refresh is due at `due_at`.
    From {
        time: Duration,
        sent: Duration,
        due_at: Duration,
    },
}

/// What wakes the task.
enum Wakeup {
    Command(Command),
    Answered(Reply),
    Time,
}

impl LeaseTask {
    /// Creates the holder's side of a lease and the task.
    pub(crate) fn start(
        shared: Arc<Shared>,
        lease: Arc<LeaseShared>,
        (ttl, refreshing): (Ttl, Refreshing),
        in_use: InUse,
        holder: HolderGuard,
    ) -> (HeldLease, Box<Self>) {
        let (released, done) = oneshot::channel();
        let held = HeldLease::new(Arc::clone(&shared), Arc::clone(&lease), done);
        let now = shared.context.clock().now();
        // A lease that is held for a moment is not worth a listener.
        let listen_at = now.saturating_add(LISTEN_AFTER);
        // A waiter's granted request was sent a while ago, and the deadline counts from then.
        let sent = lease.deadline().saturating_sub(shared.context.settings.validity(ttl));
        let from = if lease.has_no_expiry() { now } else { sent };
        let due_at = refreshing.due_after(ttl, from);
        let time = listen_at.min(due_at).min(lease.deadline());
        let task = Self {
            lease,
            ttl,
            refreshing,
            listen_at: Some(listen_at),
            metadata: None,
            slot: Placed::From { time, sent, due_at },
            attempts: 0,
            sent: InFlight::default(),
            round: None,
            rounds: 0,
            holder,
            shared,
            in_use,
            released,
        };
        (held, Box::new(task))
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    fn now(&self) -> Duration {
        self.context().clock().now()
    }

    /// When the lease is due after a refresh that was sent at `sent`.
    fn due_after(&self, sent: Duration) -> Duration {
        self.refreshing.due_after(self.ttl, sent)
    }

    /// When the lease is due after a refresh that failed: soon.
    fn due_soon(&self) -> Duration {
        let (now, soon) = (self.now(), self.ttl.duration().checked_div(10).unwrap_or_default());
        self.due_after(now).min(now.saturating_add(soon))
    }

    /// Takes a place on the schedule.
    fn place(&mut self, sent: Duration, due_at: Duration) {
        let spec = ScheduleSpec {
            ttl: self.ttl,
            interval: self.refreshing.interval(self.ttl),
            is_single: self.is_single(),
            has_listened: self.listen_at.is_none(),
            sent,
            due_at,
        };
        self.slot = Placed::At(Slot::take(&self.shared.schedules, &self.lease, spec));
    }

    /// Whether the lease is refreshed alone, as one with metadata is.
    fn is_single(&self) -> bool {
        self.metadata.is_some() || self.lease.has_no_expiry()
    }

    /// Refreshes the lease until it has ended. Ends it when its time is over or its handle is shut down.
    ///
    /// A future is as large as the largest that it ever awaits. So short-lived futures are boxed, here and in `AcquireTask`.
    pub(crate) async fn run(&mut self) {
        // A runtime that shuts down drops this task here.
        let _ended = end::LeaseTaskEnd(Arc::clone(&self.lease));
        loop {
            let sleep = self.wake_at().map(|at| Box::pin(self.context().clock().sleep_until(at)));
            let takes_refresh = self.round.as_ref().is_none_or(|round| round.command.is_none());
            let Self { lease, sent, shared, .. } = self;
            let event = tokio::select! {
                biased;
                () = lease.ended.cancelled() => return,
                () = shared.context.closing.cancelled() => {
                    lease.lose(LossCause::ShutDown);
                    continue;
                }
                answer = sent.next(), if !sent.is_empty() => Wakeup::Answered(answer),
                command = lease.commands.next(takes_refresh) => Wakeup::Command(command),
                () = slept(sleep) => Wakeup::Time,
            };
            match event {
                Wakeup::Answered(Reply::Attempt(attempt)) => self.handle_attempt(attempt),
                Wakeup::Answered(Reply::LossCheck(Ok(Some(cause)))) => self.lease.lose(cause),
                Wakeup::Command(Command::Refresh(command)) => self.begin(Some(*command)),
                Wakeup::Command(Command::RefreshSingle { was_sent }) => self.refresh_single(was_sent),
                Wakeup::Command(Command::CheckLoss) => self.check_loss(),
                // If a check for a loss fails, the next refresh finds the loss.
                Wakeup::Answered(Reply::LossCheck(_)) | Wakeup::Command(Command::End) | Wakeup::Time => {}
            }
            self.run_due();
        }
    }

    /// When, on the clock, this task has something to do. The schedule does the rest.
    fn wake_at(&self) -> Option<Duration> {
        let placed_at = match self.slot {
            Placed::At(_) => None,
            Placed::From { time, .. } => Some(time),
        };
        let resent_at = self.round.as_ref().map(|round| {
            let next = round.risk_at.into_iter().fold(round.until.min(self.lease.deadline()), Duration::min);
            if self.can_send() { next.min(round.next_attempt) } else { next }
        });
        [self.listen_at, placed_at, resent_at, self.lease.stalls_at()].into_iter().flatten().min()
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
        if self.listen_at.is_some_and(|at| at <= now) {
            self.holder.listen_since(self.lease.tick);
            self.listen_at = None;
            if let Placed::At(slot) = &self.slot {
                slot.note_listened();
            }
        }
        if let Placed::From { time, sent, due_at } = self.slot
            && time <= now
        {
            self.place(sent, due_at);
        }
        self.end_unconfirmed(now);
        if self.can_send() {
            self.send(now);
        }
        if let Some(round) = &mut self.round {
            round.check_silence(now, &self.lease);
        }
    }

    /// Ends a refresh that was not confirmed in time, and returns the last error to the holder.
    fn end_unconfirmed(&mut self, now: Duration) {
        if let Some(mut round) = self.round.take_if(|round| round.until <= now)
            && let Some(command) = round.command.take()
        {
            drop(command.reply.send(Err(round.last_error.unwrap_or_else(round::unanswered_error))));
            self.note_unconfirmed(now);
        }
    }

    /// Notes that a refresh of the lease alone was not confirmed.
    fn note_unconfirmed(&self, due_at: Duration) {
        if let Placed::At(slot) = &self.slot {
            slot.note_unconfirmed(due_at);
        }
    }

    /// Refreshes the lease alone for the schedule. A refresh for the holder that is under way counts.
    fn refresh_single(&mut self, was_sent: bool) {
        if self.round.is_none() {
            self.begin(None);
            if let Some(round) = self.round.as_mut().filter(|_| was_sent) {
                round.resend.skip_first();
            }
        }
    }

    /// Begins a refresh of the lease alone. One that the holder requests replaces the one under way.
    fn begin(&mut self, command: Option<RefreshCommand>) {
        let now = self.now();
        let ttl = command.as_ref().and_then(|command| command.ttl).unwrap_or(self.ttl);
        // Confirmed metadata is sent again: otherwise older metadata that arrives late would stay.
        let changed = command.as_ref().and_then(|command| command.metadata.clone());
        let metadata = changed.or_else(|| self.metadata.as_deref().cloned());
        let until = if command.is_some() { self.context().operation_deadline().reading() } else { Duration::MAX };
        self.rounds = self.rounds.wrapping_add(1);
        let round = RefreshRound::begin(self.rounds, command, (ttl, metadata), (now, until), &self.lease);
        self.round = Some(Box::new(round));
    }

    /// Whether another attempt may be sent. A change of the metadata waits for earlier attempts, which could undo it.
    fn can_send(&self) -> bool {
        let Some(round) = &self.round else { return false };
        if round.is_metadata_change_unsent() {
            return self.attempts == 0;
        }
        usize::from(self.attempts) < MAX_ATTEMPTS
    }

    /// Notes a confirmed refresh.
    fn note_confirmed(&mut self, round: RefreshRound, sent: Duration, tick: HybridTime) {
        self.ttl = round.ttl;
        self.metadata = round.metadata.map(Box::new);
        match &self.slot {
            Placed::At(slot) if slot.ttl == self.ttl && slot.is_single == self.is_single() => slot.note_confirmed(sent),
            _ => self.place(sent, self.due_after(sent)),
        }
        // Listens again if the listener has failed since.
        if self.listen_at.is_none() {
            self.holder.listen_since(tick);
        }
        if let Some(command) = round.command {
            drop(command.reply.send(Ok(())));
        }
    }

    /// Acts at the store on the end of the lease, and replies.
    pub(crate) async fn end(self: Box<Self>) {
        let Self { lease, slot, holder, shared, in_use, released, .. } = *self;
        drop(slot);
        let end = release::run(&shared.context, &shared.shutdown_releases, &lease, holder.caller()).await;
        drop(holder);
        // A caller that learns of the end may use the lease id at once.
        drop(in_use);
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
