//! The background task of a lease: it refreshes, ends and releases the lease.
//!
//! The schedule (`refresh_schedule.rs`) tells this task when the lease has expired, and refreshes most leases in parts. If
//! a lease is refreshed alone, the schedule permits each attempt, and this task sends it. A refresh for the holder waits
//! for such a permit, too. An attempt waits for its answer until the deadline, also if another was sent since. The first
//! confirmation counts: the new deadline is the ttl after that attempt was sent.

mod attempt;

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use self::attempt::{RefreshRound, Reply};
use crate::{
    engine::{
        command_queue::{Command, SingleAttempt},
        context::Context,
        end_action::End,
        handle_inner::HandleInner,
        held_lease::HeldLease,
        in_flight,
        lease_ids::InUse,
        lease_inner::LeaseInner,
        refresh::Refreshing,
        refresh_schedule::{ScheduleSpec, Slot},
        release,
    },
    store::BoxFuture,
    types::{
        acquire_id::AcquireId,
        error::{LossCause, Result},
        metadata::Metadata,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// How long a lease is held before its handle listens for a revocation of it.
const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct LeaseTask {
    /// Before what a caller waits for, so that a task that is dropped ends the lease first.
    registration: Registration,
    lease: Arc<LeaseInner>,
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
    sent: Vec<BoxFuture<Reply>>,
    /// The attempt that the schedule has permitted and that was not sent.
    permitted: Option<Box<dyn SingleAttempt>>,
    /// The refresh for the holder that is under way, and how many there were.
    round: Option<Box<RefreshRound>>,
    rounds: u32,
    shared: Arc<HandleInner>,
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
        lease.lose(LossCause::ShutDown);
        lease.commands.end();
        shared.siblings().notifier.remove_holder(&shared.context, acquire_id.number);
        shared.own_leases.remove(lease);
    }
}

/// What wakes the task.
enum Wakeup {
    Command(Command),
    Answered(Reply),
    Time,
}

impl LeaseTask {
    /// Creates the holder's side of a lease and the task. `acquire_id`: the acquire by which the store knows the holder.
    pub(crate) fn start(
        shared: Arc<HandleInner>,
        lease: Arc<LeaseInner>,
        (ttl, refreshing): (Ttl, Refreshing),
        in_use: InUse,
        acquire_id: AcquireId,
    ) -> (HeldLease, Box<Self>) {
        let (released, done) = oneshot::channel();
        let held = HeldLease::new(Arc::clone(&shared), Arc::clone(&lease), done);
        let now = shared.context.clock().now();
        // A lease that is held for a moment is not worth a listener.
        let listen_at = now.saturating_add(LISTEN_AFTER);
        // A waiter's granted request was sent a while ago, and the deadline counts from then. The deadline of a lease that
        // is resumed with a shorter ttl is further away.
        let sent = lease.deadline().saturating_sub(shared.context.settings.validity(ttl)).min(now);
        let due_at = refreshing.due_after(ttl, sent);
        let time = listen_at.min(due_at).min(lease.deadline());
        let registration = Registration::begin(&shared, &lease, acquire_id);
        let task = Self {
            lease,
            ttl,
            refreshing,
            listen_at: Some(listen_at),
            metadata: None,
            slot: Placed::From { time, sent, due_at },
            attempts: 0,
            sent: Vec::new(),
            permitted: None,
            round: None,
            rounds: 0,
            registration,
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

    /// Starts a listener if there is none, for what happens after `tick`, the tick of the last answer.
    fn listen_since(&self, tick: HybridTime) {
        self.shared.siblings().notifier.listen(self.context(), tick);
    }

    /// When the lease is due after a refresh that was sent at `sent`.
    fn due_after(&self, sent: Duration) -> Duration {
        self.refreshing.due_after(self.ttl, sent)
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
        loop {
            let sleep = self.wake_at().map(|at| Box::pin(self.context().clock().sleep_until(at)));
            let takes_refresh = self.round.is_none();
            let Self { lease, sent, shared, .. } = self;
            let event = tokio::select! {
                biased;
                () = lease.ended.cancelled() => return,
                () = shared.context.closing.cancelled() => {
                    lease.lose(LossCause::ShutDown);
                    continue;
                }
                answer = in_flight::next_answer(sent), if !sent.is_empty() => Wakeup::Answered(answer),
                command = lease.commands.next(takes_refresh) => Wakeup::Command(command),
                () = slept(sleep) => Wakeup::Time,
            };
            match event {
                Wakeup::Answered(Reply::Attempt(attempt)) => self.handle_attempt(attempt),
                Wakeup::Answered(Reply::LossCheck(Ok(Some(cause)))) => self.lease.lose(cause),
                Wakeup::Command(Command::Refresh(command)) => self.begin(*command),
                Wakeup::Command(Command::RefreshSingle(attempt)) => self.permitted = Some(attempt),
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
        let ends_at = self.round.as_ref().map(|round| round.until.min(self.lease.deadline()));
        [self.listen_at, placed_at, ends_at, self.lease.stalls_at()].into_iter().flatten().min()
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
            self.listen_since(self.lease.tick);
            self.listen_at = None;
            if let Placed::At(slot) = &self.slot {
                slot.record_listened();
            }
        }
        if let Placed::From { time, sent, due_at } = self.slot
            && time <= now
        {
            self.place(sent, due_at);
        }
        self.end_unconfirmed(now);
        self.send_permitted();
    }

    /// Acts at the store on the end of the lease, and replies.
    pub(crate) async fn end(self: Box<Self>) {
        let Self { lease, slot, registration, shared, in_use, released, .. } = *self;
        drop(slot);
        lease.commands.end();
        let end = release::run(&shared, &lease, registration.acquire_id).await;
        drop(registration);
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
